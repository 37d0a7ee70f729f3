# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What the pings between chips tell: who cannot be reached, who loses packets, who is slow, who is on a wrong plane."""

from __future__ import annotations

import collections
import dataclasses
import statistics
import typing as t

from .. import facts as f
from ..fleet import Fleet, listing, one_line
from ..verdicts import Place, Severity, Words
from .blame import blame
from .say import Say, names, numbers

Edge = tuple[Place, Place]


@dataclasses.dataclass(frozen=True, slots=True)
class Texts:
    """Words for one kind of trouble, by what is to blame. {found} tells the worst value."""

    fleet: Words
    host: Words
    chip: Words
    hosts: Words
    pair: Words


def _texts(en: str, zh: str, fix: str, fix_zh: str) -> Texts:
    def words(who: str, who_zh: str) -> Words:
        return Words(f"{who}: {en}", fix, f"{who_zh}：{zh}", fix_zh)

    return Texts(
        fleet=words("on every ping of the fleet ({count})", "全部 ping（{count} 次）"),
        host=words(
            "on {on} {host} ({count}, chips {chips})",
            "{host} {on_zh} ping（{count} 次，芯片 {chips}）",
        ),
        chip=words(
            "on {on} chip {chip} of {host} ({count})",
            "{host} 芯片 {chip} {on_zh} ping（{count} 次）",
        ),
        hosts=words(
            "on every ping between {host} and {other} ({count})", "{host} 与 {other} 之间的全部 ping（{count} 次）"
        ),
        pair=words("on the ping {ways} ({count})", "ping {ways}（{count} 次）"),
    )


_REPEAT = (
    "repeat one by hand on {from_host}: `hccn_tool -i {from_chip} -{option} -g address {address}`; "
    "then see cable, vNIC or address, and TLS of the place named"
)
_REPEAT_ZH = "在 {from_host} 上手工重复：`hccn_tool -i {from_chip} -{option} -g address {address}`；然后检查该处的线缆、vNIC 或地址、TLS"
_LOST = _texts("nothing comes back", "没有任何应答", _REPEAT, _REPEAT_ZH)
_TOO_LONG = _texts(
    "the tool says 'Message too long': a port on the way takes shorter packets",
    "工具报告 Message too long：途中有端口的 MTU 较小",
    "give the chips' ports and those of the switches between them one MTU (hccn_tool shows a chip's by -mtu -g); then "
    + _REPEAT,
    "使芯片端口与其间交换机端口的 MTU 一致（hccn_tool 用 -mtu -g 查看芯片的值）；然后" + _REPEAT_ZH,
)
_LOSSY = _texts("packets are lost, {found} at worst", "丢包，最差 {found}", _REPEAT, _REPEAT_ZH)
_PLANE = _texts(
    "the L1 plane check fails ({found})",
    "L1 平面检查失败（{found}）",
    "packets arrive over a wrong plane: see the cabling of the super pod and its switch configuration; " + _REPEAT,
    "报文走错平面：检查超节点布线与交换配置；" + _REPEAT_ZH,
)
_SLOW = _texts(
    "far slower than the fleet's median, {found} against {expected}",
    "远慢于全网中位数：{found}，中位数 {expected}",
    "see load and error counters of the switch port; " + _REPEAT,
    "检查交换机端口的负载与错误计数；" + _REPEAT_ZH,
)
_UNREAD = Words(
    "{count} pings of {host} say nothing ({found}): {text}",
    "run preflight again; if it stays, on {from_host}: `hccn_tool -i {from_chip} -{option} -g address {address}`",
    "{host} 的 {count} 次 ping 没有结论（{found}）：{text}",
    "重新执行 preflight；若仍如此，在 {from_host} 上执行：`hccn_tool -i {from_chip} -{option} -g address {address}`",
)


_TOO_LONG_SAID = "Message too long"


def _edge(ping: f.PingResult) -> Edge:
    return Place(ping["from_host"], ping["from_chip"]), Place(ping["to_host"], ping["to_chip"])


def _judged(fleet: Fleet, say: Say) -> list[f.PingResult]:
    """Pings that say something about the network; hosts of the others are left open."""
    pings, others = _sound(fleet, say.hosts)
    for one in others:
        for place in _edge(one):
            if place.host in say.hosts and one.get("state") != "ok":
                say.blocked(place.host)
    return pings


def _sound(fleet: Fleet, hosts: t.Collection[str]) -> tuple[list[f.PingResult], list[f.PingResult]]:
    """Pings between chips that can be pinged, and those of chips whose fault has a verdict of its own."""
    usable = {Place(host, chip) for host in hosts for chip in fleet.chips(host) if not fleet.port_down(host, chip)}
    sound: list[f.PingResult] = []
    others: list[f.PingResult] = []
    for one in fleet.pings.get("results") or []:
        a, b = _edge(one)
        pods = {fleet.super_pod(a.host), fleet.super_pod(b.host)} - {None}
        (sound if a in usable and b in usable and len(pods) < 2 else others).append(one)
    return sound, others


def _read(ping: f.PingResult) -> bool:
    """failed is an answer: the tool says that nothing came back."""
    if ping.get("state") == "ok":
        return isinstance(ping.get("loss_percent"), (int, float))
    return ping.get("state") == "failed"


def _loss(ping: f.PingResult) -> float:
    return float(ping.get("loss_percent", 100.0)) if ping.get("state") == "ok" else 100.0


def _by_hand(fleet: Fleet, ping: f.PingResult) -> dict[str, t.Any]:
    option = "hccs_ping" if fleet.plane == "hccs" else "ping"
    return {
        "from_host": ping["from_host"],
        "from_chip": ping["from_chip"],
        "address": ping.get("address") or "ADDRESS",
        "option": option,
    }


def ping(fleet: Fleet, say: Say) -> None:
    pings = _judged(fleet, say)
    _unread(fleet, say, [one for one in pings if not _read(one)])
    read = [one for one in pings if _read(one)]
    lost = [one for one in read if _loss(one) >= 100]
    lossy = [one for one in read if 0 < _loss(one) < 100]
    long = [one for one in lost if _TOO_LONG_SAID in listing(one.get("problems"))]
    lost = [one for one in lost if one not in long]
    _explain(fleet, say, read, lost, "error", _LOST, lambda one: f"{_loss(one):g} %", "an answer")
    _explain(fleet, say, read, long, "error", _TOO_LONG, lambda one: f"{_loss(one):g} %", "an answer")
    _explain(fleet, say, read, lossy, "warning", _LOSSY, lambda one: f"{_loss(one):g} %", "0 %")
    _passed(say, read)


def ping_plane(fleet: Fleet, say: Say) -> None:
    if fleet.plane != "hccs":
        return
    checked = [one for one in _judged(fleet, say) if one.get("l1_plane")]
    bad = [one for one in checked if any(value != 0 for value in listing(one.get("l1_plane")))]
    _explain(fleet, say, checked, bad, "error", _PLANE, lambda one: names(map(_hex, one["l1_plane"])), "0x0")
    _passed(say, checked)


def _hex(value: object) -> str:
    return hex(value) if isinstance(value, int) else str(value)


def ping_latency(fleet: Fleet, say: Say) -> None:
    timed = [
        one
        for one in _judged(fleet, say)
        if one.get("state") == "ok" and isinstance(one.get("average_us"), (int, float)) and _loss(one) < 100
    ]
    # Of fewer than four nobody can say what is usual.
    if len(timed) < 4:
        return
    usual = statistics.median(one["average_us"] for one in timed)
    limit = max(usual * fleet.limits.latency_factor, usual + fleet.limits.latency_floor_us)
    slow = [one for one in timed if one["average_us"] > limit]
    _explain(fleet, say, timed, slow, "warning", _SLOW, lambda one: f"{one['average_us']:.0f} us", f"{usual:.0f} us")
    _passed(say, timed)


def _passed(say: Say, pings: t.Sequence[f.PingResult]) -> None:
    """Chips that were tested and are not to blame for anything."""
    blamed = {place for verdict in say.verdicts for place in verdict.places}
    for place in {place: None for one in pings for place in _edge(one)}:
        if place not in blamed and Place(place.host) not in blamed:
            say.ok(*place)


def _unread(fleet: Fleet, say: Say, pings: t.Sequence[f.PingResult]) -> None:
    by_host: dict[str, list[f.PingResult]] = collections.defaultdict(list)
    for one in pings:
        by_host[one["from_host"]].append(one)
    for host, group in by_host.items():
        states = names(sorted({str(one.get("state") or "unknown") for one in group}))
        text = next((one_line(one["text"]) for one in group if one.get("text")), "no text")
        also = [Place(host, chip) for chip in {one["from_chip"]: None for one in group}]
        say.unknown(
            _UNREAD,
            host,
            expected="an answer",
            found=states,
            text=text,
            count=len(group),
            also=also,
            **_by_hand(fleet, group[0]),
        )


def _explain(
    fleet: Fleet,
    say: Say,
    tested: t.Sequence[f.PingResult],
    bad: t.Sequence[f.PingResult],
    severity: Severity,
    texts: Texts,
    value: t.Callable[[f.PingResult], str],
    expected: str,
) -> None:
    """Bad pings as few verdicts: the fleet, a host, a chip, two hosts, two chips, whichever explains them."""
    if not bad:
        return
    by_edge = {_edge(one): one for one in bad}
    edges = [_edge(one) for one in tested]
    for culprit in culprits(edges, by_edge):
        pings = [by_edge[edge] for edge in culprit.edges]
        first = culprit.edges[0]
        worst = max(pings, key=_badness)
        values = {
            **_by_hand(fleet, pings[0]),
            "count": len(pings),
            "chips": numbers(place.chip for place in culprit.also if place.chip is not None),
            "other": first[1].host if first[0].host == culprit.place.host else first[0].host,
            **_on(edges, culprit),
            "ways": f"{first[0]} {'<->' if len(pings) > 1 else '->'} {first[1]}",
        }
        say.say(
            severity,
            getattr(texts, culprit.kind),
            *culprit.place,
            expected=expected,
            found=value(worst),
            also=culprit.also,
            **values,
        )


def _on(tested: t.Sequence[Edge], culprit: Culprit) -> dict[str, str]:
    """Which of the pings of a host or a chip are bad, in words: all, all in one direction, or some."""

    def at(place: Place) -> bool:
        return place == culprit.place or (culprit.kind == "host" and place.host == culprit.place.host)

    bad = set(culprit.edges)
    sent, received = ({edge for edge in tested if at(edge[end])} for end in (0, 1))
    for edges, en, zh in (
        (sent | received, "every ping from and to", "收发的全部"),
        (sent, "every ping from", "发出的全部"),
        (received, "every ping to", "收到的全部"),
    ):
        if edges == bad:
            return {"on": en, "on_zh": zh}
    count = f"{len(bad)} of {len(sent | received)}"
    return {"on": f"{count} pings from and to", "on_zh": f"收发的 {len(sent | received)} 次中 {len(bad)} 次"}


class Culprit(t.NamedTuple):
    """What a group of bad pings has in common. also: the chips or the other places that take part."""

    kind: t.Literal["fleet", "host", "chip", "hosts", "pair"]
    place: Place
    also: list[Place]
    edges: list[Edge]


def culprits(tested: t.Sequence[Edge], bad: t.Collection[Edge]) -> list[Culprit]:
    """Bad pings explained by as few places as possible. Each bad ping is in exactly one of them."""
    bad = dict.fromkeys(bad)
    if bad and len(bad) == len(set(tested)) and len(bad) > 2:
        places = list(dict.fromkeys(Place(place.host) for edge in tested for place in edge))
        return [Culprit("fleet", places[0], places, list(bad))]
    found = []
    remaining = bad
    hosts = _wholly_bad(tested, bad)
    for one in blame(hosts.tested, hosts.bad):
        if one.node is not None:
            explained = {*one.edges, (one.node, one.node)}
            edges = [edge for edge in remaining if (edge[0].host, edge[1].host) in explained]
            found.append(Culprit("host", Place(one.node), _chips_of(edges, one.node), edges))
            remaining = {edge: None for edge in remaining if edge not in set(edges)}
    pairs: list[Edge] = []
    for chip in blame([edge for edge in tested if edge not in bad or edge in remaining], list(remaining)):
        if chip.node is None:
            pairs += chip.edges
        else:
            found.append(Culprit("chip", chip.node, [], list(chip.edges)))
    return [*found, *_pairs(tested, pairs)]


def _pairs(tested: t.Sequence[Edge], pairs: t.Sequence[Edge]) -> t.Generator[Culprit, None, None]:
    """What no single place explains wholly: everything between two hosts, a chip in part, or one pair of chips."""
    left: list[Edge] = []
    between: dict[frozenset[str], list[Edge]] = collections.defaultdict(list)
    total: collections.Counter[frozenset[str]] = collections.Counter(frozenset((a.host, b.host)) for a, b in tested)
    for edge in pairs:
        between[frozenset((edge[0].host, edge[1].host))].append(edge)
    for key, edges in between.items():
        if len(key) == 2 and len(edges) == total[key] and len(edges) > 2:
            yield Culprit("hosts", Place(edges[0][0].host), [Place(edges[0][1].host)], edges)
            continue
        left += edges
    left = yield from _shared_ends(tested, left)
    couples: dict[frozenset[Place], list[Edge]] = collections.defaultdict(list)
    for edge in left:
        couples[frozenset(edge)].append(edge)
    for couple in couples.values():
        yield Culprit("pair", couple[0][0], [couple[0][1]], couple)


def _shared_ends(tested: t.Sequence[Edge], edges: list[Edge]) -> t.Generator[Culprit, None, list[Edge]]:
    """A chip that bad pings with several others have in common, though some of its pings are good: it is that chip that
    loses packets now and then, not each of the others. Returns what has no end in common."""
    total: collections.Counter[Place] = collections.Counter(place for edge in tested for place in edge)
    while True:
        others: dict[Place, set[Place]] = collections.defaultdict(set)
        count: collections.Counter[Place] = collections.Counter()
        for a, b in edges:
            others[a].add(b)
            others[b].add(a)
            count.update((a, b))
        most = max(others, key=lambda place: (len(others[place]), count[place] / total[place]), default=None)
        if most is None or len(others[most]) < 2:
            return edges
        yield Culprit("chip", most, [], [edge for edge in edges if most in edge])
        edges = [edge for edge in edges if most not in edge]


def reachable(fleet: Fleet, place: Place) -> bool | None:
    """Whether the pings say that a chip is reached: not to blame for any that failed. None when it was in none.

    A chip is not worse because one that it pinged is down.
    """
    key = ("reachable", "")
    if key not in fleet.memory:
        able = [host for host in fleet.hosts if fleet.has("hccn", host) and fleet.has("generation", host)]
        read = [one for one in _sound(fleet, able)[0] if _read(one)]
        tested = [_edge(one) for one in read]
        blamed: set[Place] = set()
        for culprit in culprits(tested, [_edge(one) for one in read if _loss(one) > 0]):
            ends = {place for edge in culprit.edges for place in edge}
            own = {end for end in ends if end.host == culprit.place.host} if culprit.kind == "host" else ends
            blamed |= {culprit.place} if culprit.kind == "chip" else own
        fleet.memory[key] = {end: end not in blamed for edge in tested for end in edge}
    known: dict[Place, bool] = fleet.memory[key]
    return known.get(place)


def _badness(one: f.PingResult) -> float:
    return _loss(one) * 1e9 + float(one.get("average_us") or 0)


def _chips_of(edges: t.Iterable[Edge], host: str) -> list[Place]:
    return sorted({place for edge in edges for place in edge if place.host == host})


class _Hosts(t.NamedTuple):
    tested: list[tuple[str, str]]
    bad: list[tuple[str, str]]


def _wholly_bad(tested: t.Sequence[Edge], bad: t.Container[Edge]) -> _Hosts:
    """Pairs of hosts, and those of them between which no ping is good."""
    good: dict[tuple[str, str], bool] = {}
    for a, b in tested:
        if a.host != b.host:
            key = (a.host, b.host)
            good[key] = good.get(key, False) or (a, b) not in bad
    return _Hosts(list(good), [pair for pair, any_good in good.items() if not any_good])

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
            "on every ping from and to {host} ({count}, chips {chips})",
            "{host} 收发的全部 ping（{count} 次，芯片 {chips}）",
        ),
        chip=words(
            "on every ping from and to chip {chip} of {host} ({count})",
            "{host} 芯片 {chip} 收发的全部 ping（{count} 次）",
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


def _edge(ping: f.PingResult) -> Edge:
    return Place(ping["from_host"], ping["from_chip"]), Place(ping["to_host"], ping["to_chip"])


def _judged(fleet: Fleet, say: Say) -> list[f.PingResult]:
    """Pings that say something about the network: not those of chips whose fault has a verdict of its own."""
    hosts = set(say.hosts)
    usable = {Place(host, chip) for host in hosts for chip in fleet.chips(host) if not fleet.port_down(host, chip)}
    out = []
    for ping in fleet.pings.get("results") or []:
        a, b = _edge(ping)
        pods = {fleet.super_pod(a.host), fleet.super_pod(b.host)} - {None}
        if a in usable and b in usable and len(pods) < 2:
            out.append(ping)
        elif ping.get("state") != "ok":
            for place in (a, b):
                if place.host in hosts:
                    say.blocked(place.host)
    return out


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
    _explain(fleet, say, read, lost, "error", _LOST, lambda one: f"{_loss(one):g} %", "an answer")
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
    all_edges = [_edge(one) for one in tested]

    def speak(words: Words, place: Place, edges: t.Iterable[Edge], also: t.Iterable[Place], **values: object) -> None:
        pings = [by_edge[edge] for edge in edges]
        worst = max(pings, key=_badness)
        more = {"expected": expected, "found": value(worst), "count": len(pings), **_by_hand(fleet, pings[0]), **values}
        say.say(severity, words, place.host, place.chip, also=also, **t.cast("dict[str, t.Any]", more))

    if len(by_edge) == len(set(all_edges)) and len(all_edges) > 2:
        places = list(dict.fromkeys(Place(place.host) for edge in all_edges for place in edge))
        speak(texts.fleet, places[0], by_edge, places)
        return
    remaining = dict.fromkeys(by_edge)
    host_bad = _wholly_bad(all_edges, by_edge)
    for found in blame(host_bad.tested, host_bad.bad):
        if found.node is not None:
            edges = [edge for edge in remaining if found.node in (edge[0].host, edge[1].host)]
            also = _chips_of(edges, found.node)
            chips = numbers(place.chip for place in also if place.chip is not None)
            speak(texts.host, Place(found.node), edges, also, chips=chips)
            remaining = {edge: None for edge in remaining if edge not in set(edges)}
    rest_tested = [edge for edge in all_edges if edge not in by_edge or edge in remaining]
    pairs = []
    for explained in blame(rest_tested, list(remaining)):
        if explained.node is None:
            pairs += list(explained.edges)
        else:
            speak(texts.chip, explained.node, explained.edges, ())
    _explain_pairs(all_edges, pairs, texts, speak)


def _explain_pairs(
    tested: t.Sequence[Edge], pairs: t.Sequence[Edge], texts: Texts, speak: t.Callable[..., None]
) -> None:
    """What no single place explains: everything between two hosts, or one pair of chips."""
    between: dict[frozenset[str], list[Edge]] = collections.defaultdict(list)
    total: collections.Counter[frozenset[str]] = collections.Counter(frozenset((a.host, b.host)) for a, b in tested)
    for edge in pairs:
        between[frozenset((edge[0].host, edge[1].host))].append(edge)
    for key, edges in between.items():
        if len(key) == 2 and len(edges) == total[key] and len(edges) > 2:
            first, other = edges[0][0].host, edges[0][1].host
            speak(texts.hosts, Place(first), edges, [Place(other)], other=other)
            continue
        couples: dict[frozenset[Place], list[Edge]] = collections.defaultdict(list)
        for edge in edges:
            couples[frozenset(edge)].append(edge)
        for couple in couples.values():
            a, b = couple[0]
            ways = f"{a} {'<->' if len(couple) == 2 else '->'} {b}"
            speak(texts.pair, a, couple, [b], ways=ways)


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

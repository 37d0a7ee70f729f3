# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Whether hosts reach one another on planned ports. Whether those are free is what the module host_check tells."""

from __future__ import annotations

import collections
import typing as t

from ..fleet import Fleet, listing, mapping, whole
from ..verdicts import Place, Words
from .host import lacks_node_ip
from .say import Say, names, numbers

_TRY = "on {from_host}: `nc -zv {address} {first}`; open the ports in the firewall of the place named (firewall-cmd, iptables, security group)"
_TRY_ZH = (
    "在 {from_host} 上执行：`nc -zv {address} {first}`；在该处的防火墙（firewall-cmd、iptables、安全组）中放行这些端口"
)
_TO = Words(
    "no host reaches {host} on port {ports} ({found})",
    _TRY,
    "没有主机能连接 {host} 的端口 {ports}（{found}）",
    _TRY_ZH,
)
_FROM = Words(
    "{host} reaches no other host on planned ports ({ports}; {found})",
    _TRY,
    "{host} 无法连接其他任何主机的规划端口（{ports}；{found}）",
    _TRY_ZH,
)
_PAIR = Words(
    "{host} does not reach {other} on port {ports} ({found})",
    _TRY,
    "{host} 无法连接 {other} 的端口 {ports}（{found}）",
    _TRY_ZH,
)
_UNKNOWN = Words(
    "whether {host} reaches the other hosts' planned ports was not tried",
    "run preflight over all hosts, with the tag ports",
    "未测试 {host} 是否能连接其他主机的规划端口",
    "对所有主机执行 preflight（包含 ports 标签）",
)
_NOT_ASKED = Words(
    "whether other hosts reach the planned ports of {host} was not tried",
    "run preflight over all hosts, with the tag ports",
    "未测试其他主机是否能连接 {host} 的规划端口",
    "对所有主机执行 preflight（包含 ports 标签）",
)
_MASTER_ZH = "{host} 无法连接 KV 池的 master {address}:{port}（{where}；{found}）：引擎启动时找不到它会退出"
_MASTER = Words(
    "{host} does not reach the KV pool's master at {address}:{port} ({where}; {found}): engines that start without it end",
    "start it before engines stop: run over {where} too (site.yml with it in --limit), which starts it; on {host}: `nc -zv {address} {port}`",
    _MASTER_ZH,
    "在引擎停止之前先启动它：将 {where} 也纳入本次运行（site.yml 的 --limit 包含它）即会启动；在 {host} 上执行：`nc -zv {address} {port}`",
)
_FOREIGN_MASTER = Words(
    "{host} does not reach the KV pool's master at {address}:{port} ({where}; {found}): engines that start without it end",
    "start it, let it through the firewall, or correct pd_kv_pool.master; on {host}: `nc -zv {address} {port}`",
    _MASTER_ZH,
    "启动该 master、在防火墙中放行，或更正 pd_kv_pool.master；在 {host} 上执行：`nc -zv {address} {port}`",
)
_MASTER_UNKNOWN = Words(
    "whether {host} reaches the KV pool's master at {address}:{port} was not tried",
    "on {host}: `nc -zv {address} {port}`; a master given by its IPv4 address is tried by preflight",
    "未测试 {host} 是否能连接 KV 池的 master {address}:{port}",
    "在 {host} 上执行：`nc -zv {address} {port}`；以 IPv4 地址给出的 master 会由 preflight 测试",
)
_BAD = ("timeout", "refused", "unreachable")


class _Probe(t.NamedTuple):
    source: str
    target: str
    port: int
    state: str
    address: str


def _probes(fleet: Fleet, host: str) -> list[_Probe]:
    out = []
    for raw in listing(fleet.host(host).get("probes")):
        one = mapping(raw)
        port, target = whole(one.get("port")), str(one.get("to") or "")
        state = str(one.get("state") or "unknown") if port is not None and target else "unknown"
        if target != host:
            out.append(_Probe(host, target, port or 0, state, str(one.get("address") or "")))
    return out


def pool_master(fleet: Fleet, say: Say) -> None:
    """One that this run may start is like any other listener (firewall); any other has to be there already."""
    master = fleet.view["pool"]
    if master is None or master["host"] in fleet.asked:
        return
    for host in say.hosts:
        if not fleet.view["hosts"][host]["instances"]:
            continue
        states = [
            one.state for one in _probes(fleet, host) if (one.address, one.port) == (master["address"], master["port"])
        ]
        about: dict[str, t.Any] = {"address": master["address"], "port": master["port"], "expected": "open"}
        if states and states[0] == "open":
            say.ok(host)
        elif states and states[0] in _BAD:
            words = _FOREIGN_MASTER if master["host"] is None else _MASTER
            where = master["host"] or "pd_kv_pool.master"
            say.error(words, host, found=states[0], where=where, **about)
        elif _untried(fleet, host) and len(fleet.hosts) == len(fleet.expected) > 1:
            say.blocked(host)  # firewall says it of all ports
        else:
            say.unknown(_MASTER_UNKNOWN, host, found="not tried", **about)


def _awaited(fleet: Fleet, host: str) -> bool:
    """Whether other hosts connect to this one: nobody of the fleet does where the proxy is alone."""
    return bool(fleet.view["hosts"][host]["instances"])


def _untried(fleet: Fleet, host: str) -> bool:
    return not isinstance(fleet.host(host).get("probes"), list)


def firewall(fleet: Fleet, say: Say) -> None:
    if len(fleet.expected) < 2:
        return
    asked = set(fleet.asked)
    # Without the others there may be nobody that a host connects to; the report says that this is not judged.
    incomplete = len(fleet.hosts) < len(fleet.expected)
    probes: list[_Probe] = []
    for host in say.hosts:
        own = [one for one in _probes(fleet, host) if not one.target or one.target in asked]
        if incomplete and not own:
            continue
        usable = [one for one in own if one.state == "open" or one.state in _BAD]
        probes += usable
        if len(usable) < len(own) or _untried(fleet, host):
            say.unknown(_UNKNOWN, host, expected="open", found="not tried" if not own else "unknown")
    _explain(say, probes, [one for one in probes if one.state in _BAD])
    blamed = {place.host for verdict in say.verdicts for place in verdict.places}
    sources, targets = {one.source for one in probes}, {one.target for one in probes}
    for host in say.hosts:
        if host in sources and host not in targets and lacks_node_ip(fleet, host):
            # node-ip says so, and there was nobody to be reached.
            say.blocked(host)
        elif host in sources and host not in targets and _awaited(fleet, host) and len(sources) > 1 and not incomplete:
            say.unknown(_NOT_ASKED, host, expected="open", found="not tried")
        elif host in sources and host not in blamed:
            say.ok(host)


def _explain(say: Say, probes: t.Sequence[_Probe], bad: list[_Probe]) -> None:
    # A host that gets out nowhere, by pairs of hosts; what is left, by target and port.
    state: dict[tuple[str, str], bool] = {}
    for one in probes:
        key = (one.source, one.target)
        state[key] = state.get(key, False) or one.state == "open"
    outgoing: dict[str, list[bool]] = collections.defaultdict(list)
    for (source, _target), any_open in state.items():
        outgoing[source].append(any_open)
    reached = {target for (_source, target), any_open in state.items() if any_open}
    for source, results in outgoing.items():
        own = [one for one in bad if one.source == source]
        if len(results) > 1 and not any(results) and any(one.target in reached for one in own):
            bad = [one for one in bad if one.source != source]
            _speak(say, _FROM, source, own, [])
    for target in dict.fromkeys(one.target for one in bad):
        ports: dict[int, list[_Probe]] = collections.defaultdict(list)
        for one in bad:
            if one.target == target:
                ports[one.port].append(one)
        everybody = {
            port
            for port, tries in ports.items()
            if len(tries) > 1 and len(tries) == sum(one.target == target and one.port == port for one in probes)
        }
        shut = [one for port in ports for one in ports[port] if port in everybody]
        if shut:
            _speak(say, _TO, target, shut, [])
        rest: dict[str, list[_Probe]] = collections.defaultdict(list)
        for port, tries in ports.items():
            for one in tries:
                if port not in everybody:
                    rest[one.source].append(one)
        for source, tries in rest.items():
            _speak(say, _PAIR, source, tries, [Place(target)])


def _speak(say: Say, words: Words, host: str, tries: t.Sequence[_Probe], also: t.Iterable[Place]) -> None:
    first = tries[0]
    say.error(
        words,
        host,
        expected="open",
        found=names(sorted({one.state for one in tries})),
        also=also,
        other=first.target,
        ports=numbers(one.port for one in tries),
        from_host=first.source,
        address=first.address or first.target,
        first=first.port,
    )

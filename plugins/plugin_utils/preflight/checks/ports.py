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


def firewall(fleet: Fleet, say: Say) -> None:
    if len(fleet.expected) < 2:
        return
    # Without the others there may be nobody that a host connects to; the report says that this is not judged.
    incomplete = len(fleet.hosts) < len(fleet.expected)
    probes: list[_Probe] = []
    for host in say.hosts:
        own = _probes(fleet, host)
        if incomplete and not own:
            continue
        usable = [one for one in own if one.state == "open" or one.state in _BAD]
        probes += usable
        if len(usable) < len(own) or not isinstance(fleet.host(host).get("probes"), list):
            say.unknown(_UNKNOWN, host, expected="open", found="not tried" if not own else "unknown")
    _explain(say, probes, [one for one in probes if one.state in _BAD])
    blamed = {place.host for verdict in say.verdicts for place in verdict.places}
    sources, targets = {one.source for one in probes}, {one.target for one in probes}
    for host in say.hosts:
        if host in sources and host not in targets and lacks_node_ip(fleet, host):
            # node-ip says so, and there was nobody to be reached.
            say.blocked(host)
        elif host in sources and host not in targets and len(sources) > 1 and not incomplete:
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

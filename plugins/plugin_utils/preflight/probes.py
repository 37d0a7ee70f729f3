# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Which host tries which ports of which other hosts, and so which ports each host must listen on for that.

Kinds of connections that a serving cluster makes, all TCP:

- api: the proxy's host to the API servers of every placement.
- proxy: with decode-first proxies every decode host posts to the proxy's page /v1/metaserver.
- rpc: the members of an instance to its head, where data-parallel rank 0 listens.
- kv: the side that connects to the ranges that the binding side's connector listens on.
- transfer: between hosts of opposite roles, both ways: the ranges of Mooncake's transfer engine and
  AscendDirectTransport, whose ends tell each other where they are, and HCCL's.
- hccl: between the hosts of one instance, both ways: collective operations.
- pool: every host with engines to the KV pool's master, without which they end at their start. A master outside this run
  is not started by it, so it is tried as it is: nobody listens in its place.

Every port of api and kv is tried, since each of them is used: by one rank, or one worker. Of a long range, of one that is
picked from (transfer, hccl), and of api where the proxy has very many to try, the first and the last port are: a rule of
a firewall that covers both covers what is between. A host tries kv and transfer on up to `peers` hosts of the other role,
and hccl on up to `peers` of its instance. The other kinds grow with the cluster on the proxy's host alone, and every one
of these connections is needed to serve at all, so all are tried.
"""

from __future__ import annotations

import collections
import dataclasses
import ipaddress
import itertools
import math
import typing as t

PEERS = 16
LONG_RANGE = 64
MANY_ENDPOINTS = 2048
"""Of the proxy's host: what it could not try within its budget if all of them were filtered."""
LIFETIME_LIMIT = 600

Kind = t.Literal["api", "proxy", "rpc", "kv", "transfer", "hccl", "pool"]
KINDS: tuple[Kind, ...] = ("api", "proxy", "rpc", "kv", "transfer", "hccl", "pool")
HCCL = "hccl"
_OTHER = {"prefill": "decode", "decode": "prefill"}

Plan = t.Mapping[str, t.Any]


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """Where a host listens."""

    address: str
    port: int


@dataclasses.dataclass(frozen=True, slots=True)
class Probe:
    """One connection that a host tries to another."""

    kind: Kind
    to: str
    address: str
    port: int


class LeftOut(t.TypedDict):
    """Connections that are not tried.

    why: peer_cap | not_asked | not_answered | not_listening. pairs: how many pairs of hosts. hosts: for peer_cap those
    that no other host tries in this kind, otherwise those that could not be tried. ports: for not_listening.
    """

    why: str
    kind: Kind
    pairs: int
    hosts: list[str]
    ports: list[int]


@dataclasses.dataclass(slots=True)
class Schedule:
    """probes: by the host that tries, in order. listen: by the host that is tried."""

    probes: dict[str, list[Probe]]
    listen: dict[str, list[Endpoint]]
    left_out: list[LeftOut]

    @property
    def count(self) -> int:
        return sum(map(len, self.probes.values()))


_Pair = tuple[Kind, str, str]


def plan_probes(plan: Plan, *, peers: int = PEERS, asked: t.Collection[str] | None = None) -> Schedule:
    """The schedule of a plan as JSON. asked: the hosts that take part (all, without it); the rest is left out by name.

    The same plan gives the same schedule. Raises ValueError for a cap below 1.
    """
    if peers < 1:
        raise ValueError(f"the peer cap is {peers}; it is 1 or more")
    targets: dict[_Pair, list[Endpoint]] = {}
    capped: list[LeftOut] = []
    for kind, source, to, endpoints in itertools.chain(
        _of_proxy(plan),
        _of_heads(plan),
        _of_transfers(plan, peers, capped),
        _of_collectives(plan, peers, capped),
        _of_pool(plan),
    ):
        if source != to and endpoints:
            # Placements of two instances may meet in one pair of hosts.
            known = targets.setdefault((kind, source, to), [])
            known += [one for one in endpoints if one not in known]
    hosts = None if asked is None else set(asked)
    gone: dict[Kind, list[_Pair]] = collections.defaultdict(list)
    probes: dict[str, list[Probe]] = {row["host"]: [] for row in plan["hosts"] if hosts is None or row["host"] in hosts}
    seen: set[tuple[str, Endpoint]] = set()
    for pair, endpoints in targets.items():
        kind, source, to = pair
        if hosts is not None and not {source, *([to] if kind != "pool" else [])} <= hosts:
            gone[kind].append(pair)
            continue
        for one in endpoints:
            if (source, one) not in seen:
                seen.add((source, one))
                probes[source].append(Probe(kind, to, one.address, one.port))
    left_out = capped + [
        _left_out(
            "not_asked", kind, len(pairs), [host for pair in pairs for host in pair[1:] if host not in (hosts or ())]
        )
        for kind, pairs in gone.items()
    ]
    return Schedule(probes, _listened(probes), left_out)


def _left_out(why: str, kind: Kind, pairs: int, hosts: t.Iterable[str], ports: t.Iterable[int] = ()) -> LeftOut:
    return {"why": why, "kind": kind, "pairs": pairs, "hosts": list(dict.fromkeys(hosts)), "ports": sorted(set(ports))}


def _listened(probes: t.Mapping[str, t.Sequence[Probe]]) -> dict[str, list[Endpoint]]:
    found: dict[str, set[Endpoint]] = {host: set() for host in probes}
    for one in itertools.chain.from_iterable(probes.values()):
        if one.to in found:
            found[one.to].add(Endpoint(one.address, one.port))
    return {host: sorted(endpoints) for host, endpoints in found.items()}


# The kinds of connections ---------------------------------------------------------------------------------------------

_Wanted = tuple[Kind, str, str, list[Endpoint]]


def _ends(address: str, first: int, last: int) -> list[Endpoint]:
    return [Endpoint(address, port) for port in dict.fromkeys((first, last))]


def _each(address: str, first: int, last: int) -> list[Endpoint]:
    if last - first >= LONG_RANGE:
        return _ends(address, first, last)
    return [Endpoint(address, port) for port in range(first, last + 1)]


_Ports = t.Callable[[str, int, int], list[Endpoint]]


def _owned(placement: Plan, owner: str, address: str | None = None, ports: _Ports = _each) -> list[Endpoint]:
    return [
        end
        for row in placement["ports"]
        if row["owner"] == owner
        for end in ports(address or placement["node_ip"], row["first"], row["last"])
    ]


def _of_proxy(plan: Plan) -> t.Iterator[_Wanted]:
    proxy = plan["proxy"]
    if proxy is None:
        return
    every = [_owned(placement, "api") for placement in plan["placements"]]
    ports: _Ports = _each if sum(map(len, every)) <= MANY_ENDPOINTS else _ends
    for placement in plan["placements"]:
        yield "api", proxy["host"], placement["host"], _owned(placement, "api", ports=ports)
    if proxy["kind"] == "decode_first":
        for placement in plan["placements"]:
            if placement["role"] == "decode":
                yield "proxy", placement["host"], proxy["host"], [Endpoint(proxy["address"], proxy["port"])]


def _of_heads(plan: Plan) -> t.Iterator[_Wanted]:
    addresses = {instance["name"]: instance["dp_address"] for instance in plan["instances"]}
    members: dict[str, list[str]] = collections.defaultdict(list)
    for placement in plan["placements"]:
        members[placement["instance"]].append(placement["host"])
    for placement in plan["placements"]:
        # Only a head that really listens has such a range.
        head = _owned(placement, "dp_rpc", addresses.get(placement["instance"]))
        for member in members[placement["instance"]]:
            yield "rpc", member, placement["host"], head


def _of_transfers(plan: Plan, peers: int, capped: list[LeftOut]) -> t.Iterator[_Wanted]:
    by_role: dict[str, list[str]] = {"prefill": [], "decode": []}
    kv: dict[tuple[str, str], list[Endpoint]] = collections.defaultdict(list)
    for placement in plan["placements"]:
        role, host = placement["role"], placement["host"]
        if host not in by_role[role]:
            by_role[role].append(host)
        if placement["kv_listen"]:
            kv[role, host] += _each(placement["node_ip"], *placement["kv_listen"])
    shared = _shared(plan)
    for role, sources in by_role.items():
        other = _OTHER[role]
        chosen = spread(sources, by_role[other], peers)
        listening = [host for host in by_role[other] if kv[other, host]]
        _count_capped("transfer", chosen, sources, by_role[other], capped)
        if listening:
            _count_capped("kv", chosen, sources, listening, capped)
        for source, to in chosen:
            yield "kv", source, to, kv[other, to]
            yield "transfer", source, to, shared[to]


def _of_collectives(plan: Plan, peers: int, capped: list[LeftOut]) -> t.Iterator[_Wanted]:
    members: dict[str, list[str]] = collections.defaultdict(list)
    for placement in plan["placements"]:
        members[placement["instance"]].append(placement["host"])
    shared = _shared(plan, HCCL)
    for hosts in members.values():
        chosen = ring(hosts, peers)
        _count_capped("hccl", chosen, hosts, hosts, capped)
        for source, to in chosen:
            yield "hccl", source, to, shared[to]


def _of_pool(plan: Plan) -> t.Iterator[_Wanted]:
    pool = plan["kv_pool"]
    address, _colon, port = ((pool or {}).get("address") or "").rpartition(":")
    if not address:
        return
    for placement in plan["placements"]:
        # A name is resolved by nobody here, and a rehearsed host (of a loopback address) leaves this machine alone.
        if _is_loopback(address) in (None, not _is_loopback(placement["node_ip"])):
            continue
        yield "pool", placement["host"], pool["host"] or pool["address"], [Endpoint(address, int(port))]


def _is_loopback(address: str) -> bool | None:
    """None for a name."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return None


def _shared(plan: Plan, owner: str | None = None) -> dict[str, list[Endpoint]]:
    return {
        row["host"]: [
            end
            for item in row["shared_ports"]
            if owner in (None, item["owner"])
            for end in _ends(row["node_ip"], item["first"], item["last"])
        ]
        for row in plan["hosts"]
    }


def _count_capped(
    kind: Kind,
    chosen: t.Collection[tuple[str, str]],
    sources: t.Sequence[str],
    targets: t.Sequence[str],
    capped: list[LeftOut],
) -> None:
    """Note the pairs of hosts that were not chosen, and the hosts that nobody was chosen to try."""
    listed = set(targets)
    every = len(sources) * len(targets) - len(set(sources) & listed)
    kept = [pair for pair in chosen if pair[1] in listed]
    if every > len(kept):
        tried = {to for _source, to in kept}
        capped.append(_left_out("peer_cap", kind, every - len(kept), [host for host in targets if host not in tried]))


# Even spread ----------------------------------------------------------------------------------------------------------


def spread(sources: t.Sequence[str], targets: t.Sequence[str], most: int) -> list[tuple[str, str]]:
    """Pairs, up to `most` for each source, none twice, none of a host with itself; every target about equally often.

    Sources take turns through the targets, each going on where the last one stopped. Steps are wide, so that the targets
    of one source lie all over the list: it is in the order of the inventory, which is often that of the racks.
    """
    count = len(targets)
    step = _coprime_step(count)
    out = []
    slot = 0
    for source in sources:
        wanted = min(most, count - (source in targets))
        taken = 0
        while taken < wanted:
            target = targets[slot * step % count]
            slot += 1
            if target != source:
                out.append((source, target))
                taken += 1
    return out


def _coprime_step(count: int) -> int:
    """About 0.618 of the way around, without a common divisor: multiples meet every place once, and lie far apart."""
    step = max(1, round(count * (math.sqrt(5) - 1) / 2))
    while count > 1 and math.gcd(step, count) != 1:
        step -= 1
    return step


def ring(hosts: t.Sequence[str], most: int) -> list[tuple[str, str]]:
    """Pairs within one group: each host tries up to `most` others at the same distances, and is tried as often."""
    count = len(hosts)
    degree = min(most, count - 1)
    distances = [1 + n * (count - 1) // degree for n in range(degree)]
    return [(host, hosts[(place + d) % count]) for place, host in enumerate(hosts) for d in distances]


# What comes of it -----------------------------------------------------------------------------------------------------


def listen_options(schedule: Schedule, host: str) -> list[dict[str, t.Any]]:
    """The option endpoints of the module port_probe for a host."""
    return [dataclasses.asdict(endpoint) for endpoint in schedule.listen.get(host, [])]


def probe_options(schedule: Schedule, host: str) -> list[dict[str, t.Any]]:
    """The option probes of the module port_probe for a host."""
    return [{"to": one.to, "address": one.address, "port": one.port} for one in schedule.probes.get(host, [])]


def lifetime(schedule: Schedule, forks: int, budget: float = 60.0) -> int:
    """Seconds that listeners are needed: the first one to start must still be there when the last host has tried.

    Ansible takes as many hosts at once as it has forks; two rounds of a task, each with its start of some seconds.
    """
    batches = math.ceil(max(1, len(schedule.listen)) / max(1, forks))
    return min(LIFETIME_LIMIT, math.ceil(60 + budget + 2 * 3 * batches))


def after_listening(schedule: Schedule, answers: t.Mapping[str, t.Mapping[str, t.Any] | None]) -> Schedule:
    """The schedule without ports on which nobody listens: trying these would tell of a firewall that is not there.

    answers: what port_probe returned with state listen, by host; a host that did not answer is missing or None.
    """
    there: dict[str, set[Endpoint]] = {}
    for host, answer in answers.items():
        if answer is not None:
            rows = [*(answer.get("bound") or []), *(answer.get("live") or [])]
            there[host] = {Endpoint(str(row["address"]), int(row["port"])) for row in rows}
    probes: dict[str, list[Probe]] = {}
    gone: dict[tuple[str, Kind], list[tuple[str, Probe]]] = collections.defaultdict(list)
    for source, wanted in schedule.probes.items():
        probes[source] = []
        for one in wanted:
            if one.to not in schedule.probes:
                probes[source].append(one)  # outside this run, where none of ours listens
            elif one.to not in there:
                gone["not_answered", one.kind].append((source, one))
            elif Endpoint(one.address, one.port) not in there[one.to]:
                gone["not_listening", one.kind].append((source, one))
            else:
                probes[source].append(one)
    left_out = schedule.left_out + [
        _left_out(
            why,
            kind,
            len({(source, one.to) for source, one in lost}),
            [one.to for _source, one in lost],
            [one.port for _source, one in lost] if why == "not_listening" else (),
        )
        for (why, kind), lost in gone.items()
    ]
    return Schedule(probes, _listened(probes), left_out)

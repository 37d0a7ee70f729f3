# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Which chip pings which, and in what order.

Hosts work in parallel, each one ping after the other, since hccn_tool may never run twice at once on a host. A round is
one ping on every host. In one round all hosts ping the host that is the same number of places further on, so no host is
asked by two others in it, and no chip either.

With `n` hosts in a ring, "peers" picks distances: near ones and far ones, each in both directions. So every chosen pair is
tested once per direction, every host has the same work, and the chosen pairs hang together.
"""

from __future__ import annotations

import dataclasses
import typing as t

from . import facts as f
from .fleet import Fleet, Limits, address, mapping, whole

Mode = t.Literal["ring", "rail", "full"]
MODES: tuple[Mode, ...] = ("ring", "rail", "full")
PEERS = 8
BUDGET_SECONDS = 180.0
# Three packets and the tool's own start.
PING_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class HostFabric:
    """What a host brings: chips in order, the address each is reached at (None: it has none), the card it is on."""

    chips: t.Sequence[int]
    addresses: t.Mapping[int, str | None]
    siblings: t.Mapping[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Ping:
    """One ping that a host makes. round numbers its turn."""

    chip: int
    target_host: str
    target_chip: int
    address: str
    round: int


@dataclasses.dataclass(slots=True)
class Schedule:
    """by_host: in the order they are made. left_out: what was not chosen, and why. peers: other hosts per host."""

    mode: str
    plane: f.Plane
    peers: int
    by_host: dict[str, list[Ping]]
    left_out: list[f.LeftOut]

    @property
    def count(self) -> int:
        return sum(map(len, self.by_host.values()))


Node = tuple[str, int]


def plan_pings(
    view: f.PlanView,
    facts: t.Mapping[str, f.Facts],
    *,
    mode: str = "rail",
    peers: int = PEERS,
    budget_seconds: float = BUDGET_SECONDS,
    ping_seconds: float = PING_SECONDS,
) -> Schedule:
    """The schedule for the hosts that answered, by the addresses their chips have right now."""
    plane = view["plane"]
    if plane == "ub":
        return Schedule(mode, plane, 0, {}, [{"why": "no_ping", "host": None, "chips": [], "pairs": 0}])
    fleet = Fleet(view, facts, None, list(facts), list(view["hosts"]), Limits())
    hosts = {}
    for host in fleet.hosts:
        usable = fleet.has("hccn", host) and fleet.has("generation", host)
        chips = fleet.chips(host) if usable else []
        if chips:
            told = {chip: fleet.answer(host, chip, fleet.plane_query()) for chip in chips}
            found = {chip: address(one.word("ipaddr")) if one.ok else None for chip, one in told.items()}
            hosts[host] = HostFabric(
                chips,
                {chip: None if ip is None else str(ip) for chip, ip in found.items()},
                {chip: _card(fleet, host, chip) for chip in chips},
            )
    return schedule(
        hosts, mode=mode, plane=plane, peers=peers, budget_seconds=budget_seconds, ping_seconds=ping_seconds
    )


def _card(fleet: Fleet, host: str, chip: int) -> int:
    """The card of a chip; where npu-smi does not tell, two dies make one on A3."""
    card = whole(mapping(fleet.smi_chip(host, chip)).get("card"))
    return card if card is not None else chip // 2 if fleet.hardware == "a3" else chip


def schedule(
    hosts: t.Mapping[str, HostFabric],
    *,
    mode: str = "rail",
    plane: f.Plane = "hccs",
    peers: int = PEERS,
    budget_seconds: float = BUDGET_SECONDS,
    ping_seconds: float = PING_SECONDS,
) -> Schedule:
    """Choose pairs of chips, both directions each, within every host's budget.

    mode: ring (each host and its two neighbours, same chip), rail (same chip on up to peers other hosts), full (every
    chip with every other). Raises ValueError for a mode that does not exist and for fewer than two peers, with which
    hosts would fall apart into pairs.
    """
    if mode not in MODES:
        raise ValueError(f"preflight_ping_mode is {mode!r}; it is one of {', '.join(MODES)}")
    if mode == "rail" and peers < 2:
        raise ValueError(f"preflight_ping_peers is {peers}; it is 2 or more (2 makes a ring)")
    if not budget_seconds > 0 or not ping_seconds > 0:
        raise ValueError(f"the budget ({budget_seconds}) and the time of one ping ({ping_seconds}) are seconds above 0")
    left_out: list[f.LeftOut] = []
    names = []
    usable: dict[str, list[int]] = {}
    for host, fabric in hosts.items():
        lacking = [chip for chip in fabric.chips if not fabric.addresses.get(chip)]
        if lacking:
            left_out.append({"why": "no_address", "host": host, "chips": lacking, "pairs": 0})
        usable[host] = [chip for chip in fabric.chips if fabric.addresses.get(chip)]
        if usable[host]:
            names.append(host)
    count = len(names)
    distances = _distances(count, {"ring": 2, "rail": peers, "full": max(count - 1, 0)}[mode])
    if count < 2 and mode != "full":
        left_out.append({"why": "no_other_host", "host": names[0] if names else None, "chips": [], "pairs": 0})
    untested = count * (count - 1 - len(distances)) // 2 if count > 1 else 0
    if untested > 0:
        left_out.append({"why": "peer_cap", "host": None, "chips": [], "pairs": untested})
    skip_siblings = plane == "roce"
    most = int(budget_seconds / ping_seconds)
    by_host: dict[str, list[Ping]] = {host: [] for host in names}
    over: dict[str, dict[int, int]] = {}
    if mode == "full":
        _inside(hosts, usable, names, skip_siblings, most, by_host, over)
    round_ = max((len(pings) for pings in by_host.values()), default=0)
    for distance in _halves(distances, count):
        round_ = _at_distance(hosts, usable, names, distance, mode == "full", most, round_, by_host, over)
    left_out += [
        {"why": "budget", "host": host, "chips": sorted(chips), "pairs": sum(chips.values())}
        for host, chips in over.items()
    ]
    return Schedule(mode, plane, len(distances), by_host, left_out)


def _distances(count: int, peers: int) -> list[int]:
    """Up to `peers` distances around the ring, with each also its opposite: near ones, then ever further ones."""
    if count < 2:
        return []
    if peers >= count - 1:
        return list(range(1, count))
    pairs = peers // 2
    far = count // 2 if count % 2 else count // 2 - 1
    # Doubling from 1, as far as there is room, fills with what is next.
    chosen: list[int] = []
    step = 1
    while len(chosen) < pairs and step <= far:
        chosen.append(step)
        step *= 2
    more = (distance for distance in range(far, 0, -1) if distance not in set(chosen))
    while len(chosen) < pairs:
        chosen.append(next(more))
    return [distance for half in sorted(chosen) for distance in (half, count - half)]


def _halves(distances: t.Sequence[int], count: int) -> list[int]:
    """One of each two opposite distances."""
    return sorted({min(distance, count - distance) for distance in distances})


def _at_distance(
    hosts: t.Mapping[str, HostFabric],
    usable: t.Mapping[str, list[int]],
    names: t.Sequence[str],
    distance: int,
    everything: bool,
    most: int,
    round_: int,
    by_host: dict[str, list[Ping]],
    over: dict[str, dict[int, int]],
) -> int:
    """Pings between all hosts this far apart: first everybody forward, then everybody back. Gives the next round."""
    count = len(names)
    chosen: list[tuple[Node, Node]] = []
    planned = {host: len(pings) for host, pings in by_host.items()}
    seen: set[frozenset[str]] = set()
    for position, host in enumerate(names):
        other = names[(position + distance) % count]
        # Half way around, host and other see each other at the same distance.
        if frozenset((host, other)) in seen:
            continue
        seen.add(frozenset((host, other)))
        for a, b in _chip_pairs(usable[host], usable[other], everything):
            if planned[host] < most and planned[other] < most:
                planned[host] += 1
                planned[other] += 1
                chosen.append(((host, a), (other, b)))
            else:
                for end, chip in ((host, a), (other, b)):
                    chips = over.setdefault(end, {})
                    chips[chip] = chips.get(chip, 0) + 1
    # Half way around, the hosts that ask and those that are asked are two halves: both directions fit into one round.
    together = 2 * distance == count
    turn: dict[str, int] = {}
    for ahead in (True, False):
        turn = turn if together else {}
        for pair in chosen:
            (host, chip), (target, target_chip) = pair if ahead else (pair[1], pair[0])
            number = turn.get(host, 0)
            turn[host] = number + 1
            ip = hosts[target].addresses[target_chip]
            assert ip is not None
            by_host[host].append(Ping(chip, target, target_chip, ip, round_ + number))
        if not together:
            round_ += max(turn.values(), default=0)
    return round_ + max(turn.values(), default=0) if together else round_


def _chip_pairs(own: t.Sequence[int], other: t.Sequence[int], everything: bool) -> list[tuple[int, int]]:
    """The same chip of both hosts; a chip that the other does not have is paired by its place in the list."""
    if everything:
        # Skewed, so that the chips of one host do not all ask chip 0 first.
        return [
            (chip, other[(place + shift) % len(other)]) for shift in range(len(other)) for place, chip in enumerate(own)
        ]
    pairs = [(chip, chip) for chip in own if chip in set(other)]
    rest = [chip for chip in own if chip not in set(other)]
    spare = [chip for chip in other if chip not in set(own)] or list(other)
    pairs += [(chip, spare[place % len(spare)]) for place, chip in enumerate(rest)]
    # And the other's chips that are still without a partner.
    met = {b for _a, b in pairs}
    return pairs + [(own[place % len(own)], b) for place, b in enumerate(chip for chip in other if chip not in met)]


def _inside(
    hosts: t.Mapping[str, HostFabric],
    usable: t.Mapping[str, list[int]],
    names: t.Sequence[str],
    skip_siblings: bool,
    most: int,
    by_host: dict[str, list[Ping]],
    over: dict[str, dict[int, int]],
) -> None:
    """Chips of one host among themselves. Over RoCE the two dies of a card do not reach each other."""
    for host in names:
        fabric, chips = hosts[host], usable[host]
        for place, a in enumerate(chips):
            for b in chips[place + 1 :]:
                if skip_siblings and fabric.siblings.get(a, a) == fabric.siblings.get(b, b):
                    continue
                if len(by_host[host]) + 2 > most:
                    own = over.setdefault(host, {})
                    own[a] = own.get(a, 0) + 1
                    continue
                for chip, target in ((a, b), (b, a)):
                    ip = fabric.addresses[target]
                    assert ip is not None
                    by_host[host].append(Ping(chip, host, target, ip, len(by_host[host])))


# What came of it ------------------------------------------------------------------------------------------------------


def module_options(plan: Schedule, host: str) -> list[dict[str, t.Any]]:
    """The option pings of the module hccn_ping for a host."""
    mode = "hccs" if plan.plane == "hccs" else "roce"
    return [{"chip": one.chip, "target": one.address, "mode": mode} for one in plan.by_host.get(host, [])]


def ping_run(plan: Schedule, results: t.Mapping[str, t.Mapping[str, t.Any]]) -> f.PingRun:
    """Put names to what hccn_ping of each host returned. A ping that it does not tell of is unknown, or left out."""
    run: list[f.PingResult] = []
    left_out = list(plan.left_out)
    for host, pings in plan.by_host.items():
        told: dict[tuple[int | None, str], list[t.Mapping[str, t.Any]]] = {}
        answered = mapping(results.get(host))
        for one in answered.get("pings") or []:
            told.setdefault((whole(one.get("chip")), str(one.get("target"))), []).append(one)
        skipped = {(whole(one.get("chip")), str(one.get("target"))) for one in answered.get("left_out") or []}
        late: dict[int, int] = {}
        for ping in pings:
            key = (ping.chip, ping.address)
            found = told.get(key)
            if not found and key in skipped:
                late[ping.chip] = late.get(ping.chip, 0) + 1
                continue
            result: f.PingResult = {
                "from_host": host,
                "from_chip": ping.chip,
                "to_host": ping.target_host,
                "to_chip": ping.target_chip,
                "address": ping.address,
                "state": "unknown",
            }
            if found:
                # Two chips can share an address by mistake: each ping takes one answer.
                one = found.pop(0) if len(found) > 1 else found[0]
                result.update(t.cast(f.PingResult, {key: one[key] for key in _KEPT if one.get(key) is not None}))
            run.append(result)
        if late:
            left_out.append({"why": "budget", "host": host, "chips": sorted(late), "pairs": sum(late.values())})
    return {"mode": plan.mode, "plane": plan.plane, "results": run, "left_out": left_out}


_KEPT = ("state", "text", "sent", "received", "loss_percent", "l1_plane", "average_us", "max_us", "problems")

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Which ranks run on which host, and which chips each rank sees."""

from __future__ import annotations

import typing as t

from .inventory import count
from .model import Cluster, Finding, Instance, Member, Placement, Process


def visible_devices(mapped_chips: t.Sequence[int], wanted_chips: t.Sequence[int]) -> list[int]:
    """Indices inside the container of the wanted physical chips.

    The runtime counts what a container sees from zero: mapped 0,3,4,7 and wanted 4,7 give 2,3. Raises ValueError naming
    the chips that are not mapped.
    """
    index = {chip: position for position, chip in enumerate(mapped_chips)}
    missing = [chip for chip in wanted_chips if chip not in index]
    if missing:
        raise ValueError(
            f"chip {', '.join(map(str, missing))} is not mapped into the container (mapped: {', '.join(map(str, mapped_chips))})"
        )
    return [index[chip] for chip in wanted_chips]


def lay_out(cluster: Cluster) -> tuple[list[Placement], list[Placement], list[Finding]]:
    """(placements of every complete instance in rank order, shadows of the others, findings)."""
    placements: list[Placement] = []
    shadows: list[Placement] = []
    findings: list[Finding] = []
    for instance in cluster.instances:
        findings += _check_members(instance)
        shares = _shares(instance, findings) if instance.complete else []
        placements += [_placement(instance, member, start, local) for member, start, local in shares]
        if not instance.complete:
            shadows += [_shadow(instance, member, rank) for rank, member in enumerate(instance.members)]
    return placements, shadows, findings


def _shadow(instance: Instance, member: Member, rank: int) -> Placement:
    """One rank that runs nowhere, so that what is wrong with the options is found in the same run."""
    return Placement(instance, member, rank, 1, [Process(rank, [rank], "", None)], shadow=True)


def _check_members(instance: Instance) -> list[Finding]:
    findings = []
    for member in instance.members:
        beyond = [chip for chip in sorted({*member.chips, *member.mapped_chips}) if chip >= member.chips_per_node]
        unmapped = [chip for chip in member.chips if chip not in member.mapped_chips and chip not in beyond]
        if beyond:
            findings.append(
                Finding(
                    "chip-not-there",
                    "error",
                    member.host,
                    "pd_chips",
                    member.chips,
                    f"chips {_numbers(beyond)} of instance {instance.name} do not exist on {member.host}, which has "
                    f"{member.chips_per_node} (0-{member.chips_per_node - 1})",
                    "name chips the host has, or correct pd_chips_per_node",
                )
            )
        if unmapped:
            findings.append(
                Finding(
                    "chip-not-mapped",
                    "error",
                    member.host,
                    "pd_chips",
                    member.chips,
                    f"chips {_numbers(unmapped)} of instance {instance.name} are not mapped into its container on {member.host} "
                    f"(pd_mapped_chips: {_numbers(member.mapped_chips)})",
                    "add them to pd_mapped_chips, or compute on chips that are mapped",
                )
            )
        if beyond or unmapped:
            instance.complete = False
    return findings


def _shares(instance: Instance, findings: list[Finding]) -> list[tuple[Member, int, int]]:
    """(member, first rank, ranks) of every host; what the user gave is kept, the rest is worked out."""
    members, width, size = instance.members, instance.rank_width, instance.dp_size
    capacity = {member.host: len(member.chips) // width for member in members}
    given = {m.host: size if m.dp_size_local == -1 else m.dp_size_local for m in members if m.dp_size_local is not None}
    before = len(findings)
    for member in members:
        local = given.get(member.host)
        if local is not None and local > size:
            findings.append(
                Finding(
                    "dp-size-local",
                    "error",
                    member.host,
                    "pd_dp_size_local",
                    local,
                    f"{member.host} is given {local} ranks, more than the {size} of instance {instance.name}",
                    f"give 1 to {size}, or leave pd_dp_size_local out and let the plan divide the ranks",
                )
            )
        elif local is not None and local > capacity[member.host]:
            findings.append(_too_few_chips(instance, member, local))
        elif local is None and capacity[member.host] == 0:
            findings.append(_too_few_chips(instance, member, 1))
    if len(findings) > before:
        instance.complete = False
        return []
    locals_ = _divide(instance, given, capacity)
    if locals_ is None:
        findings.append(_does_not_fit(instance, given, capacity))
        instance.complete = False
        return []
    shares, next_rank = [], 0
    for member in members:
        start = next_rank if member.dp_rank_start is None else member.dp_rank_start
        shares.append((member, start, locals_[member.host]))
        next_rank = start + locals_[member.host]
    findings += _check_cover(instance, shares)
    if len(findings) > before:
        instance.complete = False
        return []
    return shares


def _divide(instance: Instance, given: dict[str, int], capacity: dict[str, int]) -> dict[str, int] | None:
    """Ranks per host: evenly where that fits, else as evenly as the chips allow; None when they do not fit."""
    out = dict(given)
    free = [host for host in instance.hosts if host not in given]
    left = instance.dp_size - sum(given.values())
    if not free:
        return out
    if left < len(free) or left > sum(capacity[host] for host in free):
        return None
    for position, host in enumerate(free):
        behind = free[position + 1 :]
        even = -(-left // (len(behind) + 1))
        # Hosts further back may be smaller: what they cannot take has to be taken here.
        needed = left - sum(capacity[other] for other in behind)
        out[host] = min(max(even, needed), capacity[host], left - len(behind))
        left -= out[host]
    return out


def _too_few_chips(instance: Instance, member: Member, local: int) -> Finding:
    sizes = "tp x pp x pcp" if instance.pcp_size > 1 else "tp x pp" if instance.pp_size > 1 else "tp"
    product = local * instance.rank_width
    if local == 1 and member.dp_size_local is None:
        message = (
            f"one rank of instance {instance.name} takes {product} chips ({sizes}), but {member.host} gives it {len(member.chips)}; "
            "a rank cannot span hosts here (upstream needs --nnodes or Ray for that)"
        )
    else:
        message = (
            f"{count(local, 'rank')} of instance {instance.name} {'take' if local > 1 else 'takes'} {product} chips "
            f"({local} x {sizes} {instance.rank_width}), "
            f"but {member.host} gives it {len(member.chips)}"
        )
    return Finding(
        "too-few-chips",
        "error",
        member.host,
        "pd_dp_size_local" if member.dp_size_local is not None else "pd_tp_size",
        member.dp_size_local if member.dp_size_local is not None else instance.tp_size,
        message,
        "lower the ranks or their width, name more chips in pd_chips, or add hosts to the instance",
    )


def _does_not_fit(instance: Instance, given: dict[str, int], capacity: dict[str, int]) -> Finding:
    hosts = len(instance.hosts)
    product = instance.dp_size * instance.rank_width
    if instance.dp_size < hosts:
        message = (
            f"instance {instance.name} has {hosts} hosts but only {count(instance.dp_size, 'rank')}; "
            "a host would be left without"
        )
        fix = f"take {count(hosts - instance.dp_size, 'host')} out of the instance or raise pd_dp_size"
    elif given:
        message = (
            f"the {instance.dp_size} ranks of instance {instance.name} cannot be completed beside the given pd_dp_size_local "
            f"({', '.join(f'{host} {local}' for host, local in list(given.items())[:4])}): the other hosts take at least 1 and at "
            f"most {sum(capacity[host] for host in instance.hosts if host not in given)}"
        )
        fix = "leave pd_dp_size_local out and let the plan divide the ranks, or correct the given values"
    else:
        chips = sum(len(member.chips) for member in instance.members)
        message = (
            f"instance {instance.name} needs {product} chips ({count(instance.dp_size, 'rank')} x {instance.rank_width}), but its "
            f"{count(hosts, 'host')} {'give' if hosts > 1 else 'gives'} {chips}"
        )
        fix = "lower pd_dp_size or the width of a rank, or add hosts or chips to the instance"
    first = instance.members[0]
    return Finding("too-few-chips", "error", first.host, "pd_dp_size", instance.dp_size, message, fix)


def _check_cover(instance: Instance, shares: list[tuple[Member, int, int]]) -> list[Finding]:
    """Ranks must cover [0, dp_size) exactly once."""
    findings = []
    owner: dict[int, str] = {}
    for member, start, local in shares:
        twice: dict[str, list[int]] = {}
        beyond = []
        for rank in range(start, start + local):
            if rank >= instance.dp_size:
                beyond.append(rank)
            elif rank in owner:
                twice.setdefault(owner[rank], []).append(rank)
            else:
                owner[rank] = member.host
        for other, ranks in twice.items():
            findings.append(
                _cover_finding(
                    instance,
                    member,
                    start,
                    f"ranks {_span(ranks)} are on {other} and on {member.host} (both {instance.name})",
                )
            )
        if beyond:
            findings.append(
                _cover_finding(
                    instance,
                    member,
                    start,
                    f"ranks {_span(beyond)} of {member.host} are beyond the last rank of instance {instance.name}, {instance.dp_size - 1}",
                )
            )
    missing = [rank for rank in range(instance.dp_size) if rank not in owner]
    if missing:
        member, start, _local = shares[-1]
        layout = ", ".join(f"{m.host} {s}-{s + n - 1}" for m, s, n in shares[:4])
        findings.append(
            _cover_finding(
                instance, member, start, f"ranks {_span(missing)} of instance {instance.name} run nowhere ({layout})"
            )
        )
    return findings


def _cover_finding(instance: Instance, member: Member, start: int, message: str) -> Finding:
    by_local = member.dp_rank_start is None and member.dp_size_local is not None
    return Finding(
        "dp-ranks",
        "error",
        member.host,
        "pd_dp_size_local" if by_local else "pd_dp_rank_start",
        member.dp_size_local if by_local else start,
        message,
        "leave pd_dp_rank_start and pd_dp_size_local out: the plan numbers the ranks in inventory order. Given values must "
        f"cover 0-{instance.dp_size - 1} of {instance.name} exactly once",
    )


def _placement(instance: Instance, member: Member, start: int, local: int) -> Placement:
    width = instance.rank_width
    devices = visible_devices(member.mapped_chips, member.chips[: local * width])
    if instance.external:
        processes = [
            Process(
                dp_rank=start + i,
                dp_ranks=[start + i],
                visible_devices=",".join(map(str, devices[i * width : (i + 1) * width])),
                api_port=None,
            )
            for i in range(local)
        ]
    else:
        ranks = list(range(start, start + local))
        processes = [Process(start, ranks, ",".join(map(str, devices)), None)]
    return Placement(instance, member, start, local, processes)


def is_headless(placement: Placement) -> bool:
    """Internal data parallelism serves the API on the instance's first host only."""
    return not placement.instance.external and placement.dp_rank_start > 0


def _numbers(values: t.Sequence[int]) -> str:
    return ",".join(map(str, values))


def _span(ranks: t.Sequence[int]) -> str:
    """4-7 or 3 or 1,5: short enough for a message."""
    if len(ranks) > 1 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks[:8])) + (",..." if len(ranks) > 8 else "")

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Ports: inside 1-65535, apart from each other on every host, clear of the ranges that Mooncake and HCCL take."""

from __future__ import annotations

import typing as t

from .. import pool, tables
from ..model import Finding, Placement, PortRange
from ..ports import ADXL, shared_ranges
from .context import Context, error, given_environment, warning

_Taken = tuple[PortRange, str, Placement | None]


def port_range(context: Context) -> t.Iterator[Finding]:
    for placement in context.placements:
        for ports in placement.ports:
            if ports.last > 65535 or ports.first < 1:
                yield error(
                    "port-range",
                    placement.host,
                    ports.variable,
                    _given(placement, ports),
                    f"instance {placement.instance.name} would listen on {ports} on {placement.host}, beyond 65535",
                    f"choose a smaller {ports.variable}",
                )


def moved_ranges(context: Context) -> t.Iterator[Finding]:
    """Environment can move the transports' ranges to where there are no ports."""
    cluster = context.cluster
    for host, placements in context.on_host.items():
        chips = max(placement.member.chips_per_node for placement in placements)
        for reserve in shared_ranges(cluster, placements):
            last = reserve.last
            if reserve.owner == ADXL:
                # What is really taken: that the documented range does not fit hurts nobody.
                last = reserve.first + chips * tables.adxl_ports_per_chip(cluster.versions, "measured") - 1
            if last <= 65535:
                continue
            moved = [p for p in placements if str(p.processes[0].env.get(reserve.variable)) == str(reserve.first)]
            yield error(
                "port-range",
                host,
                given_environment(context, moved[0], reserve.variable) if moved else reserve.variable,
                reserve.first,
                f"{reserve.owner} would take {reserve.first}-{last} on {host}, beyond 65535",
                f"choose a smaller {reserve.variable}, or leave it out",
            )


def port_conflict(context: Context) -> t.Iterator[Finding]:
    cluster = context.cluster
    alone = [host for host in (cluster.proxy_host, cluster.pool_host) if host and host not in context.on_host]
    for host, placements in [*context.on_host.items(), *((host, []) for host in dict.fromkeys(alone))]:
        taken: list[_Taken] = [
            (ports, f"{ports.owner} of {p.instance.name}", p) for p in placements for ports in p.ports
        ]
        if host == cluster.proxy_host:
            port = cluster.proxy_port
            taken.append((PortRange(port, port, "proxy", "pd_proxy_port"), "the proxy", None))
        if host == cluster.pool_host:
            taken += [(ports, f"the {ports.owner}", None) for ports in pool.ports(cluster)]
        taken.sort(key=lambda entry: entry[0].first)
        for position, (ports, owner, placement) in enumerate(taken):
            for other, other_owner, other_placement in taken[position + 1 :]:
                if other.first > ports.last:
                    break
                yield _conflict(host, (other, other_owner, other_placement), (ports, owner, placement))


def _conflict(host: str, later: _Taken, earlier: _Taken) -> Finding:
    ports, owner, placement = later
    other, other_owner, _other_placement = earlier
    value: t.Any = ports.first if placement is None else _given(placement, ports)
    return error(
        "port-conflict",
        host,
        ports.variable,
        value,
        f"two listeners on {host} overlap: {other_owner} takes {other} ({other.variable}), "
        f"{owner} takes {ports} ({ports.variable})",
        f"move one of them: {other.variable} or {ports.variable}; the plan keeps apart what is left out",
    )


def kv_port_reserve(context: Context) -> t.Iterator[Finding]:
    """kv_port blocks must stay clear of the ports that every worker's transport picks at random."""
    seen: set[tuple[str, int]] = set()
    for host, placements in context.on_host.items():
        shared = sorted(shared_ranges(context.cluster, placements), key=lambda reserve: reserve.owner != ADXL)
        for placement in placements:
            instance = placement.instance
            assert instance.kv_port is not None
            listens = placement.kv_listen is not None
            first, last = placement.kv_listen or (instance.kv_port, instance.kv_port)
            block = PortRange(first, last, "kv", "pd_kv_port")
            for reserve in shared:
                if not block.overlaps(reserve):
                    continue
                if not listens:
                    # Said once per instance: this side only connects, so nothing collides.
                    if (instance.name, reserve.first) in seen:
                        continue
                    seen.add((instance.name, reserve.first))
                yield _in_reserve(context, host, placement, block, reserve, shared, listens)


def _in_reserve(
    context: Context,
    host: str,
    placement: Placement,
    block: PortRange,
    reserve: PortRange,
    shared: t.Sequence[PortRange],
    listens: bool,
) -> Finding:
    instance, chips = placement.instance, placement.member.chips_per_node
    if reserve.owner == ADXL:
        why = f"from which {reserve.owner} picks its ports ({(reserve.last + 1 - reserve.first) // chips} per chip, {chips} chips)"
    else:
        why = f"which {reserve.owner} takes"
    # One value for all hosts of the instance; its first host has no ranks before it, so its block starts there.
    above = (other.last for other in shared if other.owner == ADXL and reserve.last < other.first)
    lowest = max([reserve.last, *above]) + 1
    say = error if listens else warning
    takes = f"listens on {block}" if listens else "does not listen itself, but its kv_port lies"
    return say(
        "kv-port-reserve",
        host,
        "pd_kv_port",
        instance.kv_port,
        f"instance {instance.name} on {host} {takes}{', inside' if listens else ' inside'} {reserve.first}-{reserve.last}, {why}; "
        "that gives 'Address already in use' now and then",
        f"set pd_kv_port to {lowest} or more"
        + (
            ", or pd_port_reserve: measured for the range the image's Mooncake really takes"
            if reserve.owner == ADXL and context.cluster.port_reserve == "documented"
            else ""
        ),
    )


def listeners_in_reserve(context: Context) -> t.Iterator[Finding]:
    """Other listeners in those ranges work most of the time: upstream's own recipes have some."""
    told: set[tuple[str, str]] = set()
    for host, placements in context.on_host.items():
        shared = shared_ranges(context.cluster, placements)
        if host == context.cluster.proxy_host:
            yield from _proxy_in_reserve(context, host, shared)
        if host == context.cluster.pool_host:
            yield from _pool_in_reserve(context, host, shared)
        for placement in placements:
            for ports in placement.ports:
                if ports.owner == "kv" or (placement.instance.name, ports.variable) in told:
                    continue
                for reserve in shared:
                    if ports.overlaps(reserve):
                        told.add((placement.instance.name, ports.variable))
                        yield warning(
                            "listener-in-reserve",
                            placement.host,
                            ports.variable,
                            _given(placement, ports),
                            f"{ports.owner} port {ports} of instance {placement.instance.name} lies in {reserve.first}-{reserve.last}, "
                            f"which {reserve.owner} may take first",
                            f"choose a {ports.variable} outside of it",
                        )


def _proxy_in_reserve(context: Context, host: str, shared: list[PortRange]) -> t.Iterator[Finding]:
    port = context.cluster.proxy_port
    for reserve in shared:
        if reserve.first <= port <= reserve.last:
            yield warning(
                "listener-in-reserve",
                host,
                "pd_proxy_port",
                port,
                f"the proxy's port {port} lies in {reserve.first}-{reserve.last}, which {reserve.owner} may take first",
                "choose a pd_proxy_port outside of it",
            )


def _pool_in_reserve(context: Context, host: str, shared: list[PortRange]) -> t.Iterator[Finding]:
    for ports in pool.ports(context.cluster):
        reserve = next((entry for entry in shared if ports.overlaps(entry)), None)
        if reserve is not None:
            yield warning(
                "listener-in-reserve",
                host,
                ports.variable,
                ports.first,
                f"the {ports.owner}'s port {ports.first} lies in {reserve.first}-{reserve.last}, which {reserve.owner} may take first",
                f"choose a {ports.variable} outside of it",
            )


def same_kv_port_on_host(context: Context) -> t.Iterator[Finding]:
    """Prefill and decode with one kv_port on one host do not clash (one side binds), but logs become unreadable."""
    for host, placements in context.on_host.items():
        by_port: dict[int | None, Placement] = {}
        for placement in placements:
            other = by_port.setdefault(placement.instance.kv_port, placement)
            if other is not placement and other.instance.role != placement.instance.role:
                yield warning(
                    "kv-port-shared",
                    host,
                    "pd_kv_port",
                    placement.instance.kv_port,
                    f"instances {other.instance.name} and {placement.instance.name} on {host} both have kv_port "
                    f"{placement.instance.kv_port}",
                    "give them different values; left out, the plan does",
                )


def _given(placement: Placement, ports: PortRange) -> int | None:
    instance = placement.instance
    port: int | None = getattr(instance, ports.variable.removeprefix("pd_"))
    return port


RULES = (port_range, moved_ranges, port_conflict, kv_port_reserve, listeners_in_reserve, same_kv_port_on_host)

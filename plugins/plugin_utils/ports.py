# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Port arithmetic: what the connectors bind, what the plan chooses, what a host must keep free.

Sources: vLLM-Ascend's connectors (which side binds, by global rank), Mooncake's transfer engine, HCCL. Values that a
user gives are never changed; what is chosen here depends on earlier instances of the same role only, so appending an
instance moves nobody's ports.
"""

from __future__ import annotations

import collections
import functools
import re
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils import kernel

from . import tables
from .layout import is_headless
from .model import Cluster, Instance, Placement, PortRange, Role, Transport

API_PORT, RPC_PORT, STEP = 7100, 12321, 100
ADXL = "AscendDirectTransport"
HCCL = "hccl"
HCCL_HOST_RANGE = "HCCL_HOST_SOCKET_PORT_RANGE"


def kv_listen(
    transport: Transport,
    role: Role,
    kv_port: int,
    dp_rank_start: int,
    dp_size_local: int,
    tp_size: int,
    pp_size: int = 1,
    pcp_size: int = 1,
) -> tuple[int, int] | None:
    """(first, last) port that the connector's workers of one placement bind; None when this side only connects.

    Upstream counts by the global data-parallel rank G. Pull (MooncakeConnectorV1): the producer binds
    kv_port + G*T*P*C + ...; MooncakeHybridConnector has no C. Push (MooncakeLayerwiseConnector): the consumer binds
    kv_port + G*C*T + ..., without P.
    """
    if role != transport.binding_role:
        return None
    width = tp_size
    if transport.counts_pp:
        width *= pp_size
    if transport.counts_pcp:
        width *= pcp_size
    return kv_port + dp_rank_start * width, kv_port + (dp_rank_start + dp_size_local) * width - 1


def d2rh_listen(base: int, dp_rank_start: int, dp_size_local: int, width: int, per_worker: bool) -> tuple[int, int]:
    """(first, last) control port that D2RH decode binds on one host; width is tp x pp x pcp.

    Upstream counts by the global rank G: a worker listens on zmq base + G*width + its place in the rank, a rank's
    scheduler on ready base + G*width. With wide ranks the scheduler's ports lie width apart; the range covers them.
    """
    first = base + dp_rank_start * width
    ranks_last = base + (dp_rank_start + dp_size_local - 1) * width
    return first, ranks_last + (width - 1 if per_worker else 0)


def api_ports(api_port: int, dp_size_local: int) -> tuple[int, int]:
    """One API server per external rank, counted up from the first, as upstream's launcher does."""
    return api_port, api_port + dp_size_local - 1


def binds_rpc(instance: Instance) -> bool:
    """The head of a DP group listens when the group spans processes; one process keeps to IPC."""
    return instance.dp_size > 1 and (instance.external or len(instance.members) > 1)


def assign(cluster: Cluster, placements: list[Placement], transport: Transport) -> None:
    """Choose the ports the user left open, then fill in kv_listen, API ports and the ranges of every placement."""
    by_instance: dict[int, list[Placement]] = collections.defaultdict(list)
    for placement in placements:
        by_instance[id(placement.instance)].append(placement)
    complete = [instance for instance in cluster.instances if id(instance) in by_instance]
    roles_on: dict[str, set[Role]] = collections.defaultdict(set)
    for instance in complete:
        for host in instance.hosts:
            roles_on[host].add(instance.role)
    earlier_on: dict[str, list[Instance]] = collections.defaultdict(list)
    lanes: dict[int, int] = {}
    for instance in complete:
        own = by_instance[id(instance)]
        near = list({id(other): other for host in instance.hosts for other in earlier_on[host]}.values())
        alike = [other for other in near if other.role == instance.role]
        lanes[id(instance)] = _free_lane({lanes[id(other)] for other in alike})
        # Chosen ports of the other role keep out of the way by themselves; given ones may lie anywhere.
        given = [(other, by_instance[id(other)]) for other in near]
        _choose(instance, own, lanes[id(instance)], roles_on, given)
        if instance.kv_port is None:
            instance.kv_port = _kv_port(instance, alike, by_instance, transport, given)
        for host in instance.hosts:
            earlier_on[host].append(instance)
    for placement in placements:
        _fill(placement, transport)
    if transport.stages:
        _add_d2rh(complete, by_instance, placements)


_D2RH: tuple[tuple[str, int, bool], ...] = (
    ("d2rh_zmq_port", tables.D2RH_ZMQ_PORT, True),
    ("d2rh_scheduler_ready_port", tables.D2RH_SCHEDULER_READY_PORT, False),
)
D2RH_STEP = 1000


def _add_d2rh(complete: list[Instance], by_instance: dict[int, list[Placement]], placements: list[Placement]) -> None:
    """Control ports of D2RH decode: the given bases, else 38100 and 38200, or the next thousand that is free on all hosts."""
    taken: dict[str, list[tuple[int, int]]] = collections.defaultdict(list)
    for placement in placements:
        taken[placement.host] += [(item.first, item.last) for item in placement.ports]
    decode = [(instance, by_instance[id(instance)]) for instance in complete if instance.role == "decode"]
    for instance, _own in decode:
        for name, _default, _per_worker in _D2RH:
            setattr(instance, name, getattr(instance, name) or _given_d2rh(instance, name))
    # What is given is where it is; what is chosen keeps clear of it, whichever comes first.
    for choosing in (False, True):
        for instance, own in decode:
            for name, default, per_worker in _D2RH:
                base = getattr(instance, name)
                if (base is None) != choosing:
                    continue
                if base is None:
                    base = _free_d2rh(default, own, per_worker, taken)
                    setattr(instance, name, base)
                for placement in own:
                    first, last = _d2rh_of(placement, base, per_worker)
                    taken[placement.host].append((first, last))
                    placement.ports.append(PortRange(first, last, name.removesuffix("_port"), f"pd_{name}"))


def _free_d2rh(
    default: int, own: list[Placement], per_worker: bool, taken: t.Mapping[str, list[tuple[int, int]]]
) -> int:
    for base in range(default, 65536, D2RH_STEP):
        wanted = functools.partial(_d2rh_of, base=base, per_worker=per_worker)
        if not _meets(own, wanted, taken):
            return base
    return default


def _d2rh_of(placement: Placement, base: int, per_worker: bool) -> tuple[int, int]:
    width = placement.instance.rank_width
    return d2rh_listen(base, placement.dp_rank_start, placement.dp_size_local, width, per_worker)


def _given_d2rh(instance: Instance, name: str) -> int | None:
    """A base given in pd_kv_transfer_config, as recipes have it; anything that is no port is left to the rules."""
    for member in instance.members:
        extra = member.kv_transfer_config.get("kv_connector_extra_config")
        value = extra.get(name) if isinstance(extra, dict) else None
        number = None if isinstance(value, bool) else tables.port(value)
        if number and number <= 65535:
            return number
    return None


def _free_lane(used: set[int]) -> int:
    lane = 0
    while lane in used:
        lane += 1
    return lane


_Earlier = list[tuple[Instance, list[Placement]]]


def _choose(
    instance: Instance, own: list[Placement], lane: int, roles_on: dict[str, set[Role]], earlier: _Earlier
) -> None:
    """API and RPC ports: instances of one role that meet on a host count up; decode steps aside of prefill."""
    head = next((placement.member for placement in own if placement.dp_rank_start == 0), instance.members[0])
    if instance.dp_address is None:
        instance.dp_address = head.node_ip
    beside_prefill = instance.role == "decode" and any("prefill" in roles_on[host] for host in instance.hosts)
    taken = _given_ranges(earlier)
    if instance.api_port is None:
        instance.api_port = API_PORT + STEP * (2 * lane + beside_prefill)
        while _meets(own, lambda placement: api_ports(instance.api_port or 0, placement.dp_size_local), taken):
            instance.api_port += 2 * STEP
    if instance.dp_rpc_port is None:
        instance.dp_rpc_port = RPC_PORT + 2 * lane + beside_prefill
        heads = [placement for placement in own if placement.dp_rank_start == 0]
        while _meets(heads, lambda _placement: (instance.dp_rpc_port or 0, instance.dp_rpc_port or 0), taken):
            instance.dp_rpc_port += 2


def _given_ranges(earlier: _Earlier) -> dict[str, list[tuple[int, int]]]:
    """Host -> ranges that earlier instances take there by a port their user gave."""
    taken: dict[str, list[tuple[int, int]]] = collections.defaultdict(list)
    for other, placements in earlier:
        for placement in placements:
            if "pd_api_port" in other.given and other.api_port is not None:
                taken[placement.host].append(api_ports(other.api_port, placement.dp_size_local))
            if "pd_dp_rpc_port" in other.given and other.dp_rpc_port is not None and placement.dp_rank_start == 0:
                taken[placement.host].append((other.dp_rpc_port, other.dp_rpc_port))
    return taken


def _meets(
    placements: list[Placement],
    wanted: t.Callable[[Placement], tuple[int, int]],
    taken: t.Mapping[str, list[tuple[int, int]]],
) -> bool:
    return any(
        first <= last_taken and first_taken <= last <= 65535
        for placement in placements
        for first, last in [wanted(placement)]
        for first_taken, last_taken in taken.get(placement.host, ())
    )


def _kv_port(
    instance: Instance,
    alike: list[Instance],
    by_instance: dict[int, list[Placement]],
    transport: Transport,
    earlier: _Earlier,
) -> int:
    """Default base of this instance, or the next free one of its role's where it meets earlier ones on a host.

    Prefill takes base + 0 and + 100 (mod 400), decode base + 200 and + 300, so the roles do not meet.
    """
    base = tables.default_kv_base(max(member.chips_per_node for member in instance.members))
    base += 2 * STEP if instance.role == "decode" else 0
    blocked: dict[str, list[tuple[int, int]]] = collections.defaultdict(list)
    for other, placements in earlier:
        if other in alike or "pd_kv_port" in other.given:
            for placement in placements:
                blocked[placement.host].append(_block(placement, other.kv_port or 0, transport))
    position = instance.index % 2
    while True:
        candidate = base + STEP * (position % 2) + 4 * STEP * (position // 2)
        own = by_instance[id(instance)]
        if candidate > 65535 or not _meets(own, lambda placement: _block(placement, candidate, transport), blocked):  # noqa: B023
            return candidate
        position += 1


def _block(placement: Placement, kv_port: int, transport: Transport) -> tuple[int, int]:
    """What the placement would bind if its side were the binding one: instances keep apart on both sides."""
    instance = placement.instance
    block = kv_listen(
        transport,
        transport.binding_role,
        kv_port,
        placement.dp_rank_start,
        placement.dp_size_local,
        instance.tp_size,
        instance.pp_size,
        instance.pcp_size,
    )
    assert block is not None
    return block


def _fill(placement: Placement, transport: Transport) -> None:
    instance = placement.instance
    assert instance.kv_port is not None and instance.api_port is not None and instance.dp_rpc_port is not None
    if instance.external:
        for offset, process in enumerate(placement.processes):
            process.api_port = instance.api_port + offset
    elif not is_headless(placement):
        placement.processes[0].api_port = instance.api_port
    served = [process.api_port for process in placement.processes if process.api_port is not None]
    ports = [PortRange(served[0], served[-1], "api", "pd_api_port")] if served else []
    if binds_rpc(instance) and placement.dp_rank_start == 0:
        ports.append(PortRange(instance.dp_rpc_port, instance.dp_rpc_port, "dp_rpc", "pd_dp_rpc_port"))
    placement.kv_listen = kv_listen(
        transport,
        instance.role,
        instance.kv_port,
        placement.dp_rank_start,
        placement.dp_size_local,
        instance.tp_size,
        instance.pp_size,
        instance.pcp_size,
    )
    if placement.kv_listen:
        ports.append(PortRange(*placement.kv_listen, "kv", "pd_kv_port"))
    placement.ports = ports


def shared_ranges(cluster: Cluster, placements: t.Sequence[Placement]) -> list[PortRange]:
    """Ranges of one host that its engines share or pick from at random; nothing else may listen there.

    Mooncake's transfer engine picks its RPC port in 15000-17000; AscendDirectTransport one in
    base + chip * R .. base + (chip + 1) * R, counted over the chips of the node; HCCL takes 16 or 32 ports from
    HCCL_IF_BASE_PORT. Per-process environment can move the last two, so each placement may have ranges of its own.
    """
    chips = max(placement.member.chips_per_node for placement in placements)
    per_chip = tables.adxl_ports_per_chip(cluster.versions, cluster.port_reserve)
    ranges: list[PortRange] = []
    for env in [placement.processes[0].env for placement in placements]:
        first, last, variable = tables.transfer_engine_ports(env, cluster.versions)
        ranges.append(PortRange(first, last, "mooncake transfer engine", variable))
        adxl = tables.adxl_base(env, cluster.versions)
        # The guide's ranges end before the next thousand; the measured one includes its last port.
        adxl_last = adxl + chips * per_chip - (per_chip == 1000)
        ranges.append(PortRange(adxl, adxl_last, ADXL, "ASCEND_BASE_PORT"))
        ranges += _hccl(env, cluster)
    return list(dict.fromkeys(ranges))


def _hccl(env: t.Mapping[str, str | None], cluster: Cluster) -> list[PortRange]:
    """Where several processes share a die, HCCL is given ranges instead of a base; auto leaves the choice to the kernel."""
    given = env.get(HCCL_HOST_RANGE)
    if given is not None and (spans := host_ranges(given)) is not None:
        return [PortRange(first, last, HCCL, HCCL_HOST_RANGE) for first, last in spans]
    first = tables.port(env.get("HCCL_IF_BASE_PORT")) or tables.HCCL_BASE_DEFAULT
    return [PortRange(first, first + tables.hccl_port_count(cluster.versions) - 1, HCCL, "HCCL_IF_BASE_PORT")]


def host_ranges(text: str) -> list[tuple[int, int]] | None:
    """(first, last) of every part of HCCL_HOST_SOCKET_PORT_RANGE: ports and ranges with commas, or auto; None for others."""
    if text.strip().lower() == "auto":
        return []
    spans = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,5})\s*(?:-\s*([0-9]{1,5})\s*)?", part)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 < first <= last <= 65535:
            return None
        spans.append((first, last))
    return spans


def merged(ranges: t.Iterable[PortRange]) -> str:
    """One value for net.ipv4.ip_local_reserved_ports: sorted, joined where they touch.

    The kernel replaces its list by the value written, so a host gets all of its planned listeners in one. Without it
    an outgoing connection may sit on a planned port (Linux hands out 32768-60999; kv_port and HCCL lie there).
    """
    return kernel.joined((item.first, item.last) for item in ranges)

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The words of the product as data: what an inventory says and what a plan holds. No logic here.

Words are those of docs/architecture.md: a *cluster* has *instances* (one data-parallel group of one role); an
instance's share of one host is a *placement*; a placement runs *processes*, one per rank with external data
parallelism, one per host with internal.
"""

from __future__ import annotations

import dataclasses
import typing as t

Role = t.Literal["prefill", "decode"]
ROLES: tuple[Role, Role] = ("prefill", "decode")
Severity = t.Literal["error", "warning"]


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One result of a rule. host is an inventory host or, where a value belongs to all of them, an instance."""

    rule: str
    severity: Severity
    host: str | None
    variable: str | None
    value: t.Any
    message: str
    fix: str

    @property
    def see(self) -> str:
        return f"docs/rules.md#{self.rule}"


@dataclasses.dataclass(frozen=True, slots=True)
class Hardware:
    """Facts of one hardware generation (data/hardware.yml)."""

    name: str
    chips_per_node: int
    device_nodes: tuple[str, ...]
    mounts: tuple[str, ...]
    mount_types: t.Mapping[str, str]
    privileged: bool
    shm_size: str
    ulimits: tuple[str, ...]
    capabilities: tuple[str, ...]
    image_suffix: str


@dataclasses.dataclass(frozen=True, slots=True)
class Transport:
    """How a connector moves KV cache. binding_role listens on kv_port, the other side connects."""

    connector: str
    binding_role: Role
    counts_pp: bool
    counts_pcp: bool
    proxy_kind: t.Literal["prefill_first", "decode_first"]
    # Takes qos_priority in its settings.
    has_qos: bool = True
    # Decode stages KV cache in host memory and listens on control ports of its own (D2RH).
    stages: bool = False

    @property
    def initiator(self) -> Role:
        """The side that opens the transfer channel and so decides its QoS: decode pulls, prefill pushes."""
        return "decode" if self.binding_role == "prefill" else "prefill"


@dataclasses.dataclass(frozen=True, slots=True)
class Versions:
    """Versions inside an engine image; None where the tag does not tell.

    assumed: a given image tells no version, nor does the inventory, so the default stands in.
    """

    vllm_ascend: str
    cann: str | None
    mooncake: str | None
    hixl: str | None
    known: bool
    assumed: bool = False


@dataclasses.dataclass(slots=True)
class Member:
    """One host of an instance, with the values that may differ from host to host."""

    host: str
    node_ip: str
    ansible_host: str
    nic: str
    chips_per_node: int
    chips: list[int]
    mapped_chips: list[int]
    dp_size_local: int | None
    dp_rank_start: int | None
    mounts: list[str]
    kv_transfer_config: dict[str, t.Any]
    engine_args_extra: dict[str, t.Any]
    engine_env_extra: dict[str, t.Any]
    roce_addresses: dict[str, str]
    roce_library: str
    net_instance_id: str
    host_memory_gib: int | None


@dataclasses.dataclass(slots=True)
class Instance:
    """One data-parallel group of one role over its hosts, in rank order.

    complete is False when a fault in its variables leaves it without a layout; it is then named in findings only.
    given names the variables that the inventory sets for it, as opposed to what the plan works out.
    """

    name: str
    role: Role
    index: int
    members: list[Member]
    dp_size: int
    tp_size: int
    pp_size: int
    pcp_size: int
    dcp_size: int
    dp_mode: str
    dp_address: str | None
    dp_rpc_port: int | None
    api_port: int | None
    kv_port: int | None
    engine_args: dict[str, t.Any]
    engine_env: dict[str, t.Any]
    qos_priority: int | None
    d2rh_zmq_port: int | None
    d2rh_scheduler_ready_port: int | None
    kv_cache_gib: int | None
    given: frozenset[str]
    complete: bool = True
    # Whether its variables alone are good, so that its sizes can be judged where its ranks cannot be laid out.
    sized: bool = True

    @property
    def rank_width(self) -> int:
        """Chips of one data-parallel rank (tp x pp x pcp; dcp reuses the tp ranks)."""
        return self.tp_size * self.pp_size * self.pcp_size

    @property
    def hosts(self) -> list[str]:
        return [member.host for member in self.members]

    @property
    def external(self) -> bool:
        return self.dp_mode == "external"


@dataclasses.dataclass(slots=True)
class Cluster:
    """Everything an inventory says about one deployment, typed and with defaults filled in."""

    name: str
    hardware: Hardware
    fabric: str
    topology: str
    versions: Versions
    image: str
    model_path: str
    served_model_name: str
    model_is_moe: bool
    model_family: str
    connector: str
    mooncake_prefix: str | None
    kv_pool: dict[str, t.Any] | None
    pool_host: str | None
    pool_address: str | None
    kv_release_timeout: int
    port_reserve: str
    container_network: str
    container_privileged: bool
    container_memory_gib: int | None
    endpoint_dir: str
    endpoint_container_dir: str | None
    route_conf: bool | None
    proxy_host: str | None
    proxy_address: str | None
    proxy_port: int
    proxy_workers: int
    runtime: str
    engine_launcher: str
    engine_args_common: dict[str, t.Any]
    engine_env_common: dict[str, t.Any]
    instances: list[Instance]
    given: frozenset[str]
    production_runtime: str
    rehearsal: bool
    hardware_known: bool

    def of(self, role: Role) -> list[Instance]:
        return [instance for instance in self.instances if instance.role == role]


@dataclasses.dataclass(frozen=True, slots=True)
class PortRange:
    """TCP ports [first, last] on one host: who listens there and which variable moves it."""

    first: int
    last: int
    owner: str
    variable: str

    def overlaps(self, other: PortRange) -> bool:
        return self.first <= other.last and other.first <= self.last

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


@dataclasses.dataclass(slots=True)
class Process:
    """One `vllm serve`. api_port is None for a headless node of an internal data-parallel group."""

    dp_rank: int
    dp_ranks: list[int]
    visible_devices: str
    api_port: int | None
    env: dict[str, str | None] = dataclasses.field(default_factory=dict)
    argv: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Placement:
    """One instance's share of one host. A shadow stands for a share that cannot be laid out: only its options count."""

    instance: Instance
    member: Member
    dp_rank_start: int
    dp_size_local: int
    processes: list[Process]
    shadow: bool = False
    kv_listen: tuple[int, int] | None = None
    ports: list[PortRange] = dataclasses.field(default_factory=list)

    @property
    def host(self) -> str:
        return self.member.host

    @property
    def used_chips(self) -> list[int]:
        """Physical ids really computed on: as many as the local ranks need, in the order of pd_chips."""
        return self.member.chips[: self.dp_size_local * self.instance.rank_width]

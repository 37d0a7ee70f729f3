# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What is known of a host, as data: what its tools said (npu) and what the host itself is (host).

These are the shapes that the gathering modules return and the judgement reads. Every key may be missing: what is missing
is unknown, never good.
"""

from __future__ import annotations

import typing as t

State = t.Literal[
    "ok",
    "not_configured",
    "unsupported",
    "no_such_device",
    "busy",
    "timeout",
    "denied",
    "conf_unreadable",
    "tool_missing",
    "failed",
    "unknown",
]
Plane = t.Literal["hccs", "roce", "ub"]


# What npu_facts returns ---------------------------------------------------------------------------------------------


class Query(t.TypedDict, total=False):
    """One answer of hccn_tool or npu-smi about one chip; which fields there are depends on the question."""

    state: State
    text: str  # when not ok: how the output began
    link: str  # UP | DOWN; of the UB ports of A5 together also PARTIAL LINK | NA
    net_health: str  # Success | Init | Detect ip set | ...
    netdetect: str
    gateway: str
    iface: str
    ipaddr: str
    netmask: str
    tls_switch: int
    cert_expiration: str | int  # 0 or normal | 1 or near expiration | 2 or has expired
    ifname: str | None  # lldp
    system_name: str | None  # lldp
    super_pod_id: int
    sdid: int
    server_index: int
    super_pod_size: int


class Tool(t.TypedDict, total=False):
    path: str | None
    state: str  # ok | tool_missing | denied | failed | timeout
    text: str


class HccnConf(t.TypedDict, total=False):
    state: str  # ok | missing | is_directory | unreadable | malformed | empty | coming (this run writes it)
    chips: dict[str, dict[str, str]]
    lines_not_understood: list[str]


class ChipProcess(t.TypedDict, total=False):
    pid: int
    name: str
    memory_mb: int
    own: bool | None  # whether it is one of this very cluster; None where nobody has looked


class SmiChip(t.TypedDict, total=False):
    card: int
    chip: int
    name: str
    health: str
    bus_id: str
    temperature_c: int
    hbm_used_mb: int
    hbm_total_mb: int
    processes: list[ChipProcess]


class NpuSmi(t.TypedDict, total=False):
    state: str
    text: str
    code: int | None  # of the tool's own error, -8005 for one
    version: str | None
    chips: dict[str, SmiChip]


class Driver(t.TypedDict, total=False):
    driver: str | None
    firmware: str | None
    compatible_firmware: str | None  # ranges that the driver names: [7.0.0,8.9.9]
    install: dict[str, str]


class NpuFacts(t.TypedDict, total=False):
    tools: dict[str, Tool]
    hccn_conf: HccnConf
    npu_smi: NpuSmi
    driver: Driver
    chips: dict[str, dict[str, Query]]


# What host_facts returns --------------------------------------------------------------------------------------------


class Clock(t.TypedDict, total=False):
    """Seconds since 1970. The host read its clock at some moment between the controller's two."""

    host: float
    before: float  # the controller, just before it asked
    after: float  # the controller, when the answer had come


class Nic(t.TypedDict, total=False):
    addresses: list[str]  # with or without prefix length
    mtu: int
    state: str  # up | down | unknown, as in operstate


class Model(t.TypedDict, total=False):
    """A model's folder. Digests are SHA-256 of config.json and of the index of the weights; null without such a file."""

    state: str  # ok | missing | unreadable
    config_digest: str | None
    index_digest: str | None
    count: int  # files with weights
    bytes: int  # their sizes together


class Image(t.TypedDict, total=False):
    present: bool
    digest: str | None  # the image's id
    parts: str | None  # of an image that role mooncake derived: what it was made of


class Docker(t.TypedDict, total=False):
    version: str | None
    image: Image


class Probe(t.TypedDict, total=False):
    """One TCP connection that this host tried to a listener on another host."""

    to: str
    address: str
    port: int
    state: str  # open | refused | timeout | unreachable | unknown


class HostFacts(t.TypedDict, total=False):
    clock: Clock
    kernel: str
    memory_total_mb: int
    memory_available_mb: int
    hugepages_total: int
    hugepages_free: int
    hugepage_kb: int
    disks: dict[str, int]  # path -> free MB
    nics: dict[str, Nic]
    findings: list[dict[str, t.Any]]  # of the module host_check, as they are
    docker: Docker | None  # None: no container engine is needed, or none could be asked
    models: dict[str, Model]  # path on the host -> what is there
    probes: list[Probe]
    own_pids: list[int]  # processes of this very cluster that run here, by the host's count


class Facts(t.TypedDict, total=False):
    """One host. A half that is None was not gathered."""

    npu: NpuFacts | None
    host: HostFacts | None


# Pings --------------------------------------------------------------------------------------------------------------


class PingResult(t.TypedDict, total=False):
    """One ping, with both its ends by name."""

    from_host: str
    from_chip: int
    to_host: str
    to_chip: int
    address: str
    state: str
    text: str
    sent: int
    received: int
    loss_percent: float
    l1_plane: list[int]
    average_us: float
    max_us: float
    problems: list[str]


class LeftOut(t.TypedDict, total=False):
    """Pings that were not made. why: peer_cap | budget | no_address | no_other_host | no_ping | not_answered"""

    why: str
    host: str | None
    chips: list[int]
    pairs: int


class PingRun(t.TypedDict, total=False):
    mode: str
    plane: Plane
    results: list[PingResult]
    left_out: list[LeftOut]


# The plan, as much of it as is needed ---------------------------------------------------------------------------------


class HostView(t.TypedDict):
    node_ip: str
    nic: str | None  # None on a host that only has the proxy
    chips: list[int]  # physical ids that the containers see
    chips_per_node: int
    instances: list[str]
    roles: list[str]
    proxy: bool
    model_path: str | None  # on the host
    workers: int  # engine processes, one per chip
    memory_utilization: float  # the share of a chip's memory that the engine wants, the largest of its instances
    pool_mb: int  # host memory that the KV pool takes
    pool_arithmetic: str  # how that is made up
    pinned_mb: int  # host memory that decode stages KV cache in (D2RH)


class PoolView(t.TypedDict):
    """The master of the KV pool."""

    host: str | None  # None: of somebody else
    address: str
    port: int


class PlanView(t.TypedDict):
    name: str
    hardware: str
    plane: Plane
    topology: str
    runtime: str
    image: str
    versions: dict[str, str | None]
    rehearsal: bool
    pool: PoolView | None
    hosts: dict[str, HostView]

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The ``--kv-transfer-config`` of one engine: what is valid, and which ports follow from it."""

from __future__ import annotations

from vllm_sim.errors import Refusal, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from vllm_sim.settings import Parallel

PRODUCER = "kv_producer"
CONSUMER = "kv_consumer"
BOTH = "kv_both"
DEFAULT_PORT = 14579
D2RH = "MooncakeD2RHConnectorV1"
ASCEND_MODULE = "vllm_ascend.distributed.kv_transfer.kv_p2p.mooncake_connector"


class Connector:
    """How one Mooncake connector moves KV blocks and which side-channel ports its binding side takes."""

    __slots__ = ("binds", "flow", "name", "port_has_pcp", "port_has_pp")

    def __init__(self, name: str, flow: str, binds: str, port_has_pp: bool = True, port_has_pcp: bool = True) -> None:
        self.name = name
        self.flow = flow  # "pull": decode fetches after the prefill; "push": prefill sends
        self.binds = binds  # the kv_role whose workers listen; the other side only connects
        self.port_has_pp = port_has_pp
        self.port_has_pcp = port_has_pcp

    def ports_per_rank(self, tp: int, pp: int, pcp: int) -> int:
        return tp * (pp if self.port_has_pp else 1) * (pcp if self.port_has_pcp else 1)

    def base_port(self, kv_port: int, rank: int, tp: int, pp: int, pcp: int) -> int:
        """upstream: the offset counts the *global* data-parallel rank."""
        return kv_port + rank * self.ports_per_rank(tp, pp, pcp)


# upstream: V1 and Hybrid bind on the producer only, Layerwise on the consumer only; Hybrid has no PCP term (it needs
# pcp 1), Layerwise no PP term.
CONNECTORS = {
    connector.name: connector
    for connector in (
        Connector("MooncakeConnectorV1", "pull", PRODUCER),
        Connector("MooncakeHybridConnector", "pull", PRODUCER, port_has_pcp=False),
        Connector("MooncakeLayerwiseConnector", "push", CONSUMER, port_has_pp=False),
        Connector(D2RH, "pull", PRODUCER),
    )
}
# Registered by vLLM-Ascend 0.23, legal beside a transport inside a MultiConnector, no transport by themselves.
STORES = frozenset(
    (
        "AscendStoreConnector",
        "MooncakeConnectorStoreV1",
        "UCMConnector",
        "LMCacheAscendConnector",
        "OffloadingConnector",
        "SimpleCPUOffloadConnector",
        "RecomputeCPUOffloadConnector",
    )
)


class Side:
    """The sizes of one side as ``kv_connector_extra_config`` states them."""

    __slots__ = ("dp", "pp", "tp")

    def __init__(self, tp: int, dp: int, pp: int) -> None:
        self.tp = tp
        self.dp = dp
        self.pp = pp


class KvConfig:
    """A checked KV transfer configuration."""

    def __init__(
        self, config: dict[str, Any], parallel: Parallel, fields: frozenset[str], hybrid_manager: bool
    ) -> None:
        self.outer = config
        _check_fields(config, fields)
        self.role: str = config["kv_role"]
        self.transport = _transport(config, fields)
        self.connector = _connector(self.transport)
        self.port = _port(self.transport)
        self.engine_id: str | None = config.get("engine_id")
        self.recompute_failed = config.get("kv_load_failure_policy", "fail") == "recompute"
        extra = _extra(self.transport)
        self.prefill = _side(extra, "prefill")
        self.decode = _side(extra, "decode")
        self.d2rh_zmq_port = _integer(extra, "d2rh_zmq_port", 38100)
        self.d2rh_ready_port = _integer(extra, "d2rh_scheduler_ready_port", 38200)
        self.endpoint_folder: str | None = _extra(config).get("ascend_local_comm_res_path")
        # upstream: the connectors that know the priority write it into the resource configuration, 1 if none is given.
        self.qos: int | None = None if self.connector.name == D2RH else _qos(extra)
        for stated in (_extra(config), extra):
            _check_own_sizes(stated, self.role, parallel)
        self._check_relations(parallel, hybrid_manager)

    @property
    def stores(self) -> list[dict[str, Any]]:
        """The store children of a MultiConnector."""
        return [child for child in _extra(self.outer).get("connectors", []) if child["kv_connector"] in STORES]

    @property
    def listens(self) -> bool:
        """upstream: ``kv_both`` takes the receive branch of V1 and Hybrid, so it binds nothing there."""
        return self.role == self.connector.binds or (self.role == BOTH and self.connector.binds == CONSUMER)

    def base_port(self, rank: int, parallel: Parallel) -> int:
        return self.connector.base_port(self.port, rank, parallel.tp, parallel.pp, parallel.pcp)

    def listening_ports(self, rank: int, parallel: Parallel) -> list[int]:
        """Every side-channel port that the workers of one global rank bind, in worker order."""
        ports: list[int] = []
        if self.listens:
            base = self.base_port(rank, parallel)
            ports += range(base, base + self.connector.ports_per_rank(parallel.tp, parallel.pp, parallel.pcp))
        if self.stages:
            ports += self.pull_ports(rank, parallel)
            ports.append(self.ready_port(rank, parallel))
        return ports

    @property
    def stages(self) -> bool:
        """upstream: D2RH decode brings the blocks into host memory first, on orders from its own scheduler."""
        return self.connector.name == D2RH and self.role == CONSUMER

    def pull_ports(self, rank: int, parallel: Parallel) -> list[int]:
        """upstream: where each worker of a rank takes START_PULL from its scheduler."""
        base = self.d2rh_zmq_port + rank * parallel.world
        return list(range(base, base + parallel.world))

    def ready_port(self, rank: int, parallel: Parallel) -> int:
        """upstream: where the scheduler of a rank hears from its workers that the blocks are staged."""
        return self.d2rh_ready_port + rank * parallel.world

    def _check_relations(self, parallel: Parallel, hybrid_manager: bool) -> None:
        """upstream: the checks the connectors and the platform do before the first request."""
        name = self.connector.name
        if self.prefill.tp < self.decode.tp:
            raise Refusal(
                f"ValueError: prefill_tp_size: {self.prefill.tp} must be greater than or equal to "
                f"the decode_tp_size: {self.decode.tp}"
            )
        if self.prefill.tp % self.decode.tp:
            raise Refusal("AssertionError: Prefill TP size must be divisible by Decode TP size.")
        if self.decode.pp != 1 or (self.role == CONSUMER and parallel.pp != 1):
            raise Refusal("AssertionError: decode pp size must be 1")
        if self.role == PRODUCER and self.connector.flow == "pull" and self.prefill.pp != parallel.pp:
            # Upstream compares this nowhere, but decode then looks for the blocks at the wrong workers.
            raise Refusal(_conflict("prefill", "pipeline", parallel.pp, self.prefill.pp))
        if parallel.pp > 1 and parallel.pcp > 1:
            raise Refusal("AssertionError: pp and pcp cannot open in same time")
        if name == "MooncakeHybridConnector":
            if parallel.pcp * parallel.dcp != 1:
                raise Refusal("AssertionError: Mooncake Hybrid Connector only support cp_world_size == 1.")
            if not hybrid_manager:
                raise Refusal(
                    "ValueError: MooncakeHybridConnector transfers several KV cache groups, which needs the hybrid "
                    "KV cache manager: give --no-disable-hybrid-kv-cache-manager"
                )
        if name == "MooncakeLayerwiseConnector" and self.role != PRODUCER and parallel.pcp > 1:
            raise Refusal("AssertionError: Prefill context parallel is not support on decoder nodes")


def _check_fields(config: dict[str, Any], fields: frozenset[str]) -> None:
    """upstream: pydantic refuses unknown fields and values of ``KVTransferConfig`` while arguments are parsed."""
    option = "argument --kv-transfer-config:"
    unknown = sorted(set(config) - fields)
    if unknown:
        raise UsageError(f"{option} {', '.join(unknown)}: Unexpected keyword argument")
    if not config.get("kv_connector"):
        raise UsageError(f"{option} kv_connector is missing (this stand-in only plays prefill/decode engines)")
    if config.get("kv_role") not in (PRODUCER, CONSUMER, BOTH):
        raise UsageError(f"{option} kv_role: Input should be 'kv_producer', 'kv_both' or 'kv_consumer'")
    if config.get("kv_load_failure_policy", "fail") not in ("recompute", "fail"):
        raise UsageError(f"{option} kv_load_failure_policy: Input should be 'recompute' or 'fail'")
    if not isinstance(config.get("kv_connector_extra_config", {}), dict):
        raise UsageError(f"{option} kv_connector_extra_config: Input should be a valid dictionary")
    _port(config)


def _port(config: dict[str, Any]) -> int:
    raw = config.get("kv_port", DEFAULT_PORT)
    if isinstance(raw, bool) or not str(raw).strip().isdigit():
        raise UsageError(f"argument --kv-transfer-config: kv_port: Input should be a valid integer, got {raw!r}")
    return int(raw)


def _extra(config: dict[str, Any]) -> dict[str, Any]:
    extra: dict[str, Any] = config.get("kv_connector_extra_config", {})
    return extra


def _transport(config: dict[str, Any], fields: frozenset[str]) -> dict[str, Any]:
    """The configuration of the PD transport: the given one, or the one transport child of a MultiConnector."""
    if config["kv_connector"] != "MultiConnector":
        return config
    children = _extra(config).get("connectors")
    if not isinstance(children, list) or not children or not all(isinstance(child, dict) for child in children):
        raise Refusal("AssertionError: MultiConnector needs kv_connector_extra_config.connectors, a list of connectors")
    for child in children:
        _check_fields(child, fields)
        if child["kv_role"] != config["kv_role"]:
            raise Refusal(
                f"ValueError: MultiConnector is {config['kv_role']} but its child {child['kv_connector']} is "
                f"{child['kv_role']}"
            )
    transports = [child for child in children if child["kv_connector"] not in STORES]
    if not transports:
        raise Refusal("ValueError: MultiConnector has no child that transfers KV blocks between prefill and decode")
    if len(transports) > 1:
        raise Refusal("RuntimeError: Only one connector can produce KV transfer params")
    transport: dict[str, Any] = transports[0]
    return transport


def _connector(config: dict[str, Any]) -> Connector:
    name = config["kv_connector"]
    module = config.get("kv_connector_module_path")
    if name == "MooncakeConnector" and module == ASCEND_MODULE:
        name = "MooncakeConnectorV1"  # upstream: the module path wins over the registry
    elif module is not None and not module:
        raise Refusal("ValueError: kv_connector_module_path must not be an empty string")
    elif name == "MooncakeConnector":
        raise Refusal(
            f"ValueError: MooncakeConnector without kv_connector_module_path {ASCEND_MODULE} is vLLM's CUDA connector, "
            "which has no NPU transport"
        )
    if name in STORES:
        raise Refusal(f"ValueError: {name} stores KV blocks; it does not transfer them between prefill and decode")
    if name not in CONNECTORS:
        raise Refusal(f"ValueError: Unsupported connector type: {name}")
    return CONNECTORS[name]


def _integer(mapping: dict[str, Any], key: str, default: int | None = None) -> int:
    value = mapping.get(key, default)
    if value is None:
        raise Refusal(f"AssertionError: {key} is missing in kv_connector_extra_config")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Refusal(f"TypeError: {key} in kv_connector_extra_config must be a positive integer, got {value!r}")
    return value


def _side(extra: dict[str, Any], name: str) -> Side:
    """upstream: a missing size is a bare AssertionError in the worker; here it says what is missing."""
    sizes = extra.get(name)
    if not isinstance(sizes, dict) or "tp_size" not in sizes or "dp_size" not in sizes:
        raise Refusal(f'AssertionError: kv_connector_extra_config needs "{name}": {{"dp_size": N, "tp_size": N}}')
    return Side(_integer(sizes, "tp_size"), _integer(sizes, "dp_size"), _integer(sizes, "pp_size", 1))


def _qos(extra: dict[str, Any]) -> int:
    value = extra.get("qos_priority", 1)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 4:
        raise Refusal(f"ValueError: qos_priority must be an integer in [0, 4], got {value!r}")
    return value


def _check_own_sizes(extra: dict[str, Any], role: str, parallel: Parallel) -> None:
    """upstream: a producer compares ``prefill`` and a consumer ``decode`` with its own start options (since v0.12).

    Upstream compares the outer configuration only; a child of a MultiConnector is compared here as well.
    """
    for name, needed in (("prefill", PRODUCER), ("decode", CONSUMER)):
        sizes = extra.get(name)
        if role not in (needed, BOTH) or not isinstance(sizes, dict):
            continue
        for key, label, real in (("tp_size", "tensor", parallel.tp), ("dp_size", "data", parallel.dp)):
            if sizes.get(key, real) != real:
                raise Refusal(_conflict(name, label, real, sizes[key]))


def _conflict(side: str, label: str, real: int, stated: object) -> str:
    return (
        f"ValueError: KV transfer '{side}' config has a conflicting {label} parallel size. "
        f"Expected {real}, but got {stated}."
    )

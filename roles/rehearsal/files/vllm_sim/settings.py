# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Everything one engine is told: options, environment, and what follows from them without looking at the host."""

from __future__ import annotations

import json

from vllm_sim.errors import Refusal, UsageError
from vllm_sim.kv import BOTH, CONSUMER, PRODUCER, KvConfig
from vllm_sim.options import DEFAULT_VERSION, OptionTable, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# Known to the parser, but nothing stands behind them here: better refused than silently ignored.
_NOT_SIMULATED = (
    "--config",
    "--data-parallel-hybrid-lb",
    "--data-parallel-multi-port-external-lb",
    "--grpc",
    "--ssl-keyfile",
    "--uds",
)
_HALF_HOUR_MS = 1_800_000


class Parallel:
    """The parallel sizes of the engine and its place in the data-parallel group."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.tp = _size(values, "--tensor-parallel-size")
        self.pp = _size(values, "--pipeline-parallel-size")
        self.pcp = _size(values, "--prefill-context-parallel-size")
        self.dcp = _size(values, "--decode-context-parallel-size")
        self.dp = _size(values, "--data-parallel-size")
        self.headless = bool(values.get("--headless"))
        self.external = bool(values.get("--data-parallel-external-lb")) or "--data-parallel-rank" in values
        self.local, self.first_rank = self._place(values)
        self.address: str = values.get("--data-parallel-address", "127.0.0.1")
        self.rpc_port: int = values.get("--data-parallel-rpc-port", 29550)
        if self.dp > 1 and self.pcp > 1:
            raise Refusal("ValueError: PCP does not support data parallelism yet")
        if self.tp % self.dcp:
            raise Refusal(f"ValueError: tp_size={self.tp} must be divisible by dcp_size={self.dcp}.")

    def _place(self, values: Mapping[str, Any]) -> tuple[int, int]:
        """upstream: an external rank is one process per rank; otherwise the local size defaults to the whole group."""
        local = values.get("--data-parallel-size-local")
        start = values.get("--data-parallel-start-rank")
        if self.external:
            if start is not None:
                raise Refusal("ValueError: Cannot use more than one data parallel load balancing mode.")
            if self.headless:
                raise Refusal("ValueError: --headless is for internal load balancing, not with --data-parallel-rank")
            if "--data-parallel-rank" not in values:
                raise Refusal(
                    "AssertionError: data_parallel_rank must be specified if data_parallel_external_lb is enable."
                )
            if local not in (1, None):
                raise Refusal(
                    "AssertionError: data_parallel_size_local must be 1 or None when data_parallel_rank is set"
                )
            if self.dp == 1:
                raise Refusal("ValueError: data_parallel_external_lb can only be set when data_parallel_size > 1")
            local, start = 1, values["--data-parallel-rank"]
        if self.headless and not start:
            raise Refusal("RuntimeError: Remote engine 0: a --headless node needs --data-parallel-start-rank above 0")
        if start and local is None:
            raise Refusal("ValueError: --data-parallel-start-rank needs --data-parallel-size-local")
        if start and not self.headless and not self.external:
            raise Refusal("NotImplementedError: hybrid load balancing (a start rank, not headless) is not simulated")
        local = self.dp if local is None else local
        if local < 1:
            raise Refusal("ValueError: data_parallel_size_local must be > 0")
        if local > self.dp:
            raise Refusal(f"ValueError: data_parallel_size_local ({local}) must be <= data_parallel_size ({self.dp})")
        start = start or 0
        if not 0 <= start < self.dp:
            raise Refusal(f"ValueError: data_parallel_rank ({start}) must be in the range [0, {self.dp})")
        if start + local > self.dp:
            raise Refusal(f"ValueError: ranks {start} to {start + local - 1} exceed data_parallel_size ({self.dp})")
        return local, start

    @property
    def world(self) -> int:
        """Workers, and so chips, of one data-parallel rank."""
        return self.tp * self.pp * self.pcp

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + self.local)

    @property
    def spans_processes(self) -> bool:
        """upstream: only then is the data-parallel RPC port bound (by the process of rank 0)."""
        return self.local < self.dp


class Settings:
    """Options and environment of one engine, checked as far as that is possible without the host."""

    def __init__(self, argv: list[str], env: Mapping[str, str]) -> None:
        table = OptionTable.load(env.get("SIM_VLLM_VERSION", DEFAULT_VERSION))
        self.version = table.version
        self.model, self.values = parse(table, argv)
        for name in _NOT_SIMULATED:
            if self.values.get(name):
                raise Refusal(f"NotImplementedError: {name} is a real option, but this stand-in does not simulate it")
        if self.values.get("--nnodes", 1) != 1:
            raise Refusal("NotImplementedError: a rank wider than one host (--nnodes) is not simulated")
        self.names: list[str] = self.values.get("--served-model-name") or [self.model]
        self.host: str = self.values.get("--host", "")
        self.port: int = self.values.get("--port", 8000)
        if not 0 < self.port < 65536:
            raise UsageError("argument --port: Port must be between 1 and 65535")
        env_key = env.get("VLLM_API_KEY")
        self.api_keys: list[str] = self.values.get("--api-key") or ([env_key] if env_key else [])
        self.max_num_seqs = _size(self.values, "--max-num-seqs", 256)
        self.max_model_len: int = max(self.values.get("--max-model-len", 4096), 0) or 4096
        self.parallel = Parallel(self.values)
        if self.parallel.headless and (self.values.get("--api-server-count") or 0) > 0:
            raise Refusal("ValueError: --api-server-count cannot be used with --headless")
        self.kv = self._kv_config(table)
        self._check_additional_config()
        _check_resources(env)
        self.startup = _seconds(env, "SIM_STARTUP", 0.3)
        self.prefill_delay = _seconds(env, "SIM_PREFILL_DELAY", 0.05)
        self.token_delay = _seconds(env, "SIM_TOKEN_DELAY", 0.01)
        self.dp_timeout = _seconds(env, "SIM_DP_TIMEOUT", 600)
        self.push_timeout = _seconds(env, "SIM_PUSH_TIMEOUT", 30)
        self.connect_timeout = _seconds(env, "ASCEND_CONNECT_TIMEOUT", 3000) / 1000
        self.transfer_timeout = _seconds(env, "ASCEND_TRANSFER_TIMEOUT", _default_transfer_timeout(env)) / 1000
        # The name of v0.18 and later first; older images read the other.
        name = "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"
        name = name if name in env else "VLLM_NIXL_ABORT_REQUEST_TIMEOUT"
        self.abort_timeout = _seconds(env, name, 480)
        # upstream: development endpoints such as /reset_prefix_cache exist only with VLLM_SERVER_DEV_MODE=1
        self.dev_mode = env.get("VLLM_SERVER_DEV_MODE", "0") == "1"

    def _kv_config(self, table: OptionTable) -> KvConfig:
        config = self.values.get("--kv-transfer-config")
        if config is None:
            raise Refusal("ValueError: --kv-transfer-config is missing (this stand-in plays prefill and decode only)")
        hybrid_manager = self.values.get("--disable-hybrid-kv-cache-manager") is False
        return KvConfig(config, self.parallel, table.kv_fields, hybrid_manager)

    def _check_additional_config(self) -> None:
        """upstream: the keys of vLLM-Ascend's ``--additional-config`` that depend on the PD role."""
        additional = self.values.get("--additional-config", {})
        if additional.get("enable_balance_scheduling") and self.kv.role != BOTH:
            raise Refusal(
                "ValueError: enable_balance_scheduling only supports PD-mixed mode and is not supported in "
                "PD-disaggregated mode (kv_role='kv_producer'/'kv_consumer')."
            )
        if additional.get("recompute_scheduler_enable") and self.kv.role == BOTH:
            raise Refusal(
                "ValueError: recompute_scheduler_enable can only be enabled on PD-disaggregated D nodes "
                f"(kv_role='kv_consumer', but got kv_role={self.kv.role!r})"
            )

    @property
    def warnings(self) -> list[str]:
        """What the real engine starts with, but says it ignores."""
        found = []
        if self.values.get("--additional-config", {}).get("recompute_scheduler_enable") and self.kv.role == PRODUCER:
            found.append(
                "recompute_scheduler_enable is ignored on PD-disaggregated P nodes (kv_role='kv_producer'); "
                "keep it on D nodes only"
            )
        return found

    @property
    def group_config(self) -> dict[str, Any]:
        """What all ranks of one data-parallel group must have in common."""
        return {
            "model": self.model,
            "tensor_parallel_size": self.parallel.tp,
            "pipeline_parallel_size": self.parallel.pp,
            "prefill_context_parallel_size": self.parallel.pcp,
            "data_parallel_size": self.parallel.dp,
            "external_lb": self.parallel.external,
            "kv_connector": self.kv.connector.name,
            "kv_role": self.kv.role,
        }

    @property
    def role(self) -> str:
        return {PRODUCER: "prefill", CONSUMER: "decode", BOTH: "both"}[self.kv.role]


def _size(values: Mapping[str, Any], name: str, default: int = 1) -> int:
    value: int = values.get(name, default)
    if value < 1:
        raise UsageError(f"argument {name}: Input should be greater than or equal to 1, got {value}")
    return value


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    raw = env.get(name)
    if raw is None or raw == "":
        return default
    try:
        value = float(raw)
    except ValueError:
        value = -1
    if value < 0:
        raise Refusal(f"ValueError: environment variable {name} must be a number that is not negative, got {raw!r}")
    return value


def _check_resources(env: Mapping[str, str]) -> None:
    """What HIXL reads of the environment: JSON objects, and no plane that it cannot set up by itself."""
    for name in ("ASCEND_LOCAL_COMM_RES", "ASCEND_GLOBAL_RESOURCE_CONFIG"):
        raw = env.get(name)
        if raw is None:
            continue
        try:
            value = json.loads(raw)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise Refusal(f"ValueError: {name} must be a JSON object, got {raw!r}")
        planes = value.get("comm_resource_config.protocol_desc", [])
        planes = planes.split(",") if isinstance(planes, str) else planes
        if "roce:host" in planes:
            raise Refusal(
                "RuntimeError: TransferEngine initialization failed with ret_value: -1: roce:host by "
                f"{name} alone is not supported; Host RoCE needs endpoint files"
            )


def _default_transfer_timeout(env: Mapping[str, str]) -> float:
    """upstream: milliseconds from HCCL_RDMA_TIMEOUT (an exponent) and HCCL_RDMA_RETRY_CNT."""
    exponent = int(_seconds(env, "HCCL_RDMA_TIMEOUT", 20))
    retries = int(_seconds(env, "HCCL_RDMA_RETRY_CNT", 7))
    return min(4.096 * float(2**exponent) * retries // 1000 + 3000, _HALF_HOUR_MS)

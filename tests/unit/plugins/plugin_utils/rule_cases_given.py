# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Cases of rule_cases.py about what users add by hand: environment, kv-transfer keys, pool settings, tags of images."""

from __future__ import annotations

import typing as t

from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_case import Provoking, Quiet
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    ABSENT,
    DECODE_ARGS,
    PREFILL_ARGS,
    Source,
    a5,
    base,
    base_at,
    host_roce,
    one_host,
    roce,
    speculative,
)

HYBRID = "MooncakeHybridConnector"
COMMON = "pd_engine_env_common"
POOL_GROUP = {"kv_pool": {"hosts": ["p1"], "children": {}}}


def _env(**environment: t.Any) -> Source:
    return base(all={COMMON: environment})


def _pool(**settings: t.Any) -> Source:
    return base(groups=POOL_GROUP, all={"pd_kv_pool": settings})


def _pool_env(**environment: t.Any) -> Source:
    return base(groups=POOL_GROUP, all={"pd_kv_pool": {}, COMMON: environment})


def _with_version(source: Source, version: str) -> Source:
    for values in source["hosts"].values():
        values["pd_vllm_ascend_version"] = version
    return source


def _args(**options: t.Any) -> Source:
    return base(prefill={"pd_engine_args": {**PREFILL_ARGS, **options}})


ENVIRONMENT: list[Provoking | Quiet] = [
    *(
        Provoking(
            "environment-value",
            f"{name} is {value!r}",
            _env(**{name: value}),
            "p1",
            f"{COMMON}.{name}",
            str(value),
            (name, str(value), unit),
        )
        for name, value, unit in (
            ("ASCEND_CONNECT_TIMEOUT", "10s", "milliseconds"),
            ("ASCEND_CONNECT_TIMEOUT", 10, "milliseconds"),
            ("ASCEND_TRANSFER_TIMEOUT", 10.5, "milliseconds"),
            ("HCCL_RDMA_TIMEOUT", 60, "exponent"),
            ("HCCL_RDMA_RETRY_CNT", 0, "1 to 7"),
            ("HCCL_EXEC_TIMEOUT", -1, "seconds"),
            ("HCCL_CONNECT_TIMEOUT", "20m", "seconds"),
            ("HCCL_BUFFSIZE", "256MB", "MB"),
            ("ASCEND_BASE_PORT", "abc", "port"),
            ("ASCEND_BASE_PORT", 70000, "port"),
            ("HCCL_IF_BASE_PORT", "60000-60031", "port"),
            ("OMP_NUM_THREADS", 0, "threads"),
        )
    ),
    Provoking(
        "environment-value",
        "a pool's segment without a size",
        _pool_env(MOONCAKE_GLOBAL_SEGMENT_SIZE="lots"),
        "p1",
        f"{COMMON}.MOONCAKE_GLOBAL_SEGMENT_SIZE",
        "lots",
        ("lots", "GB", "pd_kv_pool.config.global_segment_size"),
    ),
    Quiet(
        "environment-value",
        "what recipes have",
        _env(
            HCCL_EXEC_TIMEOUT="204",
            HCCL_CONNECT_TIMEOUT="400",
            ASCEND_TRANSFER_TIMEOUT="10000",
            HCCL_BUFFSIZE="1100",
            VLLM_RPC_TIMEOUT="3600000",
            OMP_NUM_THREADS=10,
        ),
    ),
    Quiet("environment-value", "the edges", _env(HCCL_RDMA_TIMEOUT=5, ASCEND_CONNECT_TIMEOUT=100, HCCL_EXEC_TIMEOUT=0)),
    Provoking(
        "address-of-another-host",
        "a line copied to the next host",
        base(d2={"pd_engine_env_extra": {"HCCL_IF_IP": "192.0.2.21"}}),
        "d2",
        "pd_engine_env_extra.HCCL_IF_IP",
        "192.0.2.21",
        ("d2", "d1", "192.0.2.21", "pd_node_ip"),
    ),
    Provoking(
        "address-of-another-host",
        "the first host's for all, which have no pd_node_ip",
        base(
            all={COMMON: {"VLLM_HOST_IP": "192.0.2.11"}},
            **{
                host: {"pd_node_ip": ABSENT, "ansible_host": f"192.0.2.{last}"}
                for host, last in (("p1", 11), ("p2", 12), ("d1", 21), ("d2", 22))
            },
        ),
        "p2",
        f"{COMMON}.VLLM_HOST_IP",
        "192.0.2.11",
        ("p1", "d1", "d2"),
    ),
    *(
        Provoking(
            "address-of-another-host",
            value,
            base(p1={"pd_engine_env_extra": {"HCCL_IF_IP": value}}),
            "p1",
            "pd_engine_env_extra.HCCL_IF_IP",
            value,
            (value, "p1"),
        )
        for value in ("localhost", "127.0.0.1", "0.0.0.0", "2001:db8::11", "192.0.2.11/24", "")
    ),
    *(
        Provoking(
            "address-of-another-host",
            f"{about}: {name}",
            source,
            host,
            variable,
            value,
            (name, *says),
            alone="the proxy's" not in about,
        )
        for name in ("HCCL_IF_IP", "VLLM_HOST_IP", "MC_TCP_BIND_ADDRESS")
        for about, source, host, variable, value, says in (
            (
                "nobody's address, for all hosts",
                _env(**{name: "198.51.100.99"}),
                "p1",
                f"{COMMON}.{name}",
                "198.51.100.99",
                ("more than one host", "also on p2, d1, d2"),
            ),
            (
                "one address for both hosts of a role",
                base(prefill={"pd_engine_env": {name: "198.51.100.99"}}),
                "p1",
                f"pd_engine_env.{name}",
                "198.51.100.99",
                ("more than one host", "also on p2"),
            ),
            (
                "the management address of another host",
                base(p1={"ansible_host": "203.0.113.11"}, d2={"pd_engine_env_extra": {name: "203.0.113.11"}}),
                "d2",
                f"pd_engine_env_extra.{name}",
                "203.0.113.11",
                ("the address of p1",),
            ),
            (
                "the proxy's, which has no engine",
                base(
                    groups={"proxy": {"hosts": ["x1"]}},
                    more={"x1": {"pd_node_ip": "192.0.2.31"}},
                    d2={"pd_engine_env_extra": {name: "192.0.2.31"}},
                ),
                "d2",
                f"pd_engine_env_extra.{name}",
                "192.0.2.31",
                ("the address of x1",),
            ),
        )
    ),
    *(
        Provoking(
            "environment-overrides",
            f"perhaps another card's: {name}",
            base(
                d2={"pd_node_ip": ABSENT, "ansible_host": "192.0.2.22", "pd_engine_env_extra": {name: "198.51.100.22"}}
            ),
            "d2",
            f"pd_engine_env_extra.{name}",
            "198.51.100.22",
            (name, "198.51.100.22", "192.0.2.22", "pd_node_ip"),
            severity="warning",
        )
        for name in ("HCCL_IF_IP", "VLLM_HOST_IP", "MC_TCP_BIND_ADDRESS")
    ),
    *(
        Provoking(
            "environment-overrides",
            f"unset: {name}",
            base(all={"pd_nic": ABSENT, COMMON: {name: None}}),
            "p1",
            f"{COMMON}.{name}",
            None,
            (name, "unset", source, says, "also on p2, d1, d2"),
            severity="warning",
        )
        for name, source, says in (
            ("VLLM_HOST_IP", "pd_node_ip", "the address of the default route"),
            ("HCCL_IF_IP", "pd_node_ip", "chooses"),
            ("GLOO_SOCKET_IFNAME", "pd_nic", "chooses"),
            ("TP_SOCKET_IFNAME", "pd_nic", "chooses"),
            ("HCCL_SOCKET_IFNAME", "pd_nic", "chooses"),
        )
    ),
    Quiet(
        "address-of-another-host",
        "hosts behind one port forwarding",
        base(all={"ansible_host": "203.0.113.1"}, d2={"pd_engine_env_extra": {"VLLM_HOST_IP": "203.0.113.1"}}),
        clean=False,
    ),
    Quiet("environment-overrides", "what the plan does not set", _env(MC_TCP_BIND_ADDRESS=None)),
    Quiet("environment-overrides", "HCCL's word for this very card", _env(HCCL_SOCKET_IFNAME="=eth-data0")),
    Quiet("address-of-another-host", "a socket on every address", _env(MC_TCP_BIND_ADDRESS="0.0.0.0")),
    Quiet(
        "address-of-another-host",
        "another card of the same host",
        base(p1={"pd_engine_env_extra": {"HCCL_IF_IP": "198.51.100.11"}}),
        clean=False,
    ),
    Quiet(
        "address-of-another-host", "its own, once more", base(p1={"pd_engine_env_extra": {"HCCL_IF_IP": "192.0.2.11"}})
    ),
    *(
        Provoking(
            "http-proxy",
            name,
            _env(**{name: "http://198.51.100.1:3128"}),
            "p1",
            f"{COMMON}.{name}",
            "http://198.51.100.1:3128",
            (name, "NO_PROXY"),
            severity="warning",
        )
        for name in ("http_proxy", "HTTPS_PROXY")
    ),
    Quiet("http-proxy", "unset", _env(http_proxy=None, HTTPS_PROXY=None)),
    Quiet("http-proxy", "with exceptions", _env(http_proxy="http://198.51.100.1:3128", NO_PROXY="192.0.2.0/24")),
    *(
        Provoking(
            "timeout-name",
            name,
            _env(**{name: 1800}),
            "p1",
            f"{COMMON}.{name}",
            "1800",
            (name, "pd_kv_release_timeout"),
            severity="warning",
        )
        for name in ("VLLM_MOONCAKE_ABORT_REQ_TIMEOUT", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUTS")
    ),
    Quiet("timeout-name", "other limits", _env(VLLM_RPC_TIMEOUT=1800000, VLLM_ENGINE_READY_TIMEOUT_S=3600)),
    Provoking(
        "environment-overrides",
        "another master than the plan's",
        _pool_env(MOONCAKE_MASTER="192.0.2.99:50088"),
        "p1",
        f"{COMMON}.MOONCAKE_MASTER",
        "192.0.2.99:50088",
        ("192.0.2.99:50088", "192.0.2.11:50088"),
        severity="warning",
    ),
    Quiet("environment-overrides", "the plan's master", _pool_env(MOONCAKE_MASTER="192.0.2.11:50088")),
    Provoking(
        "kv-release-timeout",
        "an override that is no number is one finding",
        base(prefill={"pd_engine_env": {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "480s"}}),
        "p1",
        "pd_engine_env.VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT",
        "480s",
        ("480s", "no whole number"),
    ),
    Provoking(
        "port-range",
        "transports moved beyond the last port",
        _env(ASCEND_BASE_PORT=64000),
        "p1",
        f"{COMMON}.ASCEND_BASE_PORT",
        64000,
        ("64000-65599", "65535"),
    ),
    Provoking(
        "port-range",
        "HCCL moved beyond the last port",
        _env(HCCL_IF_BASE_PORT=65520),
        "p1",
        f"{COMMON}.HCCL_IF_BASE_PORT",
        65520,
        ("65520-65551",),
    ),
    Quiet("port-range", "moved as far as the image's Mooncake allows", _env(ASCEND_BASE_PORT=58000)),
    Provoking(
        "kv-port-reserve",
        "where the transfer engine was moved to",
        base(p1={"pd_engine_env_extra": {"MC_MIN_RPC_PORT": 36010, "MC_MAX_RPC_PORT": 37000}}),
        "p1",
        "pd_kv_port",
        36000,
        ("36000-36015", "36010-37000", "37001"),
    ),
    *(
        Provoking(
            "kv-port-reserve",
            f"moved under the misspelt names, {version}",
            _with_version(_env(MC_MIN_PRC_PORT=36000, MC_MAX_PRC_PORT=36500), version),
            "p1",
            "pd_kv_port",
            36000,
            ("36000-36500", "36501"),
            alone=False,
        )
        for version in ("v0.23.0", "v0.14.0rc1")
    ),
    Quiet(
        "kv-port-reserve",
        "a name that old Mooncake does not read moves nothing",
        _with_version(_env(MC_MIN_RPC_PORT=36000, MC_MAX_RPC_PORT=36500), "v0.18.0"),
        clean=False,
    ),
    *(
        Provoking(
            "environment-name",
            f"{name} with {version}",
            _with_version(_env(**{name: 40000}), version),
            "p1",
            f"{COMMON}.{name}",
            "40000",
            (name, mooncake, version, *says),
            severity="warning",
        )
        for name, version, mooncake, says in (
            ("MC_MIN_RPC_PORT", "v0.18.0", "0.3.9", ("set MC_MIN_PRC_PORT",)),
            ("MC_MAX_RPC_PORT", "v0.14.0rc1", "0.3.7.post2", ("set MC_MAX_PRC_PORT",)),
            ("ASCEND_BASE_PORT", "v0.14.0rc1", "0.3.7.post2", ("newer Mooncake",)),
        )
    ),
    *(
        Quiet("environment-name", about, _with_version(_env(**env), version))
        for about, version, env in (
            ("both names", "v0.18.0", {"MC_MAX_RPC_PORT": 18000, "MC_MAX_PRC_PORT": 18000}),
            ("the misspelt one, newer", "v0.23.0", {"MC_MAX_PRC_PORT": 18000}),
            ("the misspelt one, older", "v0.18.0", {"MC_MAX_PRC_PORT": 18000}),
        )
    ),
    Provoking(
        "environment-value",
        "no number under the misspelt name",
        _env(MC_MIN_PRC_PORT="many"),
        "p1",
        f"{COMMON}.MC_MIN_PRC_PORT",
        "many",
        ("MC_MIN_PRC_PORT", "port"),
    ),
    Quiet(
        "kv-port-reserve",
        "where the transfer engine was",
        base(p1={"pd_kv_port": 16000, "pd_engine_env_extra": {"MC_MIN_RPC_PORT": 40000, "MC_MAX_RPC_PORT": 42000}}),
    ),
]

_NO_BLOCK = {name: value for name, value in PREFILL_ARGS.items() if name != "block-size"}
_CONTEXT_PARALLEL = {"pd_dp_size": 1, "pd_dp_size_local": 1, "pd_pcp_size": 2}


def _interleaved(**options: t.Any) -> Source:
    """Context parallelism on prefill; decode keeps blocks of 128, which is the default too."""
    return base(prefill={**_CONTEXT_PARALLEL, "pd_engine_args": {**_NO_BLOCK, **options}})


def _ssd(*mounts: str, **cluster: t.Any) -> Source:
    config = {"enable_ssd_offload": True, "ssd_offload_path": "/ssd/pool"}
    return base(groups=POOL_GROUP, all={"pd_kv_pool": {"config": config}, "pd_mounts": [*mounts], **cluster})


def _protocol(protocol: str, **cluster: t.Any) -> dict[str, t.Any]:
    local = {"ock.mmc.local_service.protocol": protocol}
    return {"pd_kv_pool": {"backend": "memcache", "config": {"local": local}}, **cluster}


POOL_ON_DISK: list[Provoking | Quiet] = [
    Provoking(
        "pool-ssd",
        "no mount",
        _ssd(),
        "p1",
        "pd_kv_pool.config.ssd_offload_path",
        "/ssd/pool",
        ("no mount", "/ssd/pool", "also on p2, d1, d2", "pd_mounts"),
        severity="warning",
    ),
    Provoking(
        "pool-ssd",
        "a mount that cannot be written to",
        _ssd("/ssd:/ssd:ro"),
        "p1",
        "pd_kv_pool.config.ssd_offload_path",
        "/ssd/pool",
        ("read-only", "/ssd:/ssd:ro"),
        severity="warning",
    ),
    *(
        Quiet("pool-ssd", mount, _ssd(mount))
        for mount in ("/ssd/pool:/ssd/pool", "/mnt/nvme0:/ssd", "/mnt/nvme0:/ssd/pool/:rw")
    ),
    Quiet("pool-ssd", "processes have no container", _ssd(pd_runtime="process")),
    Provoking(
        "pool-protocol",
        "a2's on a3",
        base(groups=POOL_GROUP, all=_protocol("device_rdma")),
        "all",
        "pd_kv_pool.config.local.ock.mmc.local_service.protocol",
        "device_rdma",
        ("device_rdma", "a3 has device_sdma", "mmc-local.conf"),
        severity="warning",
    ),
    Provoking(
        "pool-protocol",
        "another fabric's",
        a5(groups=POOL_GROUP, all=_protocol("device_urma", pd_fabric="uboe")),
        "all",
        "pd_kv_pool.config.local.ock.mmc.local_service.protocol",
        "device_urma",
        ("a5 with uboe has device_uboe",),
        severity="warning",
        alone=False,
    ),
    Quiet("pool-protocol", "the planned one", base(groups=POOL_GROUP, all=_protocol("device_sdma"))),
]


TRANSFER: list[Provoking | Quiet] = [
    Provoking(
        "cp-interleave",
        "64 with the default of block-size",
        _interleaved(**{"cp-kv-cache-interleave-size": 64}),
        "p1",
        "pd_engine_args.cp-kv-cache-interleave-size",
        64,
        ("64", "block-size 128 (the default)", "p-a"),
        alone=False,
    ),
    Provoking(
        "cp-interleave",
        "both left at their defaults",
        _interleaved(),
        "p1",
        "pd_engine_args.cp-kv-cache-interleave-size",
        None,
        ("interleave-size 1 (the default)", "block-size 128 (the default)", "p-a"),
        severity="warning",
        alone=False,
    ),
    Quiet("cp-interleave", "128 with the default", _interleaved(**{"cp-kv-cache-interleave-size": 128}), clean=False),
    *(
        Provoking(
            "connector-version",
            version,
            base(all={"pd_vllm_ascend_version": version, "pd_connector": HYBRID}),
            "all",
            "pd_connector",
            HYBRID,
            (version, "0.20 or newer"),
            alone=False,
        )
        for version in ("v0.11.0", "v0.19.1rc1")
    ),
    Provoking(
        "connector-version",
        "a pool",
        _with_version(_pool(backend="mooncake"), "v0.11.0"),
        "all",
        "pd_kv_pool",
        {"backend": "mooncake"},
        ("AscendStoreConnector", "v0.11.0", "0.12 or newer"),
        alone=False,
    ),
    *(
        Quiet("connector-version", about, source, clean=False)
        for about, source in (
            ("a pool in the first that has it", _with_version(_pool_env(), "v0.12.0rc1")),
            *(
                (f"hybrid with {version}", base(all={"pd_vllm_ascend_version": version, "pd_connector": HYBRID}))
                for version in ("v0.20.2rc1", "v0.23.0", "main")
            ),
        )
    ),
    *(
        Provoking(
            "kv-transfer-key",
            where,
            base(p1={"pd_kv_transfer_config": config}),
            "p1",
            f"pd_kv_transfer_config.{where}",
            value,
            (where, f"did you mean {meant}?"),
            severity="warning",
        )
        for where, value, meant, config in (
            ("kv_connector_extra_cfg", {}, "kv_connector_extra_config", {"kv_connector_extra_cfg": {}}),
            ("kv_buffer_sizes", 1, "kv_buffer_size", {"kv_buffer_sizes": 1}),
            (
                "kv_connector_extra_config.prefil",
                {"tp_size": 8},
                "prefill",
                {"kv_connector_extra_config": {"prefil": {"tp_size": 8}}},
            ),
            (
                "kv_connector_extra_config.decode.tpsize",
                1,
                "tp_size",
                {"kv_connector_extra_config": {"decode": {"tpsize": 1}}},
            ),
        )
    ),
    *(
        Provoking(
            "variable-value",
            f"module path {value!r}",
            base(p1={"pd_kv_transfer_config": {"kv_connector_module_path": value}}),
            "p1",
            "pd_kv_transfer_config.kv_connector_module_path",
            value,
            ("kv_connector_module_path", "p1", "leave it out"),
        )
        for value in ("", "  ", 5)
    ),
    Quiet(
        "variable-value",
        "a module path that is not given",
        base(p1={"pd_kv_transfer_config": {"kv_connector_module_path": None}}),
    ),
    Quiet(
        "kv-transfer-key",
        "keys of somebody's own",
        base(p1={"pd_kv_transfer_config": {"site_note": "x", "kv_connector_extra_config": {"site": {"a": 1}}}}),
    ),
    Quiet(
        "kv-transfer-key",
        "what old recipes have",
        base(prefill={"pd_kv_transfer_config": {"kv_rank": 0, "kv_parallel_size": 1, "kv_buffer_device": "npu"}}),
    ),
    *(
        Provoking(
            "kv-load-failure-policy",
            repr(policy),
            base(prefill={"pd_kv_transfer_config": {"kv_load_failure_policy": policy}}),
            "p1",
            "pd_kv_transfer_config.kv_load_failure_policy",
            policy,
            (repr(policy), "fail or recompute", "p2"),
        )
        for policy in ("retry", "Fail", True, None)
    ),
    Provoking(
        "kv-load-failure-policy",
        "recompute with a hybrid model",
        base(
            all={"pd_model_family": "hybrid_mamba"},
            prefill=speculative(3),
            decode={"pd_kv_transfer_config": {"kv_load_failure_policy": "recompute"}},
        ),
        "d1",
        "pd_kv_transfer_config.kv_load_failure_policy",
        "recompute",
        ("hybrid", "d2"),
    ),
    *(
        Quiet(
            "kv-load-failure-policy",
            policy,
            base_at("decode", pd_kv_transfer_config={"kv_load_failure_policy": policy}),
        )
        for policy in ("fail", "recompute")
    ),
]

POOL: list[Provoking | Quiet] = [
    *(
        Provoking(
            "pool-unknown-setting",
            where,
            _pool(**settings),
            "all",
            f"pd_kv_pool.{where}",
            value,
            (where.rpartition(".")[2], says),
            severity="warning",
        )
        for where, value, settings, says in (
            ("load_asinc", True, {"load_asinc": True}, "did you mean load_async?"),
            ("prefil", {}, {"prefil": {}}, "did you mean prefill?"),
            ("decode.load_asinc", True, {"decode": {"load_asinc": True}}, "did you mean load_async?"),
            ("quux", 1, {"quux": 1}, "guide"),
        )
    ),
    Quiet(
        "pool-unknown-setting",
        "all that AscendStore reads",
        _pool(
            backend="memcache", use_layerwise=True, h2d_stagger_us=10, layerwise_prefetch_layers=2, lookup_rpc_port=0
        ),
    ),
    *(
        Provoking(
            "pool-nesting",
            f"{where}, one level too deep",
            _pool(**settings),
            "all",
            f"pd_kv_pool.{where}",
            value,
            (where, says),
        )
        for where, value, settings, says in (
            ("kv_connector_extra_config", {}, {"kv_connector_extra_config": {}}, "pd_kv_pool itself"),
            ("mooncake", {}, {"mooncake": {}}, "backend: mooncake"),
            ("memcache", {}, {"memcache": {}}, "pd_kv_pool.config"),
        )
    ),
    *(
        Provoking(
            "variable-value",
            f"pd_kv_pool.{where} is {value!r}",
            _pool(**settings),
            "all",
            f"pd_kv_pool.{where}",
            value,
            (where, repr(value), says),
        )
        for where, value, settings, says in (
            ("load_async", "true", {"load_async": "true"}, "true or false"),
            ("decode.consumer_is_to_put", 1, {"decode": {"consumer_is_to_put": 1}}, "true or false"),
            ("lookup_rpc_port", True, {"lookup_rpc_port": True}, "number"),
            ("config.global_segment_size", 64, {"config": {"global_segment_size": 64}}, "64GB"),
            ("config.global_segment_size", "64", {"config": {"global_segment_size": "64"}}, "64GB"),
            ("config.global_segment_size", "1TB", {"config": {"global_segment_size": "1TB"}}, "GB"),
            ("config.local_buffer_size", 1e9, {"config": {"local_buffer_size": 1e9}}, "size"),
            ("master.args.port", 50090, {"master": {"args": {"port": 50090}}}, "pd_kv_pool.master.port"),
            ("master.args.rpc_port", 50090, {"master": {"args": {"rpc_port": 50090}}}, "pd_kv_pool.master.port"),
            ("master.args.rpc_address", "x", {"master": {"args": {"rpc_address": "x"}}}, "kv_pool"),
            (
                "config.local.ock.mmc.local_service.dram.size",
                "lots",
                {"backend": "memcache", "config": {"local": {"ock.mmc.local_service.dram.size": "lots"}}},
                "size",
            ),
        )
    ),
    *(
        Provoking(
            "variable-value",
            f"a master at {address}",
            base(all={"pd_kv_pool": {"master": address}}),
            "all",
            "pd_kv_pool.master",
            address,
            (address, "4 hosts"),
        )
        for address in ("127.0.0.1:50088", "localhost:50088")
    ),
    Quiet("variable-value", "a pool without memory of its own", _pool(config={"global_segment_size": 0}), clean=False),
    Provoking(
        "variable-value",
        "pd_kv_pool is a word, which is not also a group without a pool",
        base(groups=POOL_GROUP, all={"pd_kv_pool": "mooncake"}),
        "p1",
        "pd_kv_pool",
        "mooncake",
        ("mapping", "mooncake"),
    ),
    Provoking(
        "pool-host",
        "two hosts, which are not also none",
        base(groups={"kv_pool": {"hosts": [], "children": {"a": ["p1"], "b": ["p2"]}}}, all={"pd_kv_pool": {}}),
        "kv_pool",
        None,
        ["p1", "p2"],
        ("2 hosts",),
    ),
    Provoking(
        "pool-lease-ttl",
        "said once, not once per instance",
        _pool(master={"default_kv_lease_ttl": 5000}),
        "p1",
        "pd_kv_pool.master.default_kv_lease_ttl",
        5000,
        ("5000", "33064"),
    ),
    Provoking(
        "listener-in-reserve",
        "the pool's master",
        _pool(master={"port": 20005}),
        "p1",
        "pd_kv_pool.master.port",
        20005,
        ("20005", "20000-35999"),
        severity="warning",
    ),
    Provoking(
        "instance-name",
        "that of the pool's container",
        base(groups={"prefill": {"hosts": [], "children": {"kv-pool": ["p1"], "p-b": ["p2"]}}}),
        "kv-pool",
        None,
        "kv-pool",
        ("kv-pool", "KV pool"),
    ),
]

IMAGES: list[Provoking | Quiet] = [
    *(
        Provoking("image-hardware", image, base(all={"pd_image": image}), "all", "pd_image", image, says)
        for image, says in (
            ("e/vllm-ascend:main", ("a3", "main", "a2 build")),
            ("e/vllm-ascend:nightly-main-openeuler", ("nightly-main-openeuler",)),
            ("e/vllm-ascend:nightly-main-a5", ("nightly-main-a5",)),
            ("e/vllm-ascend:v0.18.0-A3", ("A3", "v0.18.0-a3")),
            ("e/vllm-ascend:v0.18.0-a3-a2", ("a3-a2",)),
            ("e/vllm-ascend:v0.18.0-910b", ("910b", "v0.18.0-a3")),
            ("m.mirror.example/quay.io/ascend/vllm-ascend:v0.18.0-openeuler", ("openeuler (the a2 build)",)),
            ("e/vllm-ascend:v0.18.0@sha256:" + "0" * 64, ("empty (the a2 build)",)),
        )
    ),
    Provoking(
        "image-hardware",
        "a site's own image that speaks of a2",
        base(all={"pd_image": "registry.example/team/pd:prod-a2", "pd_vllm_ascend_version": "v0.23.0"}),
        "all",
        "pd_image",
        "registry.example/team/pd:prod-a2",
        ("a2", "a3"),
        severity="warning",
    ),
    *(
        Quiet("image-hardware", image, base(all={"pd_image": image, "pd_vllm_ascend_version": "v0.23.0"}))
        for image in (
            "registry.example/team/pd:v1.2",
            "registry.example/team/pd:latest",
            "registry.example/team/pd-a2:prod-a3",
            # A repository for each generation; a site's own build.
            "registry.example/team/vllm-ascend-a3:v0.23.0",
            "registry.example/team/vllm-ascend-patched:v0.23.0",
        )
    ),
    *(
        Quiet("image-hardware", image, base(all={"pd_image": image}))
        for image in (
            "registry.example:5000/e/vllm-ascend:0.18.0-a3",
            "e/vllm-ascend:v0.18.0-a3@sha256:" + "0" * 64,
            "e/vllm-ascend:v0.18.0-a3-patch.2",
        )
    ),
    Quiet("image-hardware", "a2 by name", one_host(host={"pd_image": "e/vllm-ascend:v0.18.0-a2"})),
    Quiet(
        "image-version",
        "an image of another name counts its own versions",
        base(all={"pd_image": "registry.example/team/pd:v1.2", "pd_vllm_ascend_version": "v0.23.0"}),
    ),
    *(
        Provoking(
            "version-unknown",
            image,
            base(all={"pd_image": image}),
            "all",
            "pd_image",
            image,
            ("tells no version", "v0.23.0"),
            severity="warning",
        )
        for image in ("e/vllm-ascend:main-a3", "e/vllm-ascend:latest", "e/vllm-ascend:V0.18.0-a3")
    ),
    Quiet(
        "version-unknown",
        "told beside a tag that does not",
        base(all={"pd_image": "e/vllm-ascend:main-a3", "pd_vllm_ascend_version": "v0.26.0"}),
    ),
    *(
        Provoking(
            "variable-value",
            f"{variable} is {value!r}",
            base(all={variable: value}),
            "p1",
            variable,
            value,
            (repr(value), says),
        )
        for variable, value, says in (
            ("pd_vllm_ascend_version", "v0.18.0-a3", "suffix"),
            ("pd_vllm_ascend_version", "V0.18.0", "small v"),
            ("pd_vllm_ascend_version", "v0.23.0 ", "blanks"),
            ("pd_vllm_ascend_version", 0.2, "quotes"),
            ("pd_cann_version", 9.1, "quotes"),
            ("pd_served_model_name", True, "quotes"),
            ("pd_hardware", "A3", "did you mean pd_hardware: a3?"),
            ("pd_hardware", "910C", "did you mean pd_hardware: a3?"),
            ("pd_hardware", "Atlas 800T A2", "did you mean pd_hardware: a2?"),
            ("pd_topology", "back-to-back", "did you mean pd_topology: back_to_back?"),
            ("pd_connector", "mooncake_connector_v1", "did you mean pd_connector: MooncakeConnectorV1?"),
            ("pd_dp_mode", "Internal", "did you mean pd_dp_mode: internal?"),
        )
    ),
]

OPTIONS: list[Provoking | Quiet] = [
    *(
        Provoking(
            "option-value",
            f"{name} is {value!r}",
            _args(**{name: value}),
            "p1",
            f"pd_engine_args.{name}",
            value,
            (repr(value), says),
        )
        for name, value, says in (
            ("gpu-memory-utilization", 90, "at most 1"),
            ("gpu-memory-utilization", 1.2, "at most 1"),
            ("gpu-memory-utilization", 0, "above 0"),
            ("max-num-seqs", 0, "1 or more"),
            ("block-size", 0, "1 or more"),
        )
    ),
    Quiet("option-value", "the edges", _args(**{"gpu-memory-utilization": 1, "max-num-seqs": 1})),
    Provoking(
        "option-value",
        "a misspelt key of the speculative configuration",
        _args(**{"speculative-config": {"num_speculative_token": 1, "method": "deepseek_mtp"}}),
        "p1",
        "pd_engine_args.speculative-config",
        "num_speculative_token",
        ("did you mean num_speculative_tokens?",),
    ),
    Provoking(
        "variable-value",
        "one option in two spellings",
        _args(**{"enforce-eager": True, "enforce_eager": False}),
        "p1",
        "pd_engine_args",
        {**PREFILL_ARGS, "enforce-eager": True, "enforce_eager": False},
        ("twice", "enforce-eager", "enforce_eager"),
    ),
    Provoking(
        "variable-value",
        "an option and its opposite",
        _args(**{"enable-prefix-caching": True, "no-enable-prefix-caching": True}),
        "p1",
        "pd_engine_args",
        {**PREFILL_ARGS, "enable-prefix-caching": True, "no-enable-prefix-caching": True},
        ("opposite",),
    ),
    Provoking(
        "speculative-tokens",
        "one key by an option of its own",
        _args(**{"speculative-config.num_speculative_tokens": 0}),
        "p1",
        "pd_engine_args.speculative-config.num_speculative_tokens",
        0,
        ("p-a", "1 or more"),
    ),
]

OTHERS: list[Provoking | Quiet] = [
    Provoking(
        "kv-cache-dtype",
        "of decode only",
        base(decode={"pd_engine_args": {**DECODE_ARGS, "kv-cache-dtype": "fp8"}}),
        "d1",
        "pd_engine_args.kv-cache-dtype",
        "fp8",
        ("p-a", "d-a", "auto", "fp8"),
    ),
    Provoking(
        "kv-cache-dtype",
        "of one prefill host only",
        base(p2={"pd_engine_args_extra": {"kv_cache_dtype": "fp8"}}),
        "p2",
        "pd_engine_args_extra.kv_cache_dtype",
        "fp8",
        ("p-a", "p-b"),
    ),
    Provoking(
        "kv-cache-dtype",
        "by the type of the model",
        base(
            prefill={"pd_engine_args": {**PREFILL_ARGS, "dtype": "bfloat16"}},
            decode={"pd_engine_args": {**DECODE_ARGS, "dtype": "float16"}},
        ),
        "d1",
        "pd_engine_args.dtype",
        "float16",
        ("bfloat16", "float16"),
    ),
    Quiet(
        "kv-cache-dtype",
        "auto, said and not said",
        base(decode={"pd_engine_args": {**DECODE_ARGS, "kv-cache-dtype": "auto"}}),
    ),
    Quiet("kv-cache-dtype", "one for all", base(all={"pd_engine_args_common": {"kv-cache-dtype": "fp8"}})),
    Quiet(
        "kv-cache-dtype",
        "the model's own, named once",
        base(decode={"pd_engine_args": {**DECODE_ARGS, "dtype": "bfloat16"}}),
    ),
    *(
        Provoking(
            "placeholder",
            f"{variable} is {value}",
            base(all={variable: value}),
            "p1",
            variable,
            value,
            (value,),
        )
        for variable, value in (
            ("pd_model_path", "/path-to-weight/M"),
            ("pd_model_path", "/your/model"),
            ("pd_model_path", "/home/xxx/models"),
            ("pd_model_path", "/models/xxxx"),
            ("pd_nic", "ethX"),
            ("pd_nic", "nic_name"),
        )
    ),
    *(
        Quiet("placeholder", value, base(all={variable: value}))
        for variable, value in (
            ("pd_model_path", "/models/xxl-7b"),
            ("pd_model_path", "/yourcompany/m"),
            ("pd_model_path", "/models/x"),
            ("pd_nic", "enx001122334455"),
            ("pd_nic", "ens0"),
        )
    ),
    Provoking(
        "variable-value",
        "two mounts at one place",
        base(all={"pd_mounts": ["/a:/b", "/c:/b/:ro"]}),
        "p1",
        "pd_mounts",
        ["/a:/b", "/c:/b/:ro"],
        ("two", "/b"),
    ),
    Provoking(
        "chip-not-there",
        "which is not also one that is not mapped",
        a5(p1={"pd_chips": [0, 8]}),
        "p1",
        "pd_chips",
        [0, 8],
        ("8", "0-7"),
        alone=False,
    ),
    Provoking(
        "variable-value",
        "refused addresses are not also missing ones",
        host_roce(p1={"pd_roce_addresses": ["198.51.100.1"]}),
        "p1",
        "pd_roce_addresses",
        ["198.51.100.1"],
        ("mapping",),
    ),
    Provoking(
        "roce-address-twice",
        "a copied block is one finding",
        host_roce(d1={"pd_roce_addresses": roce("p1")}),
        "d1",
        "pd_roce_addresses",
        "198.51.100.10",
        ("chip 0 on p1", "chip 0 on d1", "7 more"),
    ),
    Provoking(
        "resource-config",
        "one level too deep",
        _env(ASCEND_GLOBAL_RESOURCE_CONFIG={"comm_resource_config": {"protocol_desc": ["hccs:device"]}}),
        "p1",
        f"{COMMON}.ASCEND_GLOBAL_RESOURCE_CONFIG",
        '{"comm_resource_config":{"protocol_desc":["hccs:device"]}}',
        ("flat", "comm_resource_config.protocol_desc"),
        severity="warning",
    ),
]

GIVEN: list[Provoking | Quiet] = [*ENVIRONMENT, *TRANSFER, *POOL, *POOL_ON_DISK, *IMAGES, *OPTIONS, *OTHERS]

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Cases about the KV pool."""

from __future__ import annotations

import typing as t

from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.blocks import (
    POOL_HOST,
    with_pool,
    with_pool_env,
)
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.case import Provoking, Quiet
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    DECODE_ARGS,
    PREFILL_ARGS,
    Source,
    a5,
    base,
    one_host,
)


def _two_decode_on_one(pool: dict[str, t.Any]) -> dict[str, t.Any]:
    source = one_host(host={"pd_kv_pool": pool})
    source["groups"]["kv_pool"] = {"hosts": list(source["hosts"]), "children": {}}
    return source


def _ssd(*mounts: str, **cluster: t.Any) -> Source:
    config = {"enable_ssd_offload": True, "ssd_offload_path": "/ssd/pool"}
    return base(groups=POOL_HOST, all={"pd_kv_pool": {"config": config}, "pd_mounts": [*mounts], **cluster})


def _protocol(protocol: str, **cluster: t.Any) -> dict[str, t.Any]:
    local = {"ock.mmc.local_service.protocol": protocol}
    return {"pd_kv_pool": {"backend": "memcache", "config": {"local": local}}, **cluster}


POOL: list[Provoking | Quiet] = [
    Provoking(
        "pool-host",
        "two hosts in the group",
        base(groups={"kv_pool": {"hosts": ["p1", "p2"], "children": {}}}, all={"pd_kv_pool": {}}),
        "kv_pool",
        None,
        ["p1", "p2"],
        ("2 hosts", "p1, p2"),
        alone=False,
    ),
    Provoking(
        "pool-host",
        "a host and no pool",
        base(groups=POOL_HOST),
        "p1",
        "pd_kv_pool",
        None,
        ("p1", "not set"),
        severity="warning",
    ),
    Provoking(
        "pool-host",
        "a host and a master elsewhere",
        base(groups=POOL_HOST, all={"pd_kv_pool": {"master": "192.0.2.50:50088"}}),
        "p1",
        "pd_kv_pool.master",
        "192.0.2.50:50088",
        ("p1", "runs already"),
        severity="warning",
    ),
    Provoking(
        "port-conflict",
        "the pool's master on the proxy's port",
        with_pool(master={"port": 1999}),
        "p1",
        "pd_kv_pool.master.port",
        1999,
        ("the proxy", "kv pool master"),
    ),
    *(
        Provoking(
            "variable-value",
            f"pd_kv_pool.{where} is {value!r}",
            with_pool(**settings),
            "all",
            f"pd_kv_pool.{where}",
            value,
            (where, repr(value), *says),
        )
        for where, value, settings, says in (
            ("master", "host", {"master": "host"}, ("host:port",)),
            ("master", "192.0.2.1:99999", {"master": "192.0.2.1:99999"}, ("host:port",)),
            ("master", 50088, {"master": 50088}, ("host:port",)),
            ("config", [1], {"config": [1]}, ("mapping",)),
            ("decode", True, {"decode": True}, ("mapping",)),
            ("master.prot", 1, {"master": {"prot": 1}}, ("did you mean port?",)),
            ("master.args", "x", {"master": {"args": "x"}}, ("mapping",)),
            ("master.port", "50088", {"master": {"port": "50088"}}, ("1 to 65535",)),
            ("master.port", True, {"master": {"port": True}}, ("1 to 65535",)),
            ("master.eviction_ratio", 2, {"master": {"eviction_ratio": 2}}, ("at most 1",)),
            ("master.client_ttl", 0, {"master": {"client_ttl": 0}}, ("1 or more",)),
            ("config.global_segment_size", "1 XB", {"config": {"global_segment_size": "1 XB"}}, ("GB",)),
            (
                "config.global_segment_sise",
                "1GB",
                {"config": {"global_segment_sise": "1GB"}},
                ("did you mean global_seg",),
            ),
            ("config.protocol", "rdma", {"config": {"protocol": "rdma"}}, ("ascend",)),
            ("config.preferred_segment", "yes", {"config": {"preferred_segment": "yes"}}, ("true or false",)),
            (
                "config.master_server_address",
                "192.0.2.1:1",
                {"config": {"master_server_address": "192.0.2.1:1"}},
                ("pd_kv_pool.master",),
            ),
            ("config.locl", {}, {"backend": "memcache", "config": {"locl": {}}}, ("local or meta",)),
            ("master.args.rpc_threads", [1], {"master": {"args": {"rpc_threads": [1]}}}, ("one line",)),
            ("master.args.x", {"y": 1}, {"master": {"args": {"x": {"y": 1}}}}, ("one line",)),
            ("master.args.x", "a\nb", {"master": {"args": {"x": "a\nb"}}}, ("one line",)),
            ("master.args.--v", 1, {"master": {"args": {"--v": 1}}}, ("no name of a flag", "--help")),
            ("master.args.V v", 1, {"master": {"args": {"V v": 1}}}, ("no name of a flag",)),
            ("master.args.", 1, {"master": {"args": {"": 1}}}, ("no name of a flag",)),
            ("master.args.rpc-port", 1, {"master": {"args": {"rpc-port": 1}}}, ("use pd_kv_pool.master.port",)),
            ("config.global_segment_size", "64", {"config": {"global_segment_size": "64"}}, ("64 bytes", "64GB")),
            (
                "config.local.ock.mmc.log_level",
                ["error"],
                {"backend": "memcache", "config": {"local": {"ock.mmc.log_level": ["error"]}}},
                ("one line",),
            ),
            (
                "config.meta.log_level",
                "error",
                {"backend": "memcache", "config": {"meta": {"log_level": "error"}}},
                ("begin with ock.mmc.",),
            ),
            (
                "config.local.ock.mmc.local_service.dram.size",
                "lots",
                {"backend": "memcache", "config": {"local": {"ock.mmc.local_service.dram.size": "lots"}}},
                ("KB, MB or GB",),
            ),
        )
    ),
    *(
        Quiet("variable-value", f"pool settings {settings}", with_pool(**settings))
        for settings in (
            {"master": {"port": 51000, "metrics_port": 51001, "args": {"rpc_thread_num": 64}}},
            {"master": {"args": {"enable-ha": False, "cluster_id": "a b", "v": None, "ratio": 0.5}}},
            {"config": {"global_segment_size": 4 << 30, "local_buffer_size": "512 MB", "preferred_segment": True}},
            {"decode": {"load_async": True}, "prefill": {"discard_partial_chunks": False}},
            {"backend": "memcache", "config": {"local": {"ock.mmc.log_level": "error"}, "meta": {}}},
            {"backend": "memcache", "use_layerwise": True, "master": {"config_store_port": 6001}},
        )
    ),
    *(
        Provoking(
            "pool-no-memory",
            f"{where} is {value!r}",
            with_pool(**settings),
            "all",
            f"pd_kv_pool.config.{where}",
            value,
            (where, "holds nothing"),
            severity="warning",
        )
        for where, value, settings in (
            ("global_segment_size", 0, {"config": {"global_segment_size": 0}}),
            ("global_segment_size", "0 GB", {"config": {"global_segment_size": "0 GB"}}),
            (
                "local.ock.mmc.local_service.dram.size",
                "0GB",
                {"backend": "memcache", "config": {"local": {"ock.mmc.local_service.dram.size": "0GB"}}},
            ),
        )
    ),
    Quiet(
        "pool-no-memory",
        "one instance gives some",
        base(
            groups=POOL_HOST,
            all={"pd_kv_pool": {"config": {"global_segment_size": 0}}},
            decode={"pd_engine_env": {"MOONCAKE_GLOBAL_SEGMENT_SIZE": "4GB"}},
        ),
    ),
    *(
        Provoking(
            "pool-nesting",
            f"{where}",
            with_pool(**settings),
            "all",
            f"pd_kv_pool.{where}",
            value,
            (where, says),
        )
        for where, value, settings, says in (
            ("qos_priority", 2, {"qos_priority": 2}, "pd_qos_priority"),
            ("ascend_local_comm_res_path", "/x", {"ascend_local_comm_res_path": "/x"}, "outer config"),
            ("kv_load_failure_policy", "fail", {"kv_load_failure_policy": "fail"}, "outer config"),
            ("kv_role", "kv_both", {"kv_role": "kv_both"}, "inventory group"),
            ("prefill.tp_size", 8, {"prefill": {"tp_size": 8}}, "pd_tp_size"),
            ("decode.backend", "memcache", {"decode": {"backend": "memcache"}}, "as pd_kv_pool.backend"),
            ("global_segment_size", "1GB", {"global_segment_size": "1GB"}, "pd_kv_pool.config"),
            ("use_layerwise", True, {"use_layerwise": True}, "memcache"),
        )
    ),
    Provoking(
        "pool-lookup-port",
        "one value for two instances of a host",
        _two_decode_on_one({"backend": "mooncake", "lookup_rpc_port": 7}),
        "h1",
        "pd_kv_pool.lookup_rpc_port",
        7,
        ("lookup_rpc_port 7", "h1"),
    ),
    Quiet("pool-lookup-port", "one value, one instance a host", with_pool(lookup_rpc_port=7)),
    Quiet(
        "pool-lookup-port",
        "a value per role",
        _two_decode_on_one({"prefill": {"lookup_rpc_port": 0}, "decode": {"lookup_rpc_port": "1"}}),
    ),
    Provoking(
        "pool-hash-seed",
        "unset for prefill",
        base(groups=POOL_HOST, all={"pd_kv_pool": {}}, prefill={"pd_engine_env": {"PYTHONHASHSEED": None}}),
        "p1",
        "pd_engine_env.PYTHONHASHSEED",
        None,
        ("p-a", "unset"),
        alone=False,
    ),
    Provoking(
        "pool-hash-seed",
        "random for all",
        with_pool_env(PYTHONHASHSEED="random"),
        "p1",
        "pd_engine_env_common.PYTHONHASHSEED",
        "random",
        ("random",),
        alone=False,
    ),
    Provoking(
        "pool-hash-seed",
        "another one for decode",
        base(groups=POOL_HOST, all={"pd_kv_pool": {}}, decode={"pd_engine_env": {"PYTHONHASHSEED": "1"}}),
        "d1",
        "pd_engine_env.PYTHONHASHSEED",
        "1",
        ("d-a", "p-a", "is 0"),
        alone=False,
    ),
    Quiet("pool-hash-seed", "another one for all", with_pool_env(PYTHONHASHSEED="42"), clean=False),
    Provoking(
        "pool-prefix-caching",
        "off for prefill",
        base(
            groups=POOL_HOST,
            all={"pd_kv_pool": {}},
            prefill={"pd_engine_args": {**PREFILL_ARGS, "no-enable-prefix-caching": True}},
        ),
        "p1",
        "pd_engine_args.no-enable-prefix-caching",
        True,
        ("p-a", "prefix caching"),
        severity="warning",
    ),
    Quiet(
        "pool-prefix-caching",
        "off for decode",
        base(
            groups=POOL_HOST,
            all={"pd_kv_pool": {}},
            decode={"pd_engine_args": {**DECODE_ARGS, "no-enable-prefix-caching": True}},
        ),
    ),
    Provoking(
        "pool-lease-ttl",
        "the recipes' lease with the connector's own timeout",
        with_pool(master={"default_kv_lease_ttl": 11000}),
        "p1",
        "pd_kv_pool.master.default_kv_lease_ttl",
        11000,
        ("11000", "33064", "ASCEND_TRANSFER_TIMEOUT"),
        alone=False,
    ),
    Provoking(
        "pool-lease-ttl",
        "equal to the timeout",
        base(
            groups=POOL_HOST,
            all={
                "pd_kv_pool": {"master": {"default_kv_lease_ttl": 11000}},
                "pd_engine_env_common": {"ASCEND_TRANSFER_TIMEOUT": 10000, "ASCEND_CONNECT_TIMEOUT": 11000},
            },
        ),
        "p1",
        "pd_kv_pool.master.default_kv_lease_ttl",
        11000,
        ("11000", "ASCEND_CONNECT_TIMEOUT"),
        alone=False,
    ),
    Quiet(
        "pool-lease-ttl",
        "the recipes' lease with their timeouts",
        base(
            groups=POOL_HOST,
            all={
                "pd_kv_pool": {"master": {"default_kv_lease_ttl": 11000}},
                "pd_engine_env_common": {"ASCEND_TRANSFER_TIMEOUT": 10000, "ASCEND_CONNECT_TIMEOUT": 10000},
            },
        ),
    ),
    Provoking(
        "pool-fabric-memory",
        "no capacity given",
        with_pool_env(ASCEND_ENABLE_USE_FABRIC_MEM=1),
        "p1",
        "pd_engine_env.ASCEND_GLOBAL_RESOURCE_CONFIG",
        None,
        ("2.0 GB", "3 or more"),
        alone=False,
    ),
    Provoking(
        "pool-fabric-memory",
        "just what is pinned",
        with_pool_env(ASCEND_ENABLE_USE_FABRIC_MEM=1, ASCEND_GLOBAL_RESOURCE_CONFIG={"fabric_memory.max_capacity": 2}),
        "p1",
        "pd_engine_env.ASCEND_GLOBAL_RESOURCE_CONFIG",
        2.0,
        ("2.0 GB",),
        alone=False,
    ),
    Quiet(
        "pool-fabric-memory",
        "more than is pinned",
        with_pool_env(
            ASCEND_ENABLE_USE_FABRIC_MEM=1, ASCEND_GLOBAL_RESOURCE_CONFIG={"fabric_memory.max_capacity": "3"}
        ),
    ),
    Provoking(
        "pool-ssd",
        "without a path",
        with_pool(config={"enable_ssd_offload": True}),
        "all",
        "pd_kv_pool.config.ssd_offload_path",
        None,
        ("absolute",),
    ),
    Provoking(
        "pool-ssd",
        "an older Mooncake",
        base(
            groups=POOL_HOST,
            all={
                "pd_vllm_ascend_version": "v0.22.1rc1",
                "pd_kv_pool": {"config": {"enable_ssd_offload": True, "ssd_offload_path": "/ssd"}},
            },
        ),
        "all",
        "pd_kv_pool.config.enable_ssd_offload",
        True,
        ("0.3.9",),
        alone=False,
    ),
]

POOL_STAGES: list[Provoking | Quiet] = [
    Provoking(
        "variable-value",
        "other stages than prefill has",
        base(
            groups=POOL_HOST,
            all={"pd_kv_pool": {"prefill_pp_size": 4}},
            prefill={"pd_pp_size": 2, "pd_tp_size": 4},
        ),
        "all",
        "pd_kv_pool.prefill_pp_size",
        4,
        ("must be 2", "leave it out"),
    ),
    Quiet(
        "variable-value",
        "the stages that prefill has",
        base(
            groups=POOL_HOST,
            all={"pd_kv_pool": {"prefill_pp_size": "2"}},
            prefill={"pd_pp_size": 2, "pd_tp_size": 4},
        ),
    ),
]

_SEGMENTS = {"pd_kv_pool": {"config": {"global_segment_size": "64GB"}}}
POOL_MEMORY: list[Provoking | Quiet] = [
    *(
        Provoking(
            "pool-memory", variable, base(groups=POOL_HOST, all={**_SEGMENTS, variable: 800}), "p1", variable, 800, says
        )
        for variable, says in (
            ("pd_host_memory_gib", ("16 workers x (64 GB", "1040 GB", "the host has 800 GiB", "d2")),
            ("pd_container_memory_gib", ("1040 GB", "a container may use 800 GiB")),
        )
    ),
    Provoking(
        "pool-memory",
        "memcache",
        base(
            groups=POOL_HOST,
            all={
                "pd_kv_pool": {"backend": "memcache", "config": {"local": {"ock.mmc.local_service.dram.size": "64GB"}}},
                "pd_host_memory_gib": 1024,
            },
        ),
        "p1",
        "pd_host_memory_gib",
        1024,
        ("16 workers x (64 GB", "1024 GB"),
        alone=False,
    ),
    *(
        Quiet("pool-memory", variable, base(groups=POOL_HOST, all={**_SEGMENTS, variable: 1600}))
        for variable in ("pd_host_memory_gib", "pd_container_memory_gib")
    ),
]

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
        base(groups=POOL_HOST, all=_protocol("device_rdma")),
        "all",
        "pd_kv_pool.config.local.ock.mmc.local_service.protocol",
        "device_rdma",
        ("device_rdma", "a3 has device_sdma", "mmc-local.conf"),
        severity="warning",
    ),
    Provoking(
        "pool-protocol",
        "another fabric's",
        a5(groups=POOL_HOST, all=_protocol("device_urma", pd_fabric="uboe")),
        "all",
        "pd_kv_pool.config.local.ock.mmc.local_service.protocol",
        "device_urma",
        ("a5 with uboe has device_uboe",),
        severity="warning",
        alone=False,
    ),
    Quiet("pool-protocol", "the planned one", base(groups=POOL_HOST, all=_protocol("device_sdma"))),
]

POOL_BY_HAND: list[Provoking | Quiet] = [
    *(
        Provoking(
            "pool-unknown-setting",
            where,
            with_pool(**settings),
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
        with_pool(
            backend="memcache", use_layerwise=True, h2d_stagger_us=10, layerwise_prefetch_layers=2, lookup_rpc_port=0
        ),
    ),
    *(
        Provoking(
            "pool-nesting",
            f"{where}, one level too deep",
            with_pool(**settings),
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
            with_pool(**settings),
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
    Quiet(
        "variable-value", "a pool without memory of its own", with_pool(config={"global_segment_size": 0}), clean=False
    ),
    Provoking(
        "variable-value",
        "pd_kv_pool is a word, which is not also a group without a pool",
        base(groups=POOL_HOST, all={"pd_kv_pool": "mooncake"}),
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
        with_pool(master={"default_kv_lease_ttl": 5000}),
        "p1",
        "pd_kv_pool.master.default_kv_lease_ttl",
        5000,
        ("5000", "33064"),
    ),
    Provoking(
        "listener-in-reserve",
        "the pool's master",
        with_pool(master={"port": 20005}),
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

CASES: list[Provoking | Quiet] = [*POOL, *POOL_STAGES, *POOL_MEMORY, *POOL_ON_DISK, *POOL_BY_HAND]

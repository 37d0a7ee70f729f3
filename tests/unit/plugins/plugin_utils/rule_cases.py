# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""For every rule: inventories that provoke it, with what the finding must name, and near ones that must not.

A rule without an entry in PROVOKING fails test_catalog.py.
"""

from __future__ import annotations

import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils.masking import MASK
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.connectors import VLLM_ASCEND_MODULE
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_case import Provoking as Provoking
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_case import Quiet as Quiet
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases_a5 import A5
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases_given import GIVEN
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases_values import ABOUT_VALUES
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    ABSENT,
    DECODE_ARGS,
    NOT_READ,
    PREFILL_ARGS,
    base,
    one_host,
    speculative,
)

LAYERWISE = "MooncakeLayerwiseConnector"
HYBRID = "MooncakeHybridConnector"
MANAGER_ON = {"pd_engine_args_common": {"no-disable-hybrid-kv-cache-manager": True}}


def _decode(dp: int, tp: int, **more: t.Any) -> dict[str, t.Any]:
    """Decode's sizes over its two hosts, half the ranks on each."""
    return {"pd_dp_size": dp, "pd_tp_size": tp, "pd_dp_size_local": dp // 2, **more}


def _half(start: int) -> dict[str, t.Any]:
    return {"pd_dp_rank_start": start}


def _decode_on_one(**more: t.Any) -> dict[str, t.Any]:
    return {"pd_dp_size_local": ABSENT, "pd_dp_rank_start": ABSENT, **more}


INTERLEAVE = {"cp-kv-cache-interleave-size": 128}
ONE_DECODE_HOST = {"decode": {"hosts": [], "children": {"d-a": ["d1"]}}}
DP_1 = {"pd_dp_size": 1, "pd_dp_size_local": 1}

POOL_HOST = {"kv_pool": {"hosts": ["p1"], "children": {}}}


def _pool(**settings: t.Any) -> dict[str, t.Any]:
    """BASE with a pool whose master is on p1."""
    return base(groups=POOL_HOST, all={"pd_kv_pool": {"backend": "mooncake", **settings}})


def _pool_env(**environment: t.Any) -> dict[str, t.Any]:
    return base(groups=POOL_HOST, all={"pd_kv_pool": {"backend": "mooncake"}, "pd_engine_env_common": environment})


def _two_decode_on_one(pool: dict[str, t.Any]) -> dict[str, t.Any]:
    source = one_host(host={"pd_kv_pool": pool})
    source["groups"]["kv_pool"] = {"hosts": list(source["hosts"]), "children": {}}
    return source


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
        _pool(master={"port": 1999}),
        "p1",
        "pd_kv_pool.master.port",
        1999,
        ("the proxy", "kv pool master"),
    ),
    *(
        Provoking(
            "variable-value",
            f"pd_kv_pool.{where} is {value!r}",
            _pool(**settings),
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
        Quiet("variable-value", f"pool settings {settings}", _pool(**settings))
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
            _pool(**settings),
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
            _pool(**settings),
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
    Quiet("pool-lookup-port", "one value, one instance a host", _pool(lookup_rpc_port=7)),
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
        _pool_env(PYTHONHASHSEED="random"),
        "p1",
        "pd_engine_env.PYTHONHASHSEED",
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
    Quiet("pool-hash-seed", "another one for all", _pool_env(PYTHONHASHSEED="42"), clean=False),
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
        _pool(master={"default_kv_lease_ttl": 11000}),
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
        _pool_env(ASCEND_ENABLE_USE_FABRIC_MEM=1),
        "p1",
        "pd_engine_env.ASCEND_GLOBAL_RESOURCE_CONFIG",
        None,
        ("2.0 GB", "3 or more"),
        alone=False,
    ),
    Provoking(
        "pool-fabric-memory",
        "just what is pinned",
        _pool_env(ASCEND_ENABLE_USE_FABRIC_MEM=1, ASCEND_GLOBAL_RESOURCE_CONFIG={"fabric_memory.max_capacity": 2}),
        "p1",
        "pd_engine_env.ASCEND_GLOBAL_RESOURCE_CONFIG",
        2.0,
        ("2.0 GB",),
        alone=False,
    ),
    Quiet(
        "pool-fabric-memory",
        "more than is pinned",
        _pool_env(ASCEND_ENABLE_USE_FABRIC_MEM=1, ASCEND_GLOBAL_RESOURCE_CONFIG={"fabric_memory.max_capacity": "3"}),
    ),
    Provoking(
        "pool-ssd",
        "without a path",
        _pool(config={"enable_ssd_offload": True}),
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

GROUPS_AND_INSTANCES: list[Provoking | Quiet] = [
    Provoking(
        "role-without-hosts",
        "no decode group",
        base(groups={"decode": {}}),
        "decode",
        None,
        None,
        ("group decode", "no hosts"),
    ),
    Provoking(
        "role-without-hosts",
        "prefill has child groups, but all are empty",
        base(groups={"prefill": {"hosts": [], "children": {"p-a": [], "p-b": []}}}),
        "prefill",
        None,
        None,
        ("group prefill",),
    ),
    Quiet("role-without-hosts", "hosts directly in the role groups", one_host()),
    Provoking(
        "role-group-mixed",
        "a host beside the child groups",
        base(groups={"prefill": {"hosts": ["p1"], "children": {"p-b": ["p2"]}}}),
        "prefill",
        None,
        ["p1"],
        ("p1", "p-b"),
        alone=False,
    ),
    Provoking(
        "instance-without-hosts",
        "an empty child group",
        base(groups={"prefill": {"hosts": [], "children": {"p-a": ["p1"], "p-b": ["p2"], "p-c": []}}}),
        "p-c",
        None,
        None,
        ("p-c", "prefill"),
    ),
    Provoking(
        "instance-in-two-roles",
        "one group below prefill and decode",
        base(groups={"decode": {"hosts": [], "children": {"p-a": ["p1"], "d-a": ["d1", "d2"]}}}),
        "p-a",
        None,
        ["prefill", "decode"],
        ("p-a", "prefill", "decode"),
    ),
    Provoking("proxy-host", "nobody", base(groups={"proxy": {}}), "proxy", None, [], ("no host",)),
    Provoking(
        "proxy-host",
        "two",
        base(groups={"proxy": {"hosts": ["p1", "d2"]}}),
        "proxy",
        None,
        ["p1", "d2"],
        ("2 hosts", "p1, d2"),
    ),
    Quiet("proxy-host", "a decode host", base(groups={"proxy": {"hosts": ["d2"]}}), clean=False),
    Provoking(
        "host-in-several-instances",
        "a second role without pd_instances",
        base(groups={"decode": {"hosts": [], "children": {"d-a": ["d1", "d2", "p1"]}}}),
        "p1",
        "pd_instances",
        ["p-a", "d-a"],
        ("p1", "p-a", "d-a", "2 instances"),
        alone=False,
    ),
    Provoking(
        "host-in-several-instances",
        "an entry for one of two instances",
        one_host(host={"pd_instances": {"p-a": {"pd_dp_size": 2, "pd_tp_size": 2}}}),
        "h1",
        "pd_instances",
        ["d-a"],
        ("h1", "d-a"),
        alone=False,
    ),
    Quiet("host-in-several-instances", "an entry for each", one_host()),
    Provoking(
        "instance-entry",
        "an instance that is not there",
        base(all={"pd_instances": {"p-bb": {"pd_tp_size": 8}}}),
        "p1",
        "pd_instances",
        "p-bb",
        ("p-bb", "p-a, p-b, d-a", "did you mean p-b?"),
    ),
    Provoking(
        "instance-entry",
        "a variable of the whole cluster",
        base(all={"pd_instances": {"d-a": {"pd_connector": LAYERWISE}}}),
        "p1",
        "pd_instances.d-a.pd_connector",
        LAYERWISE,
        ("pd_connector", "d-a"),
    ),
    Quiet("instance-entry", "overrides of one instance", base(all={"pd_instances": {"p-b": {"pd_kv_port": 36100}}})),
    Provoking(
        "host-variable-unread",
        "values of a host beside pd_instances, one of them in one entry only",
        one_host(host={"pd_kv_port": 20000, "pd_api_port": 7300}, decode={"pd_api_port": 7200}),
        "h1",
        "pd_instances",
        ["pd_kv_port", "pd_api_port"],
        ("h1", "p-a, d-a", "pd_kv_port, pd_api_port", "2 instances"),
        severity="warning",
    ),
    Quiet(
        "host-variable-unread",
        "what is the machine's own, what every entry has, and what is the cluster's",
        one_host(
            host={"pd_nic": "eth7", "pd_tp_size": 8, "pd_dp_size": 1, "pd_cluster_name": "xy", "pd_kv_port": None},
        ),
    ),
    *(
        Provoking(
            "group-name",
            f"group {name} beside {near}",
            base(groups=groups, all=variables) | {"other_groups": {name: hosts, "elsewhere": ["x2"]}},
            name,
            None,
            ["x1"],
            (name, near, "x1"),
            severity="warning",
            alone=alone,
        )
        for name, near, hosts, groups, variables, alone in (
            ("kvpool", "kv_pool", ["x1"], {}, {}, True),
            ("KV-Pool", "kv_pool", ["x1"], {}, {"pd_kv_pool": {"backend": "mooncake"}}, False),
            ("prefil", "prefill", ["p1", "x1"], {}, {}, True),
            ("decoder", "decode", ["x1"], {}, {}, True),
            ("proxys", "proxy", ["x1"], {}, {}, True),
        )
    ),
    *(
        Quiet("group-name", about, base() | {"other_groups": groups})
        for about, groups in (
            ("a group of the same hosts", {"decoder": ["d1", "d2"]}),
            ("without hosts", {"decoder": []}),
            ("other names", {"pool": ["x1"], "prefill_racks": ["x1"], "npu": ["x1"]}),
        )
    ),
    Quiet(
        "group-name",
        "the role has no hosts, which names the group already",
        base(groups={"decode": {}}) | {"other_groups": {"decoder": ["d1"]}},
        clean=False,
    ),
    Provoking(
        "instance-of-groups",
        "two racks below one child group",
        base(
            groups={"decode": {"hosts": [], "children": {"d-a": ["d1", "d2"]}, "nested": {"d-a": ["rack1", "rack2"]}}}
        ),
        "d-a",
        None,
        ["rack1", "rack2"],
        ("d-a", "decode", "rack1, rack2", "one instance"),
        severity="warning",
    ),
    *(
        Provoking(
            "variable-value",
            f"option of a role: {name} is {value!r}",
            base(d1={name: value}),
            "d1",
            name,
            value,
            (name, *says),
        )
        for name, value, says in (
            ("mooncake_method", "whel", ("bundled, wheel, source", "did you mean wheel?", "'whel'")),
            ("mooncake_target", "images", ("prefix, image", "did you mean image?")),
            ("mooncake_jobs", "many", ("a whole number", "Parallel compilations")),
            ("mooncake_file", ["a"], ("must be text", "['a']")),
            ("mooncake_cmake_args", {"a": 1}, ("must be a list",)),
            ("preflight_gate", "of", ("error, warn, off", "did you mean off?")),
            ("hccn_overwrite", "perhaps", ("true or false",)),
            ("kv_pool_ready_timeout", [300], ("a whole number",)),
            ("engine_ready_timeout", None, ("a whole number", "for its default")),
            ("preflight_ping_budget", True, ("a whole number",)),
            ("preflight_ping_mode", None, ("ring, rail",)),
            ("hccn_conf", [{"address": "192.0.2.80"}], ("must be a mapping", "physical id")),
            ("hccn_conf", {"0": {"address": "192.0.2.80"}}, ("chip 0: give at least address and netmask",)),
            ("hccn_conf", '{"0": {"address": "192.0.2.80"}}', ("chip 0: give at least address and netmask",)),
            (
                "hccn_conf",
                {"16": {"address": "192.0.2.80", "netmask": "255.255.255.0"}},
                ("chip 16 is not there", "16 chips (0-15)"),
            ),
        )
    ),
    Provoking(
        "variable-value",
        "hccn_conf of a host with fewer chips",
        one_host(host={"pd_chips_per_node": 8, "hccn_conf": {"9": {"address": "192.0.2.80", "netmask": "255.0.0.0"}}}),
        "h1",
        "hccn_conf",
        {"9": {"address": "192.0.2.80", "netmask": "255.0.0.0"}},
        ("8 chips (0-7)",),
    ),
    *(
        Quiet("variable-value", f"option of a role: {variables}", base(all=variables))
        for variables in (
            {"mooncake_method": "wheel", "mooncake_version": 0.3, "mooncake_jobs": "4", "mooncake_check": "no"},
            {"preflight_gate": False, "hccn_conf": {}},
            {"hccn_conf": {"15": {"address": "192.0.2.80", "netmask": "255.255.255.0", "send_arp_status": 1}}},
            {"host_name": ["mine"], "image_of_mine": {}, "lock": "x"},
        )
    ),
]

VALUES: list[Provoking | Quiet] = [
    Provoking(
        "unknown-variable",
        "a spelling mistake",
        base(p1={"pd_kvport": 36000}),
        "p1",
        "pd_kvport",
        36000,
        ("pd_kvport", "did you mean pd_kv_port?"),
    ),
    Provoking(
        "unknown-variable",
        "far from every variable",
        base(d2={"pd_zzzzzzzz": 1}),
        "d2",
        "pd_zzzzzzzz",
        1,
        ("pd_zzzzzzzz",),
    ),
    Provoking(
        "unknown-variable",
        "in pd_instances",
        base(all={"pd_instances": {"d-a": {"pd_tp_sise": 1}}}),
        "p1",
        "pd_tp_sise",
        1,
        ("d-a", "did you mean pd_tp_size?"),
    ),
    *(
        # The run would go to the real hosts.
        Provoking(
            "unknown-variable", name, base(p1={name: "true"}), "p1", name, "true", ("did you mean pd_rehearsal?",)
        )
        for name in ("pd-rehearsal", "PD_REHEARSAL", "Pd_rehersal")
    ),
    Quiet("unknown-variable", "other people's variables", base(all={"pdu_name": "x", "ansible_user": "root"})),
    Quiet("unknown-variable", "other people's spelling", base(all={"PD_INSTANCE_COLOUR": "x", "pd-team": "y"})),
    Quiet("unknown-variable", "switches of a run", base(all={"pd_rehearsal": True, "pd_query": "findings"})),
    Provoking(
        "required-variable",
        "of the cluster",
        base(all={"pd_model_path": ABSENT}),
        "all",
        "pd_model_path",
        None,
        ("pd_model_path",),
    ),
    Provoking(
        "required-variable",
        "of one instance",
        base(p2={"pd_tp_size": ABSENT}),
        "p-b",
        "pd_tp_size",
        None,
        ("p-b", "p2"),
    ),
    Provoking(
        "required-variable",
        "null is not set",
        base(decode={"pd_dp_size": None}),
        "d-a",
        "pd_dp_size",
        None,
        ("d-a",),
    ),
    Provoking(
        "required-variable", "no hardware", base(all={"pd_hardware": ABSENT}), "all", "pd_hardware", None, ("a2, a3",)
    ),
    Provoking(
        "variable-value", "zero", base(p2={"pd_tp_size": 0}), "p2", "pd_tp_size", 0, ("pd_tp_size", "from 1 to 4096")
    ),
    Provoking(
        "variable-value", "a truth value", base(p2={"pd_tp_size": True}), "p2", "pd_tp_size", True, ("whole number",)
    ),
    Provoking(
        "variable-value", "a fraction", base(p2={"pd_dp_size": 2.5}), "p2", "pd_dp_size", 2.5, ("whole number", "2.5")
    ),
    Provoking(
        "variable-value",
        "a port above 65535",
        base(p2={"pd_kv_port": 65536}),
        "p2",
        "pd_kv_port",
        65536,
        ("1 to 65535", "65536"),
    ),
    Provoking(
        "variable-value",
        "hardware by the name on the machine",
        base(all={"pd_hardware": "850E"}),
        "p1",
        "pd_hardware",
        "850E",
        ("a2, a3, a5", "850E", "pd_hardware: a5"),
        alone=False,
    ),
    Provoking(
        "variable-value",
        "a mapping given as text",
        base(d2={"pd_engine_env_extra": "{'A': 1}"}),
        "d2",
        "pd_engine_env_extra",
        "{'A': 1}",
        ("mapping",),
    ),
    Quiet("variable-value", "a tuple, as an INI inventory has it", base(p1={"pd_chips": tuple(range(16))})),
    Provoking(
        "text-value",
        "a port",
        base(p1={"pd_kv_port": "36000"}),
        "p1",
        "pd_kv_port",
        "36000",
        ("'36000'", "36000"),
        severity="warning",
    ),
    Provoking(
        "text-value",
        "a truth value of the command line",
        base(all={"pd_model_is_moe": "True"}),
        "p1",
        "pd_model_is_moe",
        "True",
        ("'True'",),
        severity="warning",
    ),
    Provoking(
        "placeholder",
        "a network card",
        base(d2={"pd_nic": "xxxx"}),
        "d2",
        "pd_nic",
        "xxxx",
        ("pd_nic", "xxxx"),
    ),
    Provoking(
        "placeholder",
        "inside an option",
        base(d2={"pd_engine_args_extra": {"tokenizer": "/path_to_weight/M"}}),
        "d2",
        "pd_engine_args_extra",
        "/path_to_weight/M",
        ("/path_to_weight/M",),
    ),
    Quiet(
        "placeholder",
        "a template with angle brackets in an option",
        base(all={"pd_engine_args_common": {"chat-template": "<|im_start|>{{ role }}"}}),
    ),
    Provoking(
        "cluster-variable-differs",
        "one host with another connector",
        base(d1={"pd_connector": LAYERWISE}),
        "d1",
        "pd_connector",
        LAYERWISE,
        ("MooncakeConnectorV1", "p1", "d1"),
    ),
    Quiet("cluster-variable-differs", "given on one host only", base(p1={"pd_vllm_ascend_version": "v0.23.0"})),
    Provoking(
        "instance-variable-differs",
        "kv_port of one host of two",
        base(d2={"pd_kv_port": 36201}),
        "d2",
        "pd_kv_port",
        36201,
        ("36200", "d1", "36201", "d2", "d-a"),
    ),
    Quiet(
        "instance-variable-differs",
        "what may differ from host to host",
        base(d2={"pd_nic": "eth1", "pd_engine_env_extra": {"OMP_NUM_THREADS": "8"}}),
    ),
]

ADDRESSES: list[Provoking | Quiet] = [
    Provoking(
        "node-ip",
        "a host name",
        base(p2={"pd_node_ip": "p2.example"}),
        "p2",
        "pd_node_ip",
        "p2.example",
        ("IPv4", "p2.example"),
    ),
    Provoking(
        "node-ip",
        "neither pd_node_ip nor an address in ansible_host",
        base(p2={"pd_node_ip": ABSENT, "ansible_host": "p2.example"}),
        "p2",
        "pd_node_ip",
        "p2.example",
        ("ansible_host", "p2.example"),
    ),
    Quiet("node-ip", "ansible_host is enough", base(p2={"pd_node_ip": ABSENT, "ansible_host": "192.0.2.12"})),
    Provoking(
        "node-ip-v6",
        "pd_node_ip",
        base(p2={"pd_node_ip": "2001:db8::12"}),
        "p2",
        "pd_node_ip",
        "2001:db8::12",
        ("IPv6",),
    ),
    Provoking(
        "node-ip-v6",
        "ansible_host",
        base(p2={"pd_node_ip": ABSENT, "ansible_host": "2001:db8::12"}),
        "p2",
        "pd_node_ip",
        "2001:db8::12",
        ("IPv6",),
    ),
    Provoking(
        "node-ip-twice",
        "one host's address copied to the next",
        base(d2={"pd_node_ip": "192.0.2.21"}),
        "d2",
        "pd_node_ip",
        "192.0.2.21",
        ("d1", "d2", "192.0.2.21"),
    ),
    Provoking(
        "node-ip-twice",
        "a proxy host of its own",
        base(groups={"proxy": {"hosts": ["x1"]}}, more={"x1": {"pd_node_ip": "192.0.2.12"}}),
        "x1",
        "pd_node_ip",
        "192.0.2.12",
        ("p2", "x1"),
        alone=False,
    ),
    Provoking(
        "node-ip-loopback",
        "127.0.0.1",
        base(d2={"pd_node_ip": "127.0.0.1"}),
        "d2",
        "pd_node_ip",
        "127.0.0.1",
        ("d2", "127.0.0.1"),
    ),
    Provoking(
        "dp-address",
        "the second host's",
        base(decode={"pd_dp_address": "192.0.2.22"}),
        "d1",
        "pd_dp_address",
        "192.0.2.22",
        ("d-a", "192.0.2.22", "192.0.2.21"),
    ),
    Quiet("dp-address", "left out", base(all={"pd_dp_address": ABSENT})),
]

RANKS_AND_CHIPS: list[Provoking | Quiet] = [
    Provoking(
        "chip-not-there",
        "numbers above 15",
        base(p1={"pd_chips": list(range(8, 24))}),
        "p1",
        "pd_chips",
        list(range(8, 24)),
        ("16,17,18", "p1", "0-15"),
    ),
    Provoking(
        "chip-not-there",
        "a host with fewer chips",
        base(d1={"pd_chips_per_node": 8, "pd_chips": list(range(16))}),
        "d1",
        "pd_chips",
        list(range(16)),
        ("8,9,10", "0-7"),
    ),
    Provoking(
        "chip-not-mapped",
        "chip 5 of 0,3,4,7",
        one_host(
            prefill={"pd_chips": [4, 5], "pd_mapped_chips": [0, 3, 4, 7], "pd_tp_size": 1},
            decode={"pd_chips": [1, 2, 6], "pd_dp_size": 3},
        ),
        "h1",
        "pd_chips",
        [4, 5],
        ("5", "h1", "0,3,4,7"),
    ),
    Quiet(
        "chip-not-mapped",
        "a subset of the mapped chips",
        one_host(
            prefill={"pd_chips": [0, 3], "pd_mapped_chips": [0, 1, 2, 3], "pd_tp_size": 1},
        ),
    ),
    Provoking(
        "chips-claimed-twice",
        "prefill on 0-7, decode on 4-11",
        base(
            groups={"decode": {"hosts": [], "children": {"d-x": ["p1"]}}},
            p1=NOT_READ,
            all={
                "pd_instances": {
                    "p-a": {
                        "pd_dp_size": 1,
                        "pd_tp_size": 8,
                        "pd_chips": list(range(8)),
                        "pd_kv_port": 36000,
                        "pd_engine_args": PREFILL_ARGS,
                    },
                    "p-b": {"pd_dp_size": 1, "pd_dp_size_local": 1},
                    "d-x": {
                        "pd_dp_size": 8,
                        "pd_tp_size": 1,
                        "pd_chips": list(range(4, 12)),
                        "pd_engine_args": DECODE_ARGS,
                    },
                }
            },
        ),
        "p1",
        "pd_chips",
        list(range(4, 12)),
        ("4,5,6,7", "p-a", "d-x", "p1"),
    ),
    Provoking(
        "chips-claimed-twice",
        "no chips given at all",
        one_host(
            prefill={"pd_chips": None, "pd_dp_size": 1, "pd_tp_size": 1},
            decode={"pd_chips": None, "pd_dp_size": 1},
        ),
        "h1",
        "pd_chips",
        list(range(8)),
        ("0,1,2,3,4,5,6,7", "p-a", "d-a"),
    ),
    Quiet("chips-claimed-twice", "0-3 and 4-7", one_host()),
    Provoking(
        "chips-mapped-twice",
        "both containers see all chips",
        one_host(decode={"pd_mapped_chips": list(range(8))}),
        "h1",
        "pd_mapped_chips",
        list(range(8)),
        ("0,1,2,3", "p-a", "d-a"),
    ),
    Quiet("chips-mapped-twice", "no container", one_host(host={"pd_runtime": "process"})),
    Provoking(
        "instance-name",
        "a name with a blank",
        base(groups={"prefill": {"hosts": [], "children": {"p a": ["p1"], "p-b": ["p2"]}}}),
        "p a",
        None,
        "p a",
        ("'p a'",),
    ),
    Quiet(
        "instance-name", "dots and dashes", base(groups={"decode": {"hosts": [], "children": {"d-a.1": ["d1", "d2"]}}})
    ),
    Provoking(
        "template",
        "an undefined variable",
        {**base(), "broken": [{"host": "p1", "variable": "pd_nic", "message": "'x' is undefined"}]},
        "p1",
        "pd_nic",
        None,
        ("p1", "'x' is undefined"),
    ),
    Quiet("template", "none is broken", {**base(), "broken": []}),
    Provoking(
        "option-value",
        "a flag with a word",
        base(p2={"pd_engine_args_extra": {"enforce-eager": "maybe"}}),
        "p2",
        "pd_engine_args_extra.enforce-eager",
        "maybe",
        ("--enforce-eager", "'maybe'"),
    ),
    Quiet(
        "option-value",
        "numbers as text",
        base(p2={"pd_engine_args_extra": {"seed": "7", "gpu-memory-utilization": "0.9"}}),
    ),
    *(
        Provoking(
            "option-value",
            f"no size: {value!r}",
            base(p2={"pd_engine_args_extra": {name: value}}),
            "p2",
            f"pd_engine_args_extra.{name}",
            value,
            (f"--{name}", repr(value), "16k"),
        )
        for name, value in (
            ("max-model-len", "4'0 $HOME"),
            ("max_model_len", "1.5K"),
            ("max-model-len", -2),
            ("max-model-len", 1.5),
            ("max-model-len", True),
            ("max-model-len", ["16k"]),
            ("max-num-batched-tokens", "auto"),
            ("max-num-batched-tokens", "-1"),
            ("max-num-batched-tokens", "16x"),
        )
    ),
    *(
        Quiet("option-value", f"a size: {value!r}", base(p2={"pd_engine_args_extra": {name: value}}))
        for name, value in (
            *(("max-model-len", value) for value in (0, 4096, "4096", "16k", "1.5m", "2K", -1, "-1", "auto", "AUTO")),
            *(("max-num-batched-tokens", value) for value in (1, "8192", "8k", "1G")),
        )
    ),
    Quiet(
        "option-value",
        "another release than the table's",
        base(all={"pd_vllm_ascend_version": "v0.22.1rc1", "pd_engine_args_common": {"max-model-len": "?"}}),
    ),
    Provoking(
        "engine-id-differs",
        "two hosts, two ids",
        base(
            all={"pd_vllm_ascend_version": "v0.12.0rc1"},
            d1={"pd_kv_transfer_config": {"engine_id": "7"}},
            d2={"pd_kv_transfer_config": {"engine_id": "8"}},
        ),
        "d2",
        "pd_kv_transfer_config.engine_id",
        "8",
        ("d-a", "'8'", "d1"),
    ),
    Quiet("engine-id-differs", "one id", base(decode={"pd_kv_transfer_config": {"engine_id": "7"}})),
    Provoking(
        "unknown-option",
        "a misspelt option",
        base(p2={"pd_engine_args_extra": {"max-model-length": 1}}),
        "p2",
        "pd_engine_args_extra.max-model-length",
        1,
        ("--max-model-length", "max-model-len?"),
        severity="warning",
    ),
    Quiet(
        "unknown-option",
        "another release",
        base(all={"pd_vllm_ascend_version": "v0.22.1rc1"}, p2={"pd_engine_args_extra": {"x": 1}}),
    ),
    Provoking(
        "too-few-chips",
        "16 ranks of two chips on 16 chips",
        base(decode={"pd_tp_size": 2}),
        "d1",
        "pd_dp_size_local",
        16,
        ("32", "16", "d1"),
        alone=False,
    ),
    Provoking(
        "too-few-chips",
        "one rank wider than the host",
        base(p2={"pd_tp_size": 32, "pd_dp_size_local": ABSENT}),
        "p2",
        "pd_tp_size",
        32,
        ("32", "16", "p-b", "p2"),
    ),
    Provoking(
        "too-few-chips",
        "fewer ranks than hosts",
        base(decode={"pd_dp_size": 1, "pd_dp_size_local": ABSENT, "pd_dp_rank_start": ABSENT}, d1={}, d2={}),
        "d1",
        "pd_dp_size",
        1,
        ("2 hosts", "1"),
        alone=False,
    ),
    Provoking(
        "too-few-chips",
        "more ranks than all hosts take",
        base(decode={"pd_dp_size": 40, "pd_dp_size_local": ABSENT}, d1=_half(0), d2=_half(20)),
        "d1",
        "pd_dp_size",
        40,
        ("40", "32"),
    ),
    Quiet(
        "too-few-chips",
        "a chip list that is just long enough",
        base(p1={"pd_chips": list(range(16))}, d1={"pd_chips": list(range(16))}),
    ),
    Provoking(
        "dp-size-local",
        "three of two",
        base(p2={"pd_dp_size_local": 3}),
        "p2",
        "pd_dp_size_local",
        3,
        ("p2", "3", "2", "p-b"),
    ),
    Quiet("dp-size-local", "-1 means all", base(prefill={"pd_dp_size_local": -1})),
    Provoking(
        "dp-ranks",
        "the second host starts inside the first",
        base(prefill={"pd_tp_size": 8}, decode=_decode(16, 2), d2=_half(4)),
        "d2",
        "pd_dp_rank_start",
        4,
        ("4-7", "d1", "d2"),
        alone=False,
    ),
    Provoking(
        "dp-ranks",
        "one rank nowhere",
        base(d2={"pd_dp_size_local": 15}),
        "d2",
        "pd_dp_rank_start",
        16,
        ("31", "d-a"),
    ),
    Quiet("dp-ranks", "given exactly", base(decode=_decode(16, 2), d2=_half(8))),
]

SIZES: list[Provoking | Quiet] = [
    Provoking(
        "role-sizes-differ",
        "prefill instances of other widths",
        base(p2={"pd_tp_size": 4}),
        "p-b",
        "pd_tp_size",
        4,
        ("4", "8", "p-a", "p-b"),
    ),
    Provoking(
        "role-sizes-differ",
        "prefill instances of other lengths",
        base(p2={"pd_dp_size": 1, "pd_dp_size_local": 1}),
        "p-b",
        "pd_dp_size",
        1,
        ("1", "2", "p-a", "p-b"),
    ),
    Provoking(
        "tp-prefill-below-decode",
        "2 below 4",
        base(prefill={"pd_tp_size": 2}, decode=_decode(8, 4), d2=_half(4)),
        "p-a",
        "pd_tp_size",
        2,
        ("2", "4", "d-a"),
    ),
    Provoking(
        "tp-not-divisible",
        "6 and 4",
        base(prefill={"pd_tp_size": 6}, decode=_decode(8, 4), d2=_half(4)),
        "p-a",
        "pd_tp_size",
        6,
        ("6", "4", "d-a"),
    ),
    Quiet("tp-not-divisible", "8 and 4", base(decode=_decode(8, 4), d2=_half(4))),
    Provoking(
        "tp-hybrid-mamba-differs",
        "8 and 1",
        base(
            all={"pd_connector": HYBRID, "pd_model_family": "hybrid_mamba", **MANAGER_ON},
            prefill=speculative(1),
            decode=speculative(1),
        ),
        "p-a",
        "pd_tp_size",
        8,
        ("8", "1", HYBRID),
    ),
    Quiet("tp-hybrid-mamba-differs", "another model family", base(all={"pd_connector": HYBRID, **MANAGER_ON})),
    Provoking(
        "decode-pp",
        "pp 2",
        base(decode=_decode(16, 1, pd_pp_size=2), d2=_half(8)),
        "d-a",
        "pd_pp_size",
        2,
        ("d-a", "2"),
    ),
    Quiet("decode-pp", "pp on prefill", base(prefill={"pd_pp_size": 2, "pd_tp_size": 4})),
    Provoking(
        "decode-pcp",
        "layerwise",
        base(
            groups=ONE_DECODE_HOST,
            all={"pd_connector": LAYERWISE},
            d1=_decode_on_one(pd_dp_size=1, pd_pcp_size=2),
        ),
        "d-a",
        "pd_pcp_size",
        2,
        ("d-a", LAYERWISE),
        alone=False,
    ),
    Provoking(
        "pp-with-pcp",
        "both 2",
        base(prefill={**DP_1, "pd_tp_size": 4, "pd_pp_size": 2, "pd_pcp_size": 2}),
        "p-a",
        "pd_pcp_size",
        2,
        ("p-a", "pd_pp_size 2"),
        alone=False,
    ),
    Provoking(
        "pcp-with-dp",
        "dp 2",
        base(prefill={"pd_tp_size": 4, "pd_pcp_size": 2}),
        "p-a",
        "pd_pcp_size",
        2,
        ("p-a", "pd_dp_size 2"),
        alone=False,
    ),
    Quiet("pcp-with-dp", "one rank", base(prefill={**DP_1, "pd_pcp_size": 2, "pd_engine_args_extra": INTERLEAVE})),
    Provoking(
        "dcp-differs",
        "2 and 1",
        base(prefill={"pd_dcp_size": 2}),
        "d-a",
        "pd_dcp_size",
        1,
        ("2", "1", "p-a", "d-a"),
        alone=False,
    ),
    Quiet(
        "dcp-differs",
        "8 and 8",
        base(
            all={"pd_engine_args_common": {"cp-kv-cache-interleave-size": 128}},
            prefill={"pd_dcp_size": 8},
            decode=_decode(4, 8, pd_dcp_size=8),
            d2=_half(2),
        ),
    ),
    Provoking(
        "dcp-not-in-tp",
        "3 of 8",
        base(prefill={"pd_dcp_size": 3}),
        "p-a",
        "pd_dcp_size",
        3,
        ("3", "8", "p-a"),
        alone=False,
    ),
    Provoking(
        "hybrid-context-parallel",
        "pcp on prefill",
        base(all={"pd_connector": HYBRID, **MANAGER_ON}, prefill={**DP_1, "pd_pcp_size": 2}),
        "p-a",
        "pd_pcp_size",
        2,
        ("p-a", HYBRID),
        alone=False,
    ),
    Provoking(
        "dense-data-parallel",
        "BASE as a dense model",
        base(all={"pd_model_is_moe": False}),
        "d-a",
        "pd_dp_size",
        32,
        ("d-a", "32"),
        alone=False,
    ),
    Quiet(
        "dense-data-parallel",
        "one rank each",
        base(
            groups=ONE_DECODE_HOST,
            all={"pd_model_is_moe": False},
            prefill=DP_1,
            decode=_decode_on_one(pd_dp_size=1),
        ),
    ),
]

PORTS: list[Provoking | Quiet] = [
    Provoking(
        "port-range",
        "kv_port",
        base(p1={"pd_kv_port": 65530}),
        "p1",
        "pd_kv_port",
        65530,
        ("65530-65545", "65535", "p-a"),
    ),
    Provoking(
        "port-range",
        "api_port",
        base(d1={"pd_api_port": 65525}, d2={"pd_api_port": 65525}),
        "d1",
        "pd_api_port",
        65525,
        ("65525-65540", "d-a"),
        alone=False,
    ),
    Quiet("port-range", "up to 65535", base(p1={"pd_kv_port": 65520})),
    Provoking(
        "port-conflict",
        "the proxy on an API port",
        base(all={"pd_proxy_port": 7101}),
        "p1",
        "pd_proxy_port",
        7101,
        ("7101", "7100-7101", "p-a", "proxy"),
    ),
    Provoking(
        "port-conflict",
        "kv_port and API",
        base(p2={"pd_kv_port": 7090}),
        "p2",
        "pd_api_port",
        7100,
        ("7090-7105", "7100-7101", "p-b"),
    ),
    Provoking(
        "port-conflict",
        "RPC on an API port",
        base(p2={"pd_dp_rpc_port": 7101}),
        "p2",
        "pd_dp_rpc_port",
        7101,
        ("7101", "7100-7101", "p-b"),
    ),
    Quiet("port-conflict", "the proxy just behind the API ports", base(all={"pd_proxy_port": 7102})),
    Quiet("port-conflict", "one kv_port for instances on two hosts", base(p2={"pd_kv_port": 36000})),
    Provoking(
        "kv-port-reserve",
        "20002",
        base(p1={"pd_kv_port": 20002}),
        "p1",
        "pd_kv_port",
        20002,
        ("20002", "20000-35999", "36000", "p1", "p-a"),
    ),
    Provoking(
        "kv-port-reserve",
        "the block's last port is the reserve's first",
        base(p1={"pd_kv_port": 19985}),
        "p1",
        "pd_kv_port",
        19985,
        ("19985-20000", "36000"),
    ),
    Provoking(
        "kv-port-reserve",
        "the block's first port is the reserve's last",
        base(p1={"pd_kv_port": 35999}),
        "p1",
        "pd_kv_port",
        35999,
        ("35999", "36000"),
    ),
    Provoking(
        "kv-port-reserve",
        "HCCL's ports",
        base(p1={"pd_kv_port": 60020}),
        "p1",
        "pd_kv_port",
        60020,
        ("60020-60035", "60000-60031", "60032"),
    ),
    Provoking(
        "kv-port-reserve",
        "Mooncake's own range",
        base(p1={"pd_kv_port": 16000}),
        "p1",
        "pd_kv_port",
        16000,
        ("15000-17000", "36000"),
    ),
    Provoking(
        "kv-port-reserve",
        "a side that only connects",
        base(decode={"pd_kv_port": 20002}),
        "d1",
        "pd_kv_port",
        20002,
        ("20000-35999", "d-a"),
        severity="warning",
    ),
    Quiet("kv-port-reserve", "just below", base(p1={"pd_kv_port": 19984})),
    Quiet("kv-port-reserve", "just above", base(p1={"pd_kv_port": 36000})),
    Quiet("kv-port-reserve", "the measured range", base(all={"pd_port_reserve": "measured"}, p1={"pd_kv_port": 30000})),
    Provoking(
        "kv-port-shared",
        "one value for both roles",
        one_host(prefill={"pd_kv_port": 28000}, decode={"pd_kv_port": 28000}),
        "h1",
        "pd_kv_port",
        28000,
        ("28000", "p-a", "d-a", "h1"),
        severity="warning",
    ),
    Quiet("kv-port-shared", "on different hosts", base(decode={"pd_kv_port": 36000})),
    Provoking(
        "listener-in-reserve",
        "API ports",
        base(p2={"pd_api_port": 20000}),
        "p2",
        "pd_api_port",
        20000,
        ("20000-20001", "20000-35999", "p-b"),
        severity="warning",
    ),
    Quiet("listener-in-reserve", "just below", base(p2={"pd_api_port": 19998})),
]

IMAGE: list[Provoking | Quiet] = [
    Provoking(
        "image-version",
        "tag and version",
        base(all={"pd_image": "quay.example/a/vllm-ascend:v0.18.0-a3", "pd_vllm_ascend_version": "v0.23.0"}),
        "all",
        "pd_vllm_ascend_version",
        "v0.23.0",
        ("v0.23.0", "v0.18.0"),
    ),
    Quiet(
        "image-version",
        "the same, one without v",
        base(all={"pd_image": "quay.example/a/vllm-ascend:v0.18.0-a3", "pd_vllm_ascend_version": "0.18.0"}),
    ),
    Provoking(
        "image-hardware",
        "the a2 build on a3",
        base(all={"pd_image": "example/vllm-ascend:v0.18.0"}),
        "all",
        "pd_image",
        "example/vllm-ascend:v0.18.0",
        ("a3", "v0.18.0-a3"),
    ),
    Provoking(
        "image-hardware",
        "the a3 build on a2",
        one_host(host={"pd_image": "example/vllm-ascend:v0.18.0-a3"}),
        "all",
        "pd_image",
        "example/vllm-ascend:v0.18.0-a3",
        ("a2", "a3"),
    ),
    Provoking(
        "image-hardware",
        "310p",
        base(all={"pd_image": "example/vllm-ascend:v0.18.0-310p-openeuler"}),
        "all",
        "pd_image",
        "example/vllm-ascend:v0.18.0-310p-openeuler",
        ("310p",),
    ),
    Quiet("image-hardware", "openEuler", base(all={"pd_image": "example/vllm-ascend:v0.18.0-a3-openeuler"})),
    Quiet("image-hardware", "a2 and openEuler", one_host(host={"pd_image": "e/vllm-ascend:v0.18.0-openeuler"})),
    *(
        Quiet("image-hardware", about, base(all={"pd_image": image, "pd_vllm_ascend_version": "v0.23.0"}))
        for about, image in (
            ("a private image", "registry.example:5000/team/pd:2026-11"),
            ("a digest", "e/vllm-ascend@sha256:" + "0" * 64),
        )
    ),
    Provoking(
        "version-unknown",
        "the future",
        base(all={"pd_vllm_ascend_version": "v0.99.0"}),
        "all",
        "pd_vllm_ascend_version",
        "v0.99.0",
        ("v0.99.0",),
        severity="warning",
    ),
    Provoking(
        "version-unknown",
        "a branch",
        base(all={"pd_vllm_ascend_version": "main"}),
        "all",
        "pd_vllm_ascend_version",
        "main",
        ("main",),
        severity="warning",
    ),
]

CONNECTOR: list[Provoking | Quiet] = [
    Provoking(
        "connector-plain-mooncake",
        "without a module path",
        base(all={"pd_connector": "MooncakeConnector"}),
        "p1",
        "pd_connector",
        "MooncakeConnector",
        ("CUDA", VLLM_ASCEND_MODULE),
        alone=False,
    ),
    Quiet(
        "connector-plain-mooncake",
        "with vLLM-Ascend's module path",
        base(
            all={
                "pd_connector": "MooncakeConnector",
                "pd_kv_transfer_config": {"kv_connector_module_path": VLLM_ASCEND_MODULE},
            }
        ),
    ),
    Provoking(
        "kv-transfer-contradiction",
        "decode's tp_size",
        base(d1={"pd_kv_transfer_config": {"kv_connector_extra_config": {"decode": {"tp_size": 4}}}}),
        "d1",
        "pd_kv_transfer_config.kv_connector_extra_config.decode.tp_size",
        4,
        ("4", "1", "d1"),
    ),
    Provoking(
        "kv-transfer-contradiction",
        "a pp_size that the plan leaves out",
        base(p2={"pd_kv_transfer_config": {"kv_connector_extra_config": {"prefill": {"pp_size": 2}}}}),
        "p2",
        "pd_kv_transfer_config.kv_connector_extra_config.prefill.pp_size",
        2,
        ("2", "1"),
    ),
    Provoking(
        "kv-transfer-contradiction",
        "the role",
        base(p2={"pd_kv_transfer_config": {"kv_role": "kv_both"}}),
        "p2",
        "pd_kv_transfer_config.kv_role",
        "kv_both",
        ("kv_both", "kv_producer"),
    ),
    Provoking(
        "kv-transfer-contradiction",
        "the port",
        base(d2={"pd_kv_transfer_config": {"kv_port": 36201}}),
        "d2",
        "pd_kv_transfer_config.kv_port",
        36201,
        ("36201", "36200", "pd_kv_port"),
    ),
    Provoking(
        "kv-transfer-contradiction",
        "connectors of one's own",
        base(
            p2={
                "pd_kv_transfer_config": {
                    "kv_connector_extra_config": {
                        "connectors": [{"kv_connector": LAYERWISE}, {"kv_connector": "AscendStoreConnector"}]
                    }
                }
            }
        ),
        "p2",
        "pd_kv_transfer_config.kv_connector_extra_config.connectors",
        [{"kv_connector": LAYERWISE}, {"kv_connector": "AscendStoreConnector"}],
        ("pd_kv_pool",),
    ),
    Provoking(
        "kv-transfer-contradiction",
        "text where a mapping belongs",
        base(p2={"pd_kv_transfer_config": {"kv_connector_extra_config": "x"}}),
        "p2",
        "pd_kv_transfer_config.kv_connector_extra_config",
        "x",
        ("mapping",),
    ),
    Quiet(
        "kv-transfer-contradiction",
        "repeating the plan",
        base(
            p1={
                "pd_kv_transfer_config": {
                    "kv_port": 36000,
                    "kv_role": "kv_producer",
                    "kv_connector_extra_config": {"decode": {"dp_size": "32", "pp_size": 1}},
                }
            }
        ),
    ),
    Quiet(
        "kv-transfer-contradiction",
        "what is the user's to say",
        base(
            prefill={
                "pd_kv_transfer_config": {
                    "kv_buffer_device": "npu",
                    "kv_load_failure_policy": "fail",
                    "kv_connector_extra_config": {"prefill": {"pp_layer_partition": "30,31"}},
                }
            }
        ),
    ),
    *(
        Provoking(
            "kv-release-timeout",
            f"{seconds} s",
            base(all={"pd_kv_release_timeout": seconds}),
            "all",
            "pd_kv_release_timeout",
            seconds,
            (str(seconds), "480"),
        )
        for seconds in (5, 10, 59, 0, -1)
    ),
    *(
        Quiet("kv-release-timeout", f"{seconds} s", base(all={"pd_kv_release_timeout": seconds}))
        for seconds in (60, 480, 1800)
    ),
    Provoking(
        "engine-id-twice",
        "a warning where releases make it unique",
        base(p2={"pd_kv_transfer_config": {"engine_id": "2"}}, d1={"pd_kv_transfer_config": {"engine_id": "2"}}),
        "d1",
        "pd_kv_transfer_config.engine_id",
        "2",
        ("p-b", "p2", "d-a", "d1", "'2'"),
        severity="warning",
    ),
    Provoking(
        "engine-id-twice",
        "an error before 0.13; 0 and '0' are one id",
        base(
            all={"pd_vllm_ascend_version": "v0.12.0"},
            p2={"pd_kv_transfer_config": {"engine_id": 0}},
            d1={"pd_kv_transfer_config": {"engine_id": "0"}},
        ),
        "d1",
        "pd_kv_transfer_config.engine_id",
        "0",
        ("p2", "d1", "'0'"),
    ),
    Quiet(
        "engine-id-twice",
        "one id on the hosts of one instance",
        base(
            all={"pd_vllm_ascend_version": "v0.12.0"},
            p1={"pd_kv_transfer_config": {"engine_id": "0"}},
            p2={"pd_kv_transfer_config": {"engine_id": "1"}},
            decode={"pd_kv_transfer_config": {"engine_id": "2"}},
        ),
    ),
    Provoking(
        "layerwise-with-pool",
        "mooncake backend",
        base(all={"pd_connector": LAYERWISE, "pd_kv_pool": {"backend": "mooncake"}}),
        "all",
        "pd_kv_pool",
        [LAYERWISE, "AscendStoreConnector"],
        (LAYERWISE, "AscendStoreConnector"),
        alone=False,
    ),
    *(
        Provoking(
            "variable-value",
            f"a pool's backend is {backend!r}",
            base(all={"pd_kv_pool": {"backend": backend}}),
            "all",
            "pd_kv_pool.backend",
            backend,
            ("mooncake", "memcache", repr(backend)),
            alone=False,
        )
        for backend in ("redis", "Mooncake", ["mooncake"], 1)
    ),
    *(
        Quiet("variable-value", f"a pool: {pool}", base(all={"pd_kv_pool": pool}), clean=False)
        for pool in ({}, {"backend": "memcache"}, {"backend": "yuanrong"})
    ),
    Provoking(
        "pool-not-started",
        "V1 beside a pool",
        base(all={"pd_kv_pool": {"backend": "mooncake"}}),
        "all",
        "pd_kv_pool",
        {"backend": "mooncake"},
        ("master", "kv_pool"),
        severity="warning",
    ),
    Provoking(
        "pool-not-started",
        "a backend that is not deployed",
        base(groups=POOL_HOST, all={"pd_kv_pool": {"backend": "yuanrong"}}),
        "all",
        "pd_kv_pool",
        {"backend": "yuanrong"},
        ("yuanrong", "does not deploy"),
        severity="warning",
    ),
    Quiet("pool-not-started", "a host for the master", base(groups=POOL_HOST, all={"pd_kv_pool": {}})),
    Quiet("pool-not-started", "a master that runs already", base(all={"pd_kv_pool": {"master": "192.0.2.99:50088"}})),
    Quiet("pool-not-started", "memcache's", base(groups=POOL_HOST, all={"pd_kv_pool": {"backend": "memcache"}})),
    Provoking(
        "qos-on-passive-side",
        "prefill under V1",
        base(prefill={"pd_qos_priority": 2}),
        "p-a",
        "pd_qos_priority",
        2,
        ("prefill", "decode", "MooncakeConnectorV1"),
        severity="warning",
    ),
    Provoking(
        "qos-on-passive-side",
        "decode under layerwise",
        base(all={"pd_connector": LAYERWISE}, decode={"pd_qos_priority": 0}),
        "d-a",
        "pd_qos_priority",
        0,
        ("prefill", LAYERWISE),
        severity="warning",
    ),
    Quiet("qos-on-passive-side", "decode under V1", base(decode={"pd_qos_priority": 4})),
    Quiet("qos-on-passive-side", "both", base(all={"pd_qos_priority": 1})),
    Provoking(
        "dead-key",
        "use_ascend_direct",
        base(d2={"pd_kv_transfer_config": {"kv_connector_extra_config": {"use_ascend_direct": True}}}),
        "d2",
        "pd_kv_transfer_config.kv_connector_extra_config.use_ascend_direct",
        True,
        ("use_ascend_direct",),
        severity="warning",
    ),
]

PROXY_LAUNCHER_CONTAINER: list[Provoking | Quiet] = [
    *(
        Provoking(
            "container-network",
            network,
            base(all={"pd_container_network": network}),
            "all",
            "pd_container_network",
            network,
            (network, "HCCL", "host"),
        )
        for network in ("bridge", "none", "Host", "my-net")
    ),
    Provoking(
        "proxy-not-on-prefill",
        "on a decode host",
        base(groups={"proxy": {"hosts": ["d1"], "children": {}}}),
        "d1",
        "proxy",
        "d1",
        ("p1", "prefill"),
        severity="warning",
    ),
    Quiet(
        "proxy-not-on-prefill", "on the second prefill host", base(groups={"proxy": {"hosts": ["p2"], "children": {}}})
    ),
    Provoking(
        "proxy-workers",
        "the layerwise proxy",
        base(all={"pd_connector": LAYERWISE, "pd_proxy_workers": 2}),
        "p1",
        "pd_proxy_workers",
        2,
        ("decode_first", "--workers"),
    ),
    Provoking(
        "proxy-workers",
        "a proxy before 0.21",
        base(all={"pd_vllm_ascend_version": "v0.20.2rc1", "pd_proxy_workers": 4}),
        "p1",
        "pd_proxy_workers",
        4,
        ("v0.20.2rc1", "0.21"),
    ),
    Quiet("proxy-workers", "0.21", base(all={"pd_vllm_ascend_version": "v0.21.0rc1", "pd_proxy_workers": 4})),
    Provoking(
        "upstream-launcher",
        "internal decode",
        base(all={"pd_engine_launcher": "upstream"}, decode={"pd_dp_mode": "internal"}),
        "d1",
        "pd_engine_launcher",
        "upstream",
        ("d-a", "launch_online_dp.py"),
    ),
    Quiet("upstream-launcher", "external", base(all={"pd_engine_launcher": "upstream"})),
]

OPTIONS: list[Provoking | Quiet] = [
    Provoking(
        "planned-argument",
        "headless with external ranks",
        base(d2={"pd_engine_args_extra": {"headless": True}}),
        "d2",
        "pd_engine_args_extra.headless",
        True,
        ("headless", "d-a"),
    ),
    Provoking(
        "planned-argument",
        "another tensor-parallel size, by its short form",
        base(p2={"pd_engine_args_extra": {"tp": 4}}),
        "p2",
        "pd_engine_args_extra.tp",
        4,
        ("tensor-parallel-size", "pd_tp_size"),
    ),
    Provoking(
        "planned-argument",
        "kv-transfer-config, with underscores",
        base(p2={"pd_engine_args_extra": {"kv_transfer_config": {"kv_role": "kv_both"}}}),
        "p2",
        "pd_engine_args_extra.kv_transfer_config",
        {"kv_role": "kv_both"},
        ("pd_kv_transfer_config",),
    ),
    Quiet(
        "planned-argument",
        "sizes that repeat the plan",
        base(
            p2={
                "pd_engine_args_extra": {
                    "tensor-parallel-size": 8,
                    "data_parallel_size": "2",
                    "pipeline-parallel-size": 1,
                }
            }
        ),
    ),
    Provoking(
        "planned-environment",
        "visible devices",
        base(d2={"pd_engine_env_extra": {"ASCEND_RT_VISIBLE_DEVICES": "0,1"}}),
        "d2",
        "pd_engine_env_extra.ASCEND_RT_VISIBLE_DEVICES",
        "0,1",
        ("ASCEND_RT_VISIBLE_DEVICES", "pd_chips"),
    ),
    Provoking(
        "environment-overrides",
        "the network card given twice",
        base(d2={"pd_engine_env_extra": {"GLOO_SOCKET_IFNAME": "bond0"}}),
        "d2",
        "pd_engine_env_extra.GLOO_SOCKET_IFNAME",
        "bond0",
        ("bond0", "eth-data0", "pd_nic"),
        severity="warning",
    ),
    Quiet(
        "environment-overrides",
        "the network card by environment only",
        base(all={"pd_nic": ABSENT, "pd_engine_env_common": {"GLOO_SOCKET_IFNAME": "bond0"}}),
    ),
    Quiet(
        "environment-overrides",
        "the same value twice",
        base(all={"pd_engine_env_common": {"GLOO_SOCKET_IFNAME": "eth-data0"}}),
    ),
    Provoking(
        "api-keys-differ",
        "prefill and decode have keys of their own",
        base(
            prefill={"pd_engine_args": {**PREFILL_ARGS, "api-key": "prefill-key"}},
            decode={"pd_engine_args": {**DECODE_ARGS, "api-key": ["decode-key", "other-key"]}},
        ),
        "d1",
        "pd_engine_args.api-key",
        MASK,
        ("d-a", "p-a", "p1", "proxy"),
    ),
    Provoking(
        "api-keys-differ",
        "by environment on one host",
        base(
            prefill={"pd_engine_env": {"VLLM_API_KEY": "prefill-key"}},
            decode={"pd_engine_args": {**DECODE_ARGS, "api-key": ["decode-key", "prefill-key"]}},
            p2={"pd_engine_env_extra": {"VLLM_API_KEY": "another-key"}},
        ),
        "p2",
        "pd_engine_env.VLLM_API_KEY",
        MASK,
        ("p-b", "p2", "p-a", "p1"),
    ),
    *(
        Quiet("api-keys-differ", about, base(**changes))
        for about, changes in (
            ("one key for all", {"all": {"pd_engine_args_common": {"api-key": "one-key"}}}),
            (
                "one in common",
                {
                    "all": {"pd_engine_args_common": {"api_key": ["k1", "k2"]}},
                    "p1": {"pd_engine_args_extra": {"api-key": "k2"}},
                },
            ),
            ("one side is open", {"decode": {"pd_engine_env": {"VLLM_API_KEY": "one-key"}}}),
            (
                "the option wins over the environment",
                {
                    "all": {"pd_engine_args_common": {"api-key": "k1"}, "pd_engine_env_common": {"VLLM_API_KEY": "k1"}},
                    "p1": {"pd_engine_env_extra": {"VLLM_API_KEY": "k2"}},
                },
            ),
        )
    ),
    Provoking(
        "json-option",
        "Python text",
        base(d2={"pd_engine_args_extra": {"additional-config": "{'recompute_scheduler_enable': True}"}}),
        "d2",
        "pd_engine_args_extra.additional-config",
        "{'recompute_scheduler_enable': True}",
        ("additional-config", "d-a"),
    ),
    Provoking(
        "json-option",
        "JSON, but no object",
        base(d2={"pd_engine_args_extra": {"compilation_config": "[1]"}}),
        "d2",
        "pd_engine_args_extra.compilation_config",
        "[1]",
        ("compilation-config", "[1]"),
    ),
    Provoking(
        "json-option",
        "a truth value",
        base(d2={"pd_engine_args_extra": {"speculative-config": True}}),
        "d2",
        "pd_engine_args_extra.speculative-config",
        True,
        ("speculative-config",),
        alone=False,
    ),
    *(
        Provoking(
            "json-option",
            f"no list: {value!r}",
            base(d2={"pd_engine_args_extra": {"allowed_origins": value}}),
            "d2",
            "pd_engine_args_extra.allowed_origins",
            value,
            ("--allowed-origins", "d-a", "no JSON list", "YAML list"),
        )
        for value in ({"https://example.org": True}, "https://example.org", '{"a": 1}', "['*']")
    ),
    *(
        Quiet("json-option", f"a list: {value!r}", base(d2={"pd_engine_args_extra": {"allowed-methods": value}}))
        for value in (["GET", "POST"], [], '["GET"]')
    ),
    Quiet(
        "json-option",
        "JSON as text",
        base(d2={"pd_engine_args_extra": {"additional-config": '{"recompute_scheduler_enable": true}'}}),
    ),
    Provoking(
        "text-option",
        "a flag as text",
        base(p2={"pd_engine_args_extra": {"enforce-eager": "True"}}),
        "p2",
        "pd_engine_args_extra.enforce-eager",
        "True",
        ("enforce-eager", "'True'"),
        severity="warning",
    ),
    Quiet("text-option", "a word that is a value", base(all={"pd_engine_args_common": {"dtype": "auto"}})),
    Provoking(
        "speculative-tokens",
        "hybrid, 1 and 3",
        base(all={"pd_model_family": "hybrid_mamba"}),
        "d1",
        "pd_engine_args.speculative-config.num_speculative_tokens",
        3,
        ("1", "3", "p-a", "d-a"),
    ),
    Provoking(
        "speculative-tokens",
        "other, 3 and 3",
        base(prefill=speculative(3)),
        "p1",
        "pd_engine_args.speculative-config.num_speculative_tokens",
        3,
        ("3", "p-a"),
        severity="warning",
    ),
    Provoking(
        "speculative-tokens",
        "dspark, 5 and 6",
        base(prefill=speculative(5, "dspark"), decode=speculative(6, "dspark")),
        "d1",
        "pd_engine_args.speculative-config.num_speculative_tokens",
        6,
        ("dspark", "5", "6"),
    ),
    Provoking(
        "speculative-tokens",
        "dspark, 4 and 4",
        base(prefill=speculative(4, "dspark"), decode=speculative(4, "dspark")),
        "d1",
        "pd_engine_args.speculative-config.num_speculative_tokens",
        4,
        ("dspark", "4", "5"),
    ),
    Provoking(
        "speculative-tokens",
        "other, 1 and none",
        base(decode=speculative(ABSENT)),
        "d1",
        "pd_engine_args.speculative-config.num_speculative_tokens",
        None,
        ("d-a",),
    ),
    Quiet("speculative-tokens", "other, 1 and 15", base(decode=speculative(15))),
    Quiet("speculative-tokens", "nobody speculates", base(all=speculative(ABSENT))),
    Quiet("speculative-tokens", "prefill does not speculate", base(prefill=speculative(ABSENT))),
    Quiet(
        "speculative-tokens", "dspark, 5 and 5", base(prefill=speculative(5, "dspark"), decode=speculative(5, "dspark"))
    ),
    Provoking(
        "speculative-method",
        "deepseek_mtp and eagle3",
        base(decode=speculative(3, "eagle3")),
        "d1",
        "pd_engine_args.speculative-config.method",
        "eagle3",
        ("deepseek_mtp", "eagle3"),
    ),
    Quiet("speculative-method", "named on one side", base(decode=speculative(3, None))),
    Provoking(
        "hybrid-prefix-cache",
        "decode",
        base(
            all={"pd_model_family": "hybrid_mamba"},
            prefill=speculative(3),
            d2={"pd_engine_args_extra": {"enable-prefix-caching": True}},
        ),
        "d2",
        "pd_engine_args_extra.enable-prefix-caching",
        True,
        ("decode", "d-a"),
    ),
    Provoking(
        "hybrid-prefix-cache",
        "prefill",
        base(
            all={"pd_model_family": "hybrid_mamba"},
            prefill=speculative(3),
            p2={"pd_engine_args_extra": {"enable_prefix_caching": True}},
        ),
        "p2",
        "pd_engine_args_extra.enable_prefix_caching",
        True,
        ("prefill", "p-b"),
        severity="warning",
    ),
    Quiet(
        "hybrid-prefix-cache",
        "switched off, in all its spellings",
        base(
            all={"pd_model_family": "hybrid_mamba"},
            prefill=speculative(3),
            d1={"pd_engine_args_extra": {"enable-prefix-caching": False}},
            d2={"pd_engine_args_extra": {"no_enable_prefix_caching": True}},
        ),
    ),
    Quiet(
        "hybrid-prefix-cache", "another family", base(all={"pd_engine_args_common": {"enable-prefix-caching": True}})
    ),
    Provoking(
        "hybrid-manager",
        "left at vLLM's default",
        base(all={"pd_connector": HYBRID}),
        "p1",
        "pd_engine_args.disable-hybrid-kv-cache-manager",
        None,
        (HYBRID, "p-a"),
        alone=False,
    ),
    Quiet("hybrid-manager", "switched on", base(all={"pd_connector": HYBRID, **MANAGER_ON})),
    Provoking(
        "block-size",
        "128 and 96 under V1",
        base(decode={"pd_engine_args": {**DECODE_ARGS, "block-size": 96}}),
        "d1",
        "pd_engine_args.block-size",
        96,
        ("128", "96"),
    ),
    Provoking(
        "block-size",
        "128 and 64 under layerwise",
        base(all={"pd_connector": LAYERWISE}, decode={"pd_engine_args": {**DECODE_ARGS, "block-size": 64}}),
        "d1",
        "pd_engine_args.block-size",
        64,
        ("128", "64", LAYERWISE),
    ),
    Quiet("block-size", "128 and 64 under V1", base(decode={"pd_engine_args": {**DECODE_ARGS, "block-size": 64}})),
    Quiet(
        "block-size",
        "128 and 256 under layerwise",
        base(all={"pd_connector": LAYERWISE}, decode={"pd_engine_args": {**DECODE_ARGS, "block-size": 256}}),
    ),
    Provoking(
        "cp-interleave",
        "64 with blocks of 128",
        base(
            prefill={
                **DP_1,
                "pd_pcp_size": 2,
                "pd_engine_args": {**PREFILL_ARGS, "cp-kv-cache-interleave-size": 64},
            }
        ),
        "p1",
        "pd_engine_args.cp-kv-cache-interleave-size",
        64,
        ("64", "128", "p-a"),
        alone=False,
    ),
    Quiet(
        "cp-interleave",
        "no context parallelism",
        base(prefill={"pd_engine_args": {**PREFILL_ARGS, "cp-kv-cache-interleave-size": 64}}),
    ),
    Provoking(
        "recompute-on-prefill",
        "prefill",
        base(p2={"pd_engine_args_extra": {"additional_config": {"recompute_scheduler_enable": True}}}),
        "p2",
        "pd_engine_args_extra.additional_config.recompute_scheduler_enable",
        True,
        ("p-b", "prefill"),
        severity="warning",
    ),
    Quiet(
        "recompute-on-prefill",
        "decode",
        base(decode={"pd_engine_args": {**DECODE_ARGS, "additional-config": {"recompute_scheduler_enable": True}}}),
    ),
    Provoking(
        "expert-parallel-back-to-back",
        "decode over two hosts",
        base(
            all={"pd_topology": "back_to_back"},
            decode={"pd_engine_args": {**DECODE_ARGS, "enable-expert-parallel": True}},
        ),
        "d1",
        "pd_engine_args.enable-expert-parallel",
        True,
        ("d1", "d2", "pd_topology"),
    ),
    Quiet(
        "expert-parallel-back-to-back",
        "inside one host",
        base(
            all={"pd_topology": "back_to_back"},
            prefill={"pd_engine_args": {**PREFILL_ARGS, "enable-expert-parallel": True}},
        ),
    ),
    Quiet(
        "expert-parallel-back-to-back",
        "behind a switch",
        base(decode={"pd_engine_args": {**DECODE_ARGS, "enable-expert-parallel": True}}),
    ),
]

CASES: list[Provoking | Quiet] = [
    *GROUPS_AND_INSTANCES,
    *POOL,
    *VALUES,
    *ADDRESSES,
    *RANKS_AND_CHIPS,
    *SIZES,
    *PORTS,
    *IMAGE,
    *CONNECTOR,
    *PROXY_LAUNCHER_CONTAINER,
    *OPTIONS,
    *A5,
    *GIVEN,
    *ABOUT_VALUES,
]
PROVOKING = [case for case in CASES if isinstance(case, Provoking)]
QUIET = [case for case in CASES if isinstance(case, Quiet)]

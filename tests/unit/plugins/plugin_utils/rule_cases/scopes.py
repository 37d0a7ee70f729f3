# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Cases about variables that reach further than where they are given."""

from __future__ import annotations

from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.blocks import LAYERWISE, POOL_HOST
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.case import Provoking, Quiet
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    ABSENT,
    a5,
    base,
    one_host,
    planned_by_default,
)

OWN_HOSTS = {"proxy": {"hosts": ["x1"]}, "kv_pool": {"hosts": ["x2"], "children": {}}}


OWN_ADDRESSES = {"x1": {"pd_node_ip": "192.0.2.41"}, "x2": {"pd_node_ip": "192.0.2.42"}}


CASES: list[Provoking | Quiet] = [
    Provoking(
        "variable-scope",
        "a connector for decode only",
        base(prefill={"pd_connector": ABSENT}, decode={"pd_connector": LAYERWISE}),
        "d1",
        "pd_connector",
        LAYERWISE,
        ("only for d1, d2", "not for p1, p2", "holds for prefill too", "group_vars/all"),
        severity="warning",
    ),
    Provoking(
        "variable-scope",
        "common options where those of a role were meant",
        base(decode={"pd_engine_args_common": {"enforce-eager": True}}),
        "d1",
        "pd_engine_args_common",
        {"enforce-eager": True},
        ("only for d1, d2", "not for p1, p2", "holds for prefill too", "use pd_engine_args ("),
        severity="warning",
    ),
    Provoking(
        "variable-scope",
        "common environment of one host",
        base(p2={"pd_engine_env_common": {"OMP_NUM_THREADS": "8"}}),
        "p2",
        "pd_engine_env_common",
        {"OMP_NUM_THREADS": "8"},
        ("only for p2", "not for p1, d1, d2", "holds for p1, d1, d2 too", "pd_engine_env_extra"),
        severity="warning",
    ),
    Provoking(
        "variable-scope",
        "a limit of one host",
        base(all={"pd_kv_release_timeout": ABSENT}, d2={"pd_kv_release_timeout": 900}),
        "d2",
        "pd_kv_release_timeout",
        900,
        ("only for d2", "not for p1, p2, d1"),
        severity="warning",
    ),
    Provoking(
        "variable-scope",
        "a value of the proxy's host that is none of the proxy's alone",
        base(groups=OWN_HOSTS, more=OWN_ADDRESSES, x1={"pd_cluster_name": "other"}),
        "x1",
        "pd_cluster_name",
        "other",
        ("only for x1", "not for p1, p2, d1, d2", "holds for p1, p2, d1, d2 too"),
        severity="warning",
        alone=False,
    ),
    Provoking(
        "variable-scope",
        "a proxy's port for the hosts of another group",
        base(all={"pd_proxy_port": ABSENT}, decode={"pd_proxy_port": 2999}),
        "d1",
        "pd_proxy_port",
        2999,
        ("only for d1, d2", "holds for prefill too"),
        severity="warning",
    ),
    Provoking(
        "variable-scope",
        "a pool for decode only",
        base(groups=POOL_HOST, decode={"pd_kv_pool": {}}),
        "d1",
        "pd_kv_pool",
        {},
        ("only for d1, d2", "holds for prefill too"),
        severity="warning",
        alone=False,
    ),
    Provoking(
        "variable-scope",
        "a pool with a master elsewhere, for decode only",
        base(decode={"pd_kv_pool": {"master": "192.0.2.99:50088"}}),
        "d1",
        "pd_kv_pool",
        {"master": "192.0.2.99:50088"},
        ("only for d1, d2", "holds for prefill too"),
        severity="warning",
        alone=False,
    ),
    Provoking(
        "variable-scope",
        "a port for one of an instance's hosts",
        base(decode={"pd_api_port": ABSENT}, d2={"pd_api_port": 7300}),
        "d2",
        "pd_api_port",
        7300,
        ("only for d2", "not for d1", "all hosts of instance d-a", "group_vars/d-a"),
        severity="warning",
    ),
    Provoking(
        "variable-scope",
        "environment of an instance where that of a host was meant",
        base(d2={"pd_engine_env": {"OMP_NUM_THREADS": "8"}}),
        "d2",
        "pd_engine_env",
        {"OMP_NUM_THREADS": "8"},
        ("only for d2", "holds for d1 too", "pd_engine_env_extra"),
        severity="warning",
    ),
    Quiet("variable-scope", "of all hosts", base(all={"pd_engine_args_common": {"enforce-eager": True}})),
    Quiet(
        "variable-scope",
        "of all engines, and the proxy's and the pool's host have none",
        base(groups={"proxy": OWN_HOSTS["proxy"]}, more={"x1": OWN_ADDRESSES["x1"]}),
        clean=False,
    ),
    Quiet(
        "variable-scope",
        "of the proxy, for its host",
        base(all={"pd_proxy_port": ABSENT}, p1={"pd_proxy_port": 2999, "pd_proxy_workers": 2}),
    ),
    Quiet(
        "variable-scope",
        "of the proxy, for the hosts of a role among which it is",
        base(all={"pd_proxy_port": ABSENT}, prefill={"pd_proxy_port": 2999}),
    ),
    Quiet(
        "variable-scope",
        "of the pool, for its host",
        base(groups=POOL_HOST, p1={"pd_kv_pool": {"kv_connector_extra_config": {"lookup_rpc_port": 0}}}),
        clean=False,
    ),
    Quiet(
        "variable-scope",
        "what all have anyway",
        base(
            p1={
                "pd_cluster_name": "pd",
                "pd_engine_args_common": {},
                "pd_cann_version": "9.1.0",
                "pd_mooncake_version": "0.3.11.post1",
                "pd_image": "quay.io/ascend/vllm-ascend:v0.23.0-a3",
                "pd_endpoint_container_dir": "/etc/hixlep",
                "pd_container_privileged": False,
            },
            d2={"pd_qos_priority": None},
        ),
    ),
    Quiet("variable-scope", "rights that a5 has anyway", a5(p1={"pd_container_privileged": True})),
    Quiet(
        "variable-scope",
        "the head's address, for the other hosts",
        planned_by_default(d2={"pd_dp_address": "192.0.2.21"}),
    ),
    Quiet("variable-scope", "entries for instances", one_host()),
    Quiet(
        "variable-scope",
        "two values are another rule's",
        base(p1={"pd_connector": LAYERWISE}, p2={"pd_connector": ABSENT}),
        clean=False,
    ),
]

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What inventories of several topics are made of."""

from __future__ import annotations

import json
import typing as t

from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import Source, Variables, base

LAYERWISE = "MooncakeLayerwiseConnector"
HYBRID = "MooncakeHybridConnector"
MANAGER_ON = {"pd_engine_args_common": {"no-disable-hybrid-kv-cache-manager": True}}
DP_1 = {"pd_dp_size": 1, "pd_dp_size_local": 1}
POOL_HOST = {"kv_pool": {"hosts": ["p1"], "children": {}}}
COMMON = "pd_engine_env_common"
GLOBAL = "ASCEND_GLOBAL_RESOURCE_CONFIG"
PROTOCOL = "comm_resource_config.protocol_desc"
D2RH = "MooncakeD2RHConnectorV1"


def decode_sizes(dp: int, tp: int, **more: t.Any) -> dict[str, t.Any]:
    """Decode's sizes over its two hosts, half the ranks on each."""
    return {"pd_dp_size": dp, "pd_tp_size": tp, "pd_dp_size_local": dp // 2, **more}


def half_from(start: int) -> dict[str, t.Any]:
    return {"pd_dp_rank_start": start}


def with_pool(**settings: t.Any) -> dict[str, t.Any]:
    """BASE with a pool whose master is on p1."""
    return base(groups=POOL_HOST, all={"pd_kv_pool": {"backend": "mooncake", **settings}})


def with_pool_env(**environment: t.Any) -> dict[str, t.Any]:
    return base(groups=POOL_HOST, all={"pd_kv_pool": {"backend": "mooncake"}, "pd_engine_env_common": environment})


def with_env(**environment: t.Any) -> Source:
    return base(all={COMMON: environment})


def with_version(source: Source, version: str) -> Source:
    for values in source["hosts"].values():
        values["pd_vllm_ascend_version"] = version
    return source


def resources(value: object, layer: str = "pd_engine_env_common") -> Variables:
    return {layer: {GLOBAL: value}}


def protocol(value: object) -> str:
    return json.dumps({PROTOCOL: value})

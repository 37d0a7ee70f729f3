# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Cases about parallel sizes."""

from __future__ import annotations

import typing as t

from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.blocks import (
    DP_1,
    HYBRID,
    LAYERWISE,
    MANAGER_ON,
    decode_sizes,
    half_from,
)
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.case import Provoking, Quiet
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import ABSENT, base, speculative


def _decode_on_one(**more: t.Any) -> dict[str, t.Any]:
    return {"pd_dp_size_local": ABSENT, "pd_dp_rank_start": ABSENT, **more}


INTERLEAVE = {"cp-kv-cache-interleave-size": 128}


ONE_DECODE_HOST = {"decode": {"hosts": [], "children": {"d-a": ["d1"]}}}


LAYERS, PARTITION = "VLLM_PP_LAYER_PARTITION", "pp_layer_partition"

CASES: list[Provoking | Quiet] = [
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
        base(prefill={"pd_tp_size": 2}, decode=decode_sizes(8, 4), d2=half_from(4)),
        "p-a",
        "pd_tp_size",
        2,
        ("2", "4", "d-a"),
    ),
    Provoking(
        "tp-not-divisible",
        "6 and 4",
        base(prefill={"pd_tp_size": 6}, decode=decode_sizes(8, 4), d2=half_from(4)),
        "p-a",
        "pd_tp_size",
        6,
        ("6", "4", "d-a"),
    ),
    Quiet("tp-not-divisible", "8 and 4", base(decode=decode_sizes(8, 4), d2=half_from(4))),
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
        base(decode=decode_sizes(16, 1, pd_pp_size=2), d2=half_from(8)),
        "d-a",
        "pd_pp_size",
        2,
        ("d-a", "2"),
    ),
    *(
        Provoking(
            "pp-layer-partition",
            about,
            base(**{"prefill": {"pd_pp_size": 2, "pd_tp_size": 4}, **more}),
            host,
            variable,
            value,
            says,
        )
        for about, more, host, variable, value, says in (
            (
                "three parts for two stages",
                {"prefill": {"pd_pp_size": 2, "pd_tp_size": 4, "pd_engine_env": {LAYERS: "30,20,11"}}},
                "p1",
                f"pd_engine_env.{LAYERS}",
                "30,20,11",
                ("30,20,11", "pd_pp_size 2", "p2"),
            ),
            (
                "decode gets prefill's",
                {"all": {"pd_engine_env_common": {LAYERS: "32,29"}}},
                "d1",
                f"pd_engine_env_common.{LAYERS}",
                "32,29",
                ("d-a", "pd_pp_size 1", "of prefill only"),
            ),
            (
                "another one on one host",
                {
                    "p1": {"pd_engine_env_extra": {LAYERS: "32,29"}},
                    "p2": {"pd_engine_env_extra": {LAYERS: "31,30"}},
                },
                "p2",
                f"pd_engine_env_extra.{LAYERS}",
                "31,30",
                ("31,30", "32,29"),
            ),
            (
                "only the connector is told",
                {"decode": {"pd_kv_transfer_config": {"kv_connector_extra_config": {"prefill": {PARTITION: "40,21"}}}}},
                "d1",
                f"pd_kv_transfer_config.kv_connector_extra_config.prefill.{PARTITION}",
                "40,21",
                ("40,21", "evenly", LAYERS, "d2"),
            ),
            (
                "the connector is told three",
                {
                    "decode": {
                        "pd_kv_transfer_config": {"kv_connector_extra_config": {"prefill": {PARTITION: "20,20,21"}}}
                    }
                },
                "d1",
                f"pd_kv_transfer_config.kv_connector_extra_config.prefill.{PARTITION}",
                "20,20,21",
                ("each of the 2 stages",),
            ),
        )
    ),
    *(
        Quiet("pp-layer-partition", about, base(prefill={"pd_pp_size": 2, "pd_tp_size": 4, **more}))
        for about, more in (
            ("in the environment of prefill", {"pd_engine_env": {LAYERS: "32,29"}}),
            (
                "said twice",
                {
                    "pd_engine_env": {LAYERS: "32,29"},
                    "pd_kv_transfer_config": {"kv_connector_extra_config": {"prefill": {PARTITION: "32,29"}}},
                },
            ),
            ("even", {"pd_kv_transfer_config": {"kv_connector_extra_config": {"prefill": {PARTITION: "31,30"}}}}),
        )
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
            decode=decode_sizes(4, 8, pd_dcp_size=8),
            d2=half_from(2),
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

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Cases about options of vLLM."""

from __future__ import annotations

import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils.masking import MASK
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.blocks import (
    DP_1,
    HYBRID,
    LAYERWISE,
    MANAGER_ON,
)
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.case import Provoking, Quiet
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    ABSENT,
    DECODE_ARGS,
    PREFILL_ARGS,
    Source,
    base,
    speculative,
)


def _args(**options: t.Any) -> Source:
    return base(prefill={"pd_engine_args": {**PREFILL_ARGS, **options}})


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

OPTIONS_BY_HAND: list[Provoking | Quiet] = [
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

API_KEYS: list[Provoking | Quiet] = [
    *(
        Provoking(
            "option-value",
            f"{name} is {value!r}",
            base(all={"pd_engine_args_common": {name: value}}),
            "p1",
            f"pd_engine_args_common.{name}",
            MASK,
            ("empty", "null to drop"),
        )
        for name, value in (("api-key", ""), ("api_key", [""]), ("api-key", ["k1", ""]))
    ),
    *(
        Quiet("option-value", f"{value!r}", base(all={"pd_engine_args_common": {"api-key": value}}))
        for value in (None, "k1", ["k1", "k2"])
    ),
]

CACHE_TYPES: list[Provoking | Quiet] = [
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
]

CASES: list[Provoking | Quiet] = [*OPTIONS, *OPTIONS_BY_HAND, *API_KEYS, *CACHE_TYPES]

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Cases about ranks and chips."""

from __future__ import annotations

from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.blocks import (
    decode_sizes,
    half_from,
)
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.case import Provoking, Quiet
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    ABSENT,
    DECODE_ARGS,
    NOT_READ,
    PREFILL_ARGS,
    base,
    one_host,
)

CASES: list[Provoking | Quiet] = [
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
        base(decode={"pd_dp_size": 40, "pd_dp_size_local": ABSENT}, d1=half_from(0), d2=half_from(20)),
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
        base(prefill={"pd_tp_size": 8}, decode=decode_sizes(16, 2), d2=half_from(4)),
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
    Quiet("dp-ranks", "given exactly", base(decode=decode_sizes(16, 2), d2=half_from(8))),
]

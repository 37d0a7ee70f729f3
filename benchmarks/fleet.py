# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Clusters of any size as plain variables, for benchmarks: 16 chips a host, options like those of inventories/2p1d."""

from __future__ import annotations

import typing as t

CLUSTER: dict[str, t.Any] = {
    "pd_hardware": "a3",
    "pd_model_path": "/models/DeepSeek-r1_w8a8_mtp",
    "pd_served_model_name": "ds_r1",
    "pd_engine_args_common": {
        "enable-expert-parallel": True,
        "seed": 1024,
        "max-model-len": 40000,
        "trust-remote-code": True,
        "quantization": "ascend",
        "enable-prefix-caching": False,
        "speculative-config": {"num_speculative_tokens": 1, "method": "deepseek_mtp"},
    },
    "pd_engine_env_common": {
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "TASK_QUEUE_ENABLE": "1",
        "HCCL_OP_EXPANSION_MODE": "AIV",
    },
}
PREFILL: dict[str, t.Any] = {
    "pd_dp_size": 2,
    "pd_tp_size": 8,
    "pd_engine_args": {"enforce-eager": True, "max-num-batched-tokens": 16384, "max-num-seqs": 8},
    "pd_engine_env": {"HCCL_BUFFSIZE": "256"},
}
DECODE: dict[str, t.Any] = {
    "pd_tp_size": 1,
    "pd_engine_args": {"max-num-batched-tokens": 256, "compilation-config": {"cudagraph_mode": "FULL_DECODE_ONLY"}},
    "pd_engine_env": {"HCCL_BUFFSIZE": "600"},
}


def names(hosts: int) -> tuple[list[str], list[str]]:
    """Half of the hosts prefill (an instance each), half decode (one instance)."""
    half = hosts // 2
    return [f"p{i:04}" for i in range(half)], [f"d{i:04}" for i in range(hosts - half)]


def addresses(hosts: int) -> dict[str, str]:
    prefill, decode = names(hosts)
    return {name: f"10.1.{i // 250}.{i % 250 + 1}" for i, name in enumerate([*prefill, *decode])}


def plain(hosts: int) -> dict[str, t.Any]:
    """The planner's input: half of the hosts prefill, half decode, 16 chips each."""
    prefill, decode = names(hosts)
    address = addresses(hosts)
    rows: dict[str, dict[str, t.Any]] = {}
    for name in prefill:
        rows[name] = {**CLUSTER, **PREFILL, "ansible_host": address[name]}
    for name in decode:
        rows[name] = {**CLUSTER, **DECODE, "pd_dp_size": 16 * len(decode), "ansible_host": address[name]}
    groups = {
        "prefill": {"hosts": prefill, "children": {}},
        "decode": {"hosts": decode, "children": {}},
        "proxy": {"hosts": prefill[:1], "children": {}},
    }
    return {"groups": groups, "hosts": rows}


def inventory(hosts: int) -> dict[str, t.Any]:
    """The same as an Ansible inventory."""
    prefill, decode = names(hosts)
    address = addresses(hosts)
    return {
        "all": {
            "vars": CLUSTER,
            "children": {
                "prefill": {"hosts": {name: {"ansible_host": address[name]} for name in prefill}, "vars": PREFILL},
                "decode": {
                    "hosts": {name: {"ansible_host": address[name]} for name in decode},
                    "vars": {**DECODE, "pd_dp_size": 16 * len(decode)},
                },
                "proxy": {"hosts": {prefill[0]: {}}},
            },
        }
    }

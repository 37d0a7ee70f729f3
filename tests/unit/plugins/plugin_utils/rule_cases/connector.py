# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Cases about connectors, their keys, priorities and limits."""

from __future__ import annotations

import typing as t

from ansible_collections.ascend.pd_serving.plugins.plugin_utils.connectors import VLLM_ASCEND_MODULE
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.blocks import (
    D2RH,
    GLOBAL,
    HYBRID,
    LAYERWISE,
    POOL_HOST,
    resources,
    with_pool,
    with_pool_env,
    with_version,
)
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.case import Provoking, Quiet
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    PREFILL_ARGS,
    Source,
    base,
    base_at,
    d2rh,
    speculative,
)

_NO_BLOCK = {name: value for name, value in PREFILL_ARGS.items() if name != "block-size"}


_CONTEXT_PARALLEL = {"pd_dp_size": 1, "pd_dp_size_local": 1, "pd_pcp_size": 2}


def _interleaved(**options: t.Any) -> Source:
    """Context parallelism on prefill; decode keeps blocks of 128, which is the default too."""
    return base(prefill={**_CONTEXT_PARALLEL, "pd_engine_args": {**_NO_BLOCK, **options}})


QOS = "comm_resource_config.qos"


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
                }
            }
        ),
    ),
    Provoking(
        "timeout-name",
        "for decode only",
        base(decode={"pd_engine_env": {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "3600"}}),
        "d1",
        "pd_engine_env.VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT",
        "3600",
        ("3600", "prefill", "480", "d2"),
        severity="warning",
    ),
    Quiet(
        "timeout-name",
        "for both roles",
        base(all={"pd_engine_env_common": {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "3600"}}),
        clean=False,
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
        with_version(with_pool(backend="mooncake"), "v0.11.0"),
        "all",
        "pd_kv_pool",
        {"backend": "mooncake"},
        ("AscendStoreConnector", "v0.11.0", "0.12 or newer"),
        alone=False,
    ),
    *(
        Quiet("connector-version", about, source, clean=False)
        for about, source in (
            ("a pool in the first that has it", with_version(with_pool_env(), "v0.12.0rc1")),
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
    *(
        Provoking(
            "kv-transfer-key",
            f"{key} at the top",
            base(p1={"pd_kv_transfer_config": {key: value}}),
            "p1",
            f"pd_kv_transfer_config.{key}",
            value,
            (key, "engines end at it", says),
        )
        for key, value, says in (
            ("kv_connector_extra_cfg", {}, "did you mean kv_connector_extra_config?"),
            ("kv_buffer_sizes", 1, "did you mean kv_buffer_size?"),
            ("qos_priority", 2, "move it into pd_kv_transfer_config.kv_connector_extra_config"),
            ("prefill", {"tp_size": 8, "dp_size": 2}, "move it into pd_kv_transfer_config.kv_connector_extra_config"),
            ("load_async", True, "move it into pd_kv_pool"),
            ("site_note", "x", "if your connector reads it, or leave it out"),
        )
    ),
    Provoking(
        "kv-transfer-key",
        "at the top, in a release whose keys are not known",
        with_version(base(p1={"pd_kv_transfer_config": {"site_note": "x"}}), "v0.18.0"),
        "p1",
        "pd_kv_transfer_config.site_note",
        "x",
        ("engines drop it, or end at it",),
        severity="warning",
    ),
    *(
        Provoking(
            "kv-transfer-key",
            f"{key} inside",
            base(p1={"pd_kv_transfer_config": {"kv_connector_extra_config": {key: value}}}),
            "p1",
            f"pd_kv_transfer_config.kv_connector_extra_config.{key}",
            value,
            (key, says),
            severity="warning",
        )
        for key, value, says in (
            *(
                (name, value, f"move it up to pd_kv_transfer_config.{name}")
                for name, value in (("kv_port", 20001), ("kv_load_failure_policy", "fail"), ("engine_id", "1"))
            ),
            ("lookup_rpc_port", "0", "move it into pd_kv_pool"),
            ("pp_size", 2, "leave it out"),
        )
    ),
    Quiet(
        "kv-transfer-key",
        "keys of somebody's own",
        base(p1={"pd_kv_transfer_config": {"kv_connector_extra_config": {"site": {"a": 1}}}}),
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

PRIORITY_AND_LIMIT: list[Provoking | Quiet] = [
    Provoking(
        "qos-unsupported",
        "D2RH",
        d2rh(d1={"pd_qos_priority": 2}),
        "decode",
        "pd_qos_priority",
        2,
        (D2RH, "MooncakeHybridConnector"),
    ),
    Provoking(
        "qos-unsupported",
        "D2RH, in the settings",
        d2rh(d1={"pd_kv_transfer_config": {"kv_connector_extra_config": {"qos_priority": 2}}}),
        "decode",
        "pd_kv_transfer_config.kv_connector_extra_config.qos_priority",
        2,
        (D2RH,),
    ),
    *(
        Provoking(
            "qos-unsupported",
            f"{version} on {scope}",
            base(all={"pd_vllm_ascend_version": version}, **{scope: {"pd_qos_priority": 2}}),
            instance,
            "pd_qos_priority",
            2,
            (version, "0.23", "newer"),
            severity="warning",
            # Names of the KV release limit and reserved ranges differ too.
            alone=False,
        )
        for version in ("v0.11.0", "v0.22.1rc1")
        for scope, instance in (("decode", "d-a"), ("prefill", "p-a"))
    ),
    Quiet(
        "qos-unsupported",
        "a version that is not known",
        base(all={"pd_vllm_ascend_version": "main"}, decode={"pd_qos_priority": 2}),
        clean=False,
    ),
    Quiet("qos-unsupported", "the first that has it", base(decode={"pd_qos_priority": 2})),
    Provoking(
        "qos-on-passive-side",
        "in the settings of prefill",
        base(prefill={"pd_kv_transfer_config": {"kv_connector_extra_config": {"qos_priority": 3}}}),
        "p-a",
        "pd_kv_transfer_config.kv_connector_extra_config.qos_priority",
        3,
        ("prefill", "decode"),
        severity="warning",
    ),
    Provoking(
        "qos-replaced",
        "by the default of 1",
        base(decode=resources({QOS: 4}, "pd_engine_env")),
        "d1",
        f"pd_engine_env.{GLOBAL}",
        4,
        (QOS, "writes 1 over it", "pd_qos_priority"),
        severity="warning",
    ),
    Provoking(
        "qos-replaced",
        "by a given one",
        base(all=resources({QOS: 4}), decode={"pd_qos_priority": 0}),
        "d1",
        f"pd_engine_env_common.{GLOBAL}",
        4,
        ("writes 0 over it",),
        severity="warning",
    ),
    Quiet("qos-replaced", "they agree", base(all={**resources({QOS: 2}), "pd_qos_priority": 2})),
    Quiet("qos-replaced", "a connector that writes none", d2rh(all=resources({QOS: 4})), clean=False),
    Provoking(
        "timeout-name",
        "the NIXL name on a release that does not read it",
        base(prefill={"pd_engine_env": {"VLLM_NIXL_ABORT_REQUEST_TIMEOUT": "300000"}}),
        "p1",
        "pd_engine_env.VLLM_NIXL_ABORT_REQUEST_TIMEOUT",
        "300000",
        ("v0.23.0", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", "pd_kv_release_timeout"),
        severity="warning",
    ),
    Quiet(
        "timeout-name",
        "the name that is read",
        base(prefill={"pd_engine_env": {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "1800"}}),
        clean=False,
    ),
    Provoking(
        "kv-release-timeout",
        "under the guide's older name",
        base(prefill={"pd_engine_env": {"VLLM_MOONCAKE_CONNECTOR_TIMEOUT": "10"}}),
        "p1",
        "pd_engine_env.VLLM_MOONCAKE_CONNECTOR_TIMEOUT",
        "10",
        ("60",),
    ),
]

CASES: list[Provoking | Quiet] = [*CONNECTOR, *TRANSFER, *PRIORITY_AND_LIMIT]

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Cases of rule_cases.py about where values are given and what they may be: scopes, versions, keys, placeholders."""

from __future__ import annotations

from ansible_collections.ascend.pd_serving.plugins.module_utils.masking import MASK
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_case import Provoking, Quiet
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    ABSENT,
    a5,
    base,
    one_host,
    planned_by_default,
)

LAYERWISE = "MooncakeLayerwiseConnector"
POOL_GROUP = {"kv_pool": {"hosts": ["p1"], "children": {}}}
OWN_HOSTS = {"proxy": {"hosts": ["x1"]}, "kv_pool": {"hosts": ["x2"], "children": {}}}
OWN_ADDRESSES = {"x1": {"pd_node_ip": "192.0.2.41"}, "x2": {"pd_node_ip": "192.0.2.42"}}

SCOPES: list[Provoking | Quiet] = [
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
        base(groups=POOL_GROUP, decode={"pd_kv_pool": {}}),
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
        base(groups=POOL_GROUP, p1={"pd_kv_pool": {"kv_connector_extra_config": {"lookup_rpc_port": 0}}}),
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

VERSIONS: list[Provoking | Quiet] = [
    *(
        Provoking(
            "version-unknown",
            image,
            base(all={"pd_image": image}),
            "all",
            "pd_image",
            image,
            (*says, "tells no version", "taken for v0.23.0", "every known name", "set pd_vllm_ascend_version"),
            severity="warning",
        )
        for image, says in (
            ("registry.example/ai/serving:v0.17.0rc1-a3", ("not called vllm-ascend", "(v0.17.0rc1, if its tag")),
            ("private/own:1.2", ("the tag 1.2", "not called vllm-ascend")),
            ("private/own:latest", ("the tag latest",)),
            ("registry.example:5000/vllm-ascend", ("no tag",)),
            ("quay.io/ascend/vllm-ascend@sha256:" + "0" * 64, ("digest",)),
        )
    ),
    Provoking(
        "version-unknown",
        "beside what its tag says of the hardware",
        base(all={"pd_image": "registry.example/team/pd:prod-a2"}),
        "all",
        "pd_image",
        "registry.example/team/pd:prod-a2",
        ("the tag prod-a2",),
        severity="warning",
        alone=False,
    ),
    Quiet(
        "version-unknown",
        "an image of another name with its version told",
        base(all={"pd_image": "private/own:1.2", "pd_vllm_ascend_version": "v0.18.0"}),
    ),
    *(
        Provoking(
            "version-unknown",
            f"{version} alone",
            base(all={"pd_vllm_ascend_version": version}),
            "all",
            "pd_vllm_ascend_version",
            f"v{version.removeprefix('v')}",
            (f"vllm-ascend:v{version.removeprefix('v')}-a3", "upstream does not have", says),
            severity="warning",
        )
        for version, says in (
            ("v0.23", "use v0.23.0"),
            ("0.23", "use v0.23.0"),
            ("v0.22", "use v0.22.1rc1"),
            ("v0.26", "such as v0.23.0"),
        )
    ),
    Quiet(
        "version-unknown",
        "two numbers beside an image",
        base(all={"pd_image": "private/own:1.2", "pd_vllm_ascend_version": "v0.23"}),
    ),
    *(
        Provoking(
            "variable-value",
            f"{variable} {value}",
            base(all={variable: value}),
            "p1",
            variable,
            value,
            (f"{variable} must be a version", repr(value), f"set {variable}"),
        )
        for variable in ("pd_cann_version", "pd_mooncake_version", "pd_hixl_version")
        for value in ("latest", "true", "main", "rc1")
    ),
    *(
        Quiet("variable-value", f"{variable} {value}", base(all={variable: value}), clean=False)
        for variable, value in (
            ("pd_cann_version", "8.3.RC2"),
            ("pd_cann_version", "8.5.0.alpha001"),
            ("pd_mooncake_version", "v0.3.9"),
            ("pd_mooncake_version", "0.3.11.post1"),
            ("pd_hixl_version", "9.1.0"),
        )
    ),
]

WORDS: list[Provoking | Quiet] = [
    *(
        Provoking(
            "variable-value",
            f"{name} in {version}: {value}",
            base(all={"pd_engine_args_common": {name: value}, "pd_vllm_ascend_version": version}),
            "p1",
            "pd_engine_args_common",
            {name: MASK} if "key" in name else {name: value},
            (f"has a {says}", name),
        )
        for version in ("v0.23.0", "v0.18.0")
        for name, value, says in (
            ("api-key", [None], "null"),
            ("api_key", ["k", None], "null"),
            ("api-key", {}, "mapping"),
            ("api-key", [{"key": "k"}], "mapping"),
            ("api-key", [["k"]], "list"),
            ("allowed-media-domains", [None], "null"),
            ("allowed-origins", ["https://a.example", {}], "mapping"),
        )
    ),
    *(
        Quiet("variable-value", f"{name} {value}", base(all={"pd_engine_args_common": {name: value}}))
        for name, value in (
            ("api-key", ["k1", "k2"]),
            ("api-key", "k1"),
            ("api-key", None),
            ("lora-modules", [{"name": "a", "path": "/models/a"}, "b=/models/b"]),
            ("cudagraph-capture-sizes", [1, 2, 4]),
            ("allowed-origins", ["*"]),
        )
    ),
]

ROLES: list[Provoking | Quiet] = [
    *(
        Provoking("variable-value", f"{name} is {value!r}", base(all={name: value}), "p1", name, value, says)
        for name, value, says in (
            ("engine_ready_timeout", 0, ("engine_ready_timeout must be 1 or more; it is 0", "default (3600)")),
            ("engine_ready_timeout", "-5", ("1 or more", "'-5'")),
            ("engine_poll_seconds", 0, ("1 or more",)),
            ("engine_partial_wait", -1, ("0 or more",)),
            ("engine_stop_timeout", -1, ("0 or more",)),
            ("proxy_ready_timeout", 0, ("1 or more",)),
            ("kv_pool_ready_timeout", -300, ("1 or more",)),
            ("verify_timeout", 0, ("1 or more",)),
            ("verify_requests", -1, ("0 or more",)),
            ("image_timeout", 0, ("1 or more",)),
            ("preflight_tool_timeout", 0, ("1 or more",)),
            ("preflight_ping_budget", "0", ("1 or more",)),
            ("preflight_ping_peers", 1, ("2 or more",)),
            ("preflight_probe_peers", 0, ("1 or more",)),
            ("mooncake_jobs", 0, ("1 or more",)),
            ("host_hugepages", -1, ("0 or more",)),
            ("benchmark_request_rate", -0.5, ("0 or more",)),
            ("benchmark_concurrency", [8, 0], ("a list of numbers, each of them 1 or more",)),
        )
    ),
    Quiet(
        "variable-value",
        "numbers that mean something at 0",
        base(
            all={
                "engine_partial_wait": 0,
                "engine_stop_timeout": 0,
                "verify_requests": "0",
                "verify_release_wait": 0,
                "host_hugepages": 0,
                "benchmark_request_rate": 0.5,
                "benchmark_retry": 0,
                "benchmark_concurrency": [1],
                "preflight_ping_peers": 2,
            }
        ),
    ),
]

NAMES: list[Provoking | Quiet] = [
    Provoking(
        "role-variable-name",
        "one letter is missing",
        {**base(), "misspelt": {"engine_ready_timout": ["p1", "p2"]}},
        "p1",
        "engine_ready_timout",
        None,
        ("engine_ready_timout (on p1, p2)", "did you mean engine_ready_timeout?"),
        severity="warning",
    ),
    Quiet("role-variable-name", "none", {**base(), "misspelt": {}}),
]

KEYS: list[Provoking | Quiet] = [
    *(
        Provoking("variable-value", f"{name} {value}", base(all={name: value}), "p1", name, value, (name, *says))
        for name, value, says in (
            ("pd_engine_env_common", {True: "1"}, ("has the key true", "yes, on and true", "quote the key")),
            ("pd_engine_args_common", {False: 1}, ("has the key false", "no, off and false", "quote the key")),
            ("pd_engine_args_common", {None: 1, True: 2}, ("has the key null", "has the key true")),
            ("pd_engine_env_common", {1.5: "1"}, ("has the key 1.5", "quote the key")),
            ("pd_engine_args_common", {"additional-config": {"x": {True: 1}}}, ("true in additional-config.x",)),
            (
                "pd_kv_transfer_config",
                {"kv_connector_extra_config": {False: 1}},
                ("false in kv_connector_extra_config",),
            ),
        )
    ),
    Provoking(
        "variable-value",
        "a truth value as a key for an instance",
        one_host(prefill={"pd_engine_env": {True: "1"}}),
        "h1",
        "pd_instances",
        one_host(prefill={"pd_engine_env": {True: "1"}})["hosts"]["h1"]["pd_instances"],
        ("has the key true in p-a.pd_engine_env", "quote the key"),
        alone=False,
    ),
    Quiet("variable-value", "quoted keys", base(all={"pd_engine_env_common": {"YES": "1", "NO": "y"}})),
]

PLACEHOLDERS: list[Provoking | Quiet] = [
    *(
        Provoking("placeholder", value, base(all={name: value}), "p1", name, value, (value, "the real value"))
        for name, value in (
            ("pd_nic", "enp_xxx"),
            ("pd_nic", "enp-XXXX"),
            ("pd_model_path", "/mnt/x.x.x"),
            ("pd_model_path", "/mnt/x.x/model"),
            ("pd_model_path", "/models/model_xxx"),
            ("pd_served_model_name", "model-xxx"),
        )
    ),
    *(
        Provoking("variable-value", f"a card {value}", base(p2={"pd_nic": value}), "p2", "pd_nic", value, ("address",))
        for value in ("192.0.2.11", "::1", "2001:db8::1")
    ),
    *(
        Quiet("placeholder", value, base(all={name: value}))
        for name, value in (
            ("pd_nic", "enp1s0f0.100"),
            ("pd_nic", "x0"),
            ("pd_nic", "bond0:1"),
            ("pd_model_path", "/models/x.y"),
            ("pd_model_path", "/models/llama-xx"),
            ("pd_model_path", "/models/sd-xxl"),
            ("pd_served_model_name", "grok-x"),
        )
    ),
]

ABOUT_VALUES: list[Provoking | Quiet] = [*SCOPES, *VERSIONS, *WORDS, *ROLES, *NAMES, *KEYS, *PLACEHOLDERS]

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Cases about values of single variables: types, words, names, addresses, placeholders."""

from __future__ import annotations

from ansible_collections.ascend.pd_serving.plugins.module_utils.masking import MASK
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.blocks import LAYERWISE
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.case import Provoking, Quiet
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    ABSENT,
    a5,
    base,
    host_roce,
    one_host,
)

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

TWICE: list[Provoking | Quiet] = [
    *(
        Provoking(
            "placeholder",
            f"{variable} is {value}",
            base(all={variable: value}),
            "p1",
            variable,
            value,
            (value,),
        )
        for variable, value in (
            ("pd_model_path", "/path-to-weight/M"),
            ("pd_model_path", "/your/model"),
            ("pd_model_path", "/home/xxx/models"),
            ("pd_model_path", "/models/xxxx"),
            ("pd_nic", "ethX"),
            ("pd_nic", "nic_name"),
        )
    ),
    *(
        Quiet("placeholder", value, base(all={variable: value}))
        for variable, value in (
            ("pd_model_path", "/models/xxl-7b"),
            ("pd_model_path", "/yourcompany/m"),
            ("pd_model_path", "/models/x"),
            ("pd_nic", "enx001122334455"),
            ("pd_nic", "ens0"),
        )
    ),
    Provoking(
        "variable-value",
        "two mounts at one place",
        base(all={"pd_mounts": ["/a:/b", "/c:/b/:ro"]}),
        "p1",
        "pd_mounts",
        ["/a:/b", "/c:/b/:ro"],
        ("two", "/b"),
    ),
    Provoking(
        "chip-not-there",
        "which is not also one that is not mapped",
        a5(p1={"pd_chips": [0, 8]}),
        "p1",
        "pd_chips",
        [0, 8],
        ("8", "0-7"),
        alone=False,
    ),
    Provoking(
        "variable-value",
        "refused addresses are not also missing ones",
        host_roce(p1={"pd_roce_addresses": ["198.51.100.1"]}),
        "p1",
        "pd_roce_addresses",
        ["198.51.100.1"],
        ("mapping",),
    ),
]

CASES: list[Provoking | Quiet] = [*VALUES, *ADDRESSES, *WORDS, *ROLES, *NAMES, *KEYS, *PLACEHOLDERS, *TWICE]

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Cases about groups, instances and the hosts in them."""

from __future__ import annotations

from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.blocks import LAYERWISE
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.case import Provoking, Quiet
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import base, one_host

CASES: list[Provoking | Quiet] = [
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

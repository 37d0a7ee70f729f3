# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""From variables to a typed cluster: scopes, overrides of one instance, text values, what is given and what is not."""

from __future__ import annotations

import copy
import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import inventory
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.model import Cluster
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    ABSENT,
    DECODE_ARGS,
    Source,
    Variables,
    base,
    errors_of,
    one_host,
    only,
    placement,
    planned,
    planned_by_default,
    rules_of,
    told,
)


def cluster_of(source: Source) -> Cluster:
    cluster, findings = inventory.read(source)
    assert cluster is not None
    assert not findings, told(findings)
    return cluster


def test_base() -> None:
    cluster = cluster_of(base())
    assert cluster.name == "pd"
    assert cluster.hardware.name == "a3"
    assert cluster.image == "quay.io/ascend/vllm-ascend:v0.23.0-a3"
    assert (cluster.proxy_host, cluster.proxy_address, cluster.proxy_port) == ("p1", "192.0.2.11", 1999)
    assert [(i.name, i.role, i.index, i.hosts) for i in cluster.instances] == [
        ("p-a", "prefill", 0, ["p1"]),
        ("p-b", "prefill", 1, ["p2"]),
        ("d-a", "decode", 0, ["d1", "d2"]),
    ]
    assert all(instance.complete for instance in cluster.instances)


def test_defaults() -> None:
    source = planned_by_default(
        all={name: ABSENT for name in ("pd_nic", "pd_connector", "pd_kv_release_timeout", "pd_proxy_port")}
    )
    cluster = cluster_of(source)
    assert (cluster.connector, cluster.kv_release_timeout, cluster.proxy_port) == ("MooncakeConnectorV1", 480, 1999)
    assert (cluster.runtime, cluster.engine_launcher, cluster.port_reserve) == ("docker", "builtin", "documented")
    member = cluster.instances[0].members[0]
    assert member.nic == "eth0"
    assert member.chips == member.mapped_chips == list(range(16))
    assert member.chips_per_node == 16


def test_given_versions_win_over_the_table() -> None:
    given = {"pd_cann_version": "9.2.0", "pd_mooncake_version": "0.4.0", "pd_hixl_version": "9.1.0"}
    versions = cluster_of(base(all=given)).versions
    assert (versions.cann, versions.mooncake, versions.hixl) == ("9.2.0", "0.4.0", "9.1.0")
    assert versions.vllm_ascend == "v0.23.0"


@pytest.mark.parametrize(("given", "version"), [("v0.18.0", "v0.18.0"), ("0.18.0", "v0.18.0")])
def test_a_version_with_or_without_v(given: str, version: str) -> None:
    cluster = cluster_of(base(all={"pd_vllm_ascend_version": given}))
    assert cluster.versions.vllm_ascend == version
    assert cluster.image.endswith(":v0.18.0-a3")


def test_the_tag_of_a_given_image_is_the_version() -> None:
    cluster = cluster_of(base(all={"pd_image": "mirror.example/vllm-ascend:v0.18.0-a3"}))
    assert cluster.versions.vllm_ascend == "v0.18.0"
    assert cluster.versions.mooncake == "0.3.9"


# Chips --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "chips", "mapped"),
    [
        ({}, list(range(16)), list(range(16))),
        ({"pd_chips_per_node": 8}, list(range(8)), list(range(8))),
        ({"pd_chips": [4, 5]}, [4, 5], [4, 5]),
        ({"pd_chips": [5, 4]}, [5, 4], [4, 5]),
        ({"pd_mapped_chips": [4, 5]}, [4, 5], [4, 5]),
        ({"pd_chips": [4], "pd_mapped_chips": [4, 5]}, [4], [4, 5]),
        ({"pd_chips": [4, 5], "pd_runtime": "process"}, [4, 5], list(range(16))),
        ({"pd_chips": [4], "pd_mapped_chips": [5, 4], "pd_runtime": "process"}, [4], [4, 5]),
    ],
)
def test_chips_and_mapped_chips(variables: Variables, chips: list[int], mapped: list[int]) -> None:
    cluster = cluster_of(base(all=variables))
    for instance in cluster.instances:
        for member in instance.members:
            assert (member.chips, member.mapped_chips) == (chips, mapped)


# Hosts in several instances -------------------------------------------------------------------------------------------


def test_an_entry_overrides_the_hosts_variable() -> None:
    source = base(all={"pd_instances": {"d-a": {"pd_api_port": 8000}, "p-b": {"pd_engine_args_extra": {"seed": 1}}}})
    plan = planned(source)
    assert not plan.findings, told(plan.findings)
    assert placement(plan, "d-a", "d2").processes[0].api_port == 8000
    assert placement(plan, "p-a", "p1").processes[0].api_port == 7100
    assert "--seed" in placement(plan, "p-b", "p2").processes[0].argv


def test_a_null_in_an_entry_is_not_given() -> None:
    source = base(all={"pd_instances": {"d-a": {"pd_api_port": None}}})
    assert placement(planned(source), "d-a", "d1").processes[0].api_port == 7100


def test_a_shared_hosts_own_values_are_not_guessed_at() -> None:
    """Which group's value won on a host in two groups is an accident of names; only what is physical is read."""
    source = one_host(host={"pd_tp_size": 8, "pd_kv_port": 1, "pd_nic": "eth7", "pd_chips_per_node": 8})
    plan = planned(source)
    (finding,) = plan.findings
    assert (finding.rule, finding.severity) == ("host-variable-unread", "warning"), told(plan.findings)
    assert finding.value == ["pd_kv_port"], "each entry has a pd_tp_size"
    env = placement(plan, "d-a", "h1").processes[0].env
    assert env["GLOO_SOCKET_IFNAME"] == "eth7"
    assert plan.cluster is not None
    assert [instance.tp_size for instance in plan.cluster.instances] == [2, 1]


def test_required_values_of_a_shared_instance_are_asked_for_in_its_entry() -> None:
    source = one_host(decode={"pd_tp_size": None})
    finding = only(source, "required-variable")
    assert (finding.host, finding.variable) == ("d-a", "pd_tp_size")
    assert "pd_instances.d-a" in finding.fix


@pytest.mark.parametrize("value", ["x", 1, [], ["pd_tp_size"], None])
def test_an_entry_that_is_no_mapping(value: t.Any) -> None:
    finding = only(base(all={"pd_instances": {"d-a": value}}), "variable-value")
    assert finding.variable == "pd_instances.d-a"


@pytest.mark.parametrize("value", ["x", 1, ["d-a"], True])
def test_entries_that_are_no_mapping(value: t.Any) -> None:
    plan = planned(base(all={"pd_instances": value}))
    assert {finding.variable for finding in plan.errors} == {"pd_instances"}


def test_a_bad_value_in_an_entry_names_the_host_and_the_variable() -> None:
    finding = only(one_host(decode={"pd_kv_port": 70000}), "variable-value")
    assert (finding.host, finding.variable, finding.value) == ("h1", "pd_kv_port", 70000)


def test_entries_must_be_the_same_everywhere() -> None:
    source = base(p1={"pd_instances": {"d-a": {"pd_tp_size": 1}}}, d2={"pd_instances": {"d-a": {"pd_tp_size": 2}}})
    assert only(source, "cluster-variable-differs").variable == "pd_instances"


# Values that are the same but not alike ---------------------------------------------------------------------------------


def test_text_and_number_of_one_value_do_not_differ() -> None:
    source = base(d1={"pd_kv_port": "36200"}, d2={"pd_kv_port": 36200})
    assert rules_of(source) == ["text-value"]


@pytest.mark.parametrize(("first", "second"), [(1, True), (True, 1), (1, "yes"), (1, 1.0), (1.0, 1)])
def test_equal_values_of_other_types_are_looked_at_each(first: t.Any, second: t.Any) -> None:
    """True == 1 == 1.0 in Python."""
    source = base(p1={"pd_pp_size": first}, p2={"pd_pp_size": second})
    found = {finding.host for finding in planned(source).errors if finding.rule == "variable-value"}
    assert found == ({"p2"} if first == 1 and type(first) is int else {"p1"})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("pd_kv_port", "36000"),
        ("pd_tp_size", "8"),
        ("pd_dp_size", "2"),
        ("pd_dp_rank_start", "0"),
        ("pd_api_port", "7100"),
        ("pd_chips", ["0", *range(1, 16)]),
    ],
)
def test_numbers_as_text_are_read_and_said(variable: str, value: t.Any) -> None:
    source = base(p1={variable: value})
    plan = planned(source)
    assert [(f.rule, f.severity, f.host, f.variable) for f in plan.findings] == [
        ("text-value", "warning", "p1", variable)
    ], told(plan.findings)
    assert len(plan.placements) == 4


def test_numbers_as_text_plan_the_same() -> None:
    text = {name: str(value) for name, value in base()["hosts"]["p1"].items() if type(value) is int}
    plan, wanted = planned(base(p1=text)), planned(base())
    assert [p.processes for p in plan.placements] == [p.processes for p in wanted.placements]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("pd_chips", "0,1,2,3"),
        ("pd_chips", "[0, 1, 2, 3]"),
        ("pd_engine_args", "{'x': 1}"),
        ("pd_engine_args", '{"x": true}'),
        ("pd_kv_transfer_config", "engine_id=2"),
        ("pd_mounts", "/a:/b"),
        ("pd_dp_size", "2 # ranks"),
        ("pd_dp_size", "two"),
    ],
)
def test_text_of_an_ini_inventory_that_is_no_value(variable: str, value: str) -> None:
    plan = planned(base(p1={variable: value}))
    assert {(f.rule, f.host, f.variable) for f in plan.errors} == {("variable-value", "p1", variable)}, told(
        plan.findings
    )


@pytest.mark.parametrize("variable", ["pd_kv_port", "pd_nic", "pd_engine_args", "pd_chips", "pd_node_ip", "pd_mounts"])
def test_null_is_as_if_it_were_not_there(variable: str) -> None:
    source, without = (base(p1={variable: value, "ansible_host": "192.0.2.11"}) for value in (None, ABSENT))
    assert planned(source).findings == planned(without).findings
    assert [p.processes for p in planned(source).placements] == [p.processes for p in planned(without).placements]


# What is said when it is wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("pd_kvport", "pd_kv_port"),
        ("pd_dp_sise", "pd_dp_size"),
        ("pd_engine_arg", "pd_engine_args"),
        ("pd_connectors", "pd_connector"),
        ("pd_nodeip", "pd_node_ip"),
        ("pd_Tp_Size", "pd_tp_size"),
        ("pd_rehersal", "pd_rehearsal"),
        ("pd_qery", "pd_query"),
    ],
)
def test_did_you_mean(name: str, near: str) -> None:
    finding = only(base(d1={name: 1}), "unknown-variable")
    assert (finding.host, finding.variable) == ("d1", name)
    assert f"did you mean {near}?" in finding.fix


@pytest.mark.parametrize(
    "name", ["pd_nonsense", "pd_x", "pd_api_key", "pd_model", "pd_timeout", "pd_host", "pd_version"]
)
def test_a_far_name_gets_no_suggestion(name: str) -> None:
    assert only(base(d1={name: 1}), "unknown-variable").fix == "see docs/inventory.md for the variables there are"


def test_every_bad_mount_is_named() -> None:
    finding = only(base(p1={"pd_mounts": ["/a:/b", "c:/d", "/e", 7]}), "variable-value")
    assert "'c:/d', '/e', 7;" in finding.message
    assert "'/a:/b'" not in finding.message


@pytest.mark.parametrize("variable", ["ansible_host", "pd_node_ip"])
def test_a_broken_template_of_an_address_is_said_once(variable: str) -> None:
    source = base(p2={"pd_node_ip": ABSENT})
    source["broken"] = [{"host": "p2", "variable": variable, "message": "'x' is undefined"}]
    assert rules_of(source) == ["template"]


def test_a_broken_template_of_a_required_value_is_said_once() -> None:
    source = base(decode={"pd_tp_size": ABSENT})
    source["broken"] = [
        {"host": host, "variable": "pd_tp_size", "message": "'x' is undefined"} for host in ("d1", "d2")
    ]
    assert rules_of(source) == ["template"]


def test_a_misspelt_host_of_the_proxy() -> None:
    finding = only(base(groups={"proxy": {"hosts": ["p01"]}}, more={"p01": {}}), "node-ip")
    assert (finding.host, finding.message) == ("p01", "p01 has neither pd_node_ip nor ansible_host")
    assert "group proxy names a host of no other group; did you mean p1?" in finding.fix
    other = only(base(groups={"proxy": {"hosts": ["gateway"]}}, more={"gateway": {}}), "node-ip")
    assert "did you mean" not in other.fix


def test_a_misspelt_host_of_the_pool() -> None:
    groups = {"kv_pool": {"hosts": ["p01"]}}
    finding = only(base(groups=groups, all={"pd_kv_pool": {}}, more={"p01": {}}), "node-ip")
    assert "group kv_pool names a host of no other group; did you mean p1?" in finding.fix


def test_a_host_of_a_mixed_role_group_is_of_a_group() -> None:
    """Which instance it belongs to cannot be told, but its name is no misspelt one."""
    groups = {"prefill": {"hosts": ["p1", "p2"], "children": {"empty_one": ["p2"]}}}
    source = base(groups=groups, p1={"pd_node_ip": ABSENT, "ansible_host": "p1-alias"})
    assert "role-group-mixed" in errors_of(source)
    assert "did you mean" not in only(source, "node-ip", "p1").fix


def test_an_unknown_variable_of_all_hosts_is_said_once() -> None:
    finding = only(base(all={"pd_kvport": 1}), "unknown-variable")
    assert "p1, p2, d1, d2" in finding.message


def test_hosts_outside_the_cluster_are_not_looked_at() -> None:
    source = base(more={"other": {"pd_nonsense": 1, "pd_tp_size": "x"}})
    assert not planned(source).findings


@pytest.mark.parametrize("hardware", [ABSENT, "a4", "950DT"])
def test_other_faults_are_found_without_the_hardware(hardware: t.Any) -> None:
    source = base(all={"pd_hardware": hardware}, p1={"pd_tp_size": "x"}, d2={"pd_nic": "xxxx"})
    found = {(finding.host, finding.variable) for finding in planned(source).errors}
    assert {("p1", "pd_tp_size"), ("d2", "pd_nic")} <= found


@pytest.mark.parametrize(
    ("bad", "rule"),
    [
        ({"pd_kv_port": "abc"}, "variable-value"),
        ({"pd_nic": "xxxx"}, "placeholder"),
        ({"pd_api_port": 0}, "variable-value"),
    ],
)
def test_a_bad_value_does_not_hide_a_bad_layout(bad: Variables, rule: str) -> None:
    source = base(d2={**bad, "pd_dp_rank_start": 4})
    assert {rule, "dp-ranks"} <= set(errors_of(source))


def test_a_bad_value_does_not_hide_bad_chips() -> None:
    source = base(p1={"pd_kv_port": "abc", "pd_chips": [90]})
    assert {"variable-value", "chip-not-there"} <= set(errors_of(source))


def test_one_instances_fault_leaves_the_others_planned() -> None:
    plan = planned(base(p1={"pd_tp_size": "abc"}))
    assert [placed.instance.name for placed in plan.placements] == ["p-b", "d-a", "d-a"]


@pytest.mark.parametrize("name", ["vip", "chip", "ship", "Tulip", "IP"])
@pytest.mark.parametrize("variable", ["pd_served_model_name", "pd_cluster_name"])
def test_words_that_end_in_ip_are_no_placeholders(variable: str, name: str) -> None:
    assert not planned(base(all={variable: name})).findings


@pytest.mark.parametrize("value", ["LOCAL_IP", "local_ip", "$local_ip", "NIC_NAME", "nic_name", "eth?"])
def test_names_of_the_guides_shell_variables(value: str) -> None:
    """They are no addresses; as cards some are names that could be."""
    assert errors_of(base(p1={"pd_node_ip": value}))


def test_the_proxys_host_may_come_from_a_child_group() -> None:
    source = base(groups={"proxy": {"hosts": [], "children": {"doors": ["p1"]}}})
    assert not planned(source).findings


@pytest.mark.parametrize("name", ["proxy", "a b", "a/b", "../x", "模型", "a:b", "-x"])
def test_an_instance_has_a_name_that_containers_and_folders_can_have(name: str) -> None:
    """`proxy` would be the name of the proxy's own unit."""
    plan = planned(base(groups={"prefill": {"hosts": [], "children": {name: ["p1"], "p-b": ["p2"]}}}))
    assert name in {finding.host for finding in plan.errors}


def test_the_inventory_is_not_changed() -> None:
    source = one_host(
        prefill={"pd_kv_transfer_config": {"engine_id": 1, "kv_connector_extra_config": {"a": {"b": 1}}}},
        host={"pd_kv_pool": {"backend": "mooncake"}, "pd_mounts": ["/a:/b"], "pd_engine_args_common": DECODE_ARGS},
    )
    before = copy.deepcopy(source)
    planned(source)
    assert source == before


@pytest.mark.parametrize(
    "groups",
    [
        {},
        {"prefill": None, "decode": None, "proxy": None},
        {"prefill": {}, "decode": {}, "proxy": {}},
        {"prefill": {"hosts": None, "children": None}, "decode": {"hosts": []}, "proxy": {"hosts": None}},
    ],
)
def test_no_hosts_at_all(groups: Variables) -> None:
    plan = planned({"groups": groups, "hosts": {}})
    assert {"role-without-hosts", "proxy-host", "required-variable"} == {finding.rule for finding in plan.errors}
    assert plan.cluster is None


def test_a_host_without_any_variable() -> None:
    source = base(groups={"decode": {"hosts": [], "children": {"d-a": ["d1", "empty"]}}})
    plan = planned(source)
    assert ("empty", "pd_node_ip") in {(finding.host, finding.variable) for finding in plan.errors}


@pytest.mark.parametrize(("number", "text"), [(0, "0 hosts"), (1, "1 host"), (2, "2 hosts")])
def test_count(number: int, text: str) -> None:
    assert inventory.count(number, "host") == text

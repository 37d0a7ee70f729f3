# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Every rule speaks where it should, names what it must, and keeps quiet next to it (rule_cases)."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import planner
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils import rule_cases, support


def test_base_has_no_finding() -> None:
    assert not support.planned(support.base()).findings, support.told(support.planned(support.base()).findings)


def test_base_without_given_layout_has_no_finding() -> None:
    findings = support.planned(support.planned_by_default()).findings
    assert not findings, support.told(findings)


@pytest.mark.parametrize("case", rule_cases.PROVOKING, ids=str)
def test_provoking(case: rule_cases.Provoking) -> None:
    plan = support.planned(case.source)
    found = [finding for finding in plan.findings if finding.rule == case.rule]
    hosts = {finding.host for finding in found}
    assert case.host in hosts, support.told(plan.findings)
    finding = next(f for f in found if f.host == case.host)
    assert finding.severity == case.severity
    assert finding.variable == case.variable
    assert finding.value == case.value
    assert type(finding.value) is type(case.value)
    text = support.everything_said(finding)
    for words in case.says:
        assert words in text, text
    if case.alone:
        assert {f.rule for f in plan.findings} == {case.rule}, support.told(plan.findings)


@pytest.mark.parametrize("case", rule_cases.PROVOKING, ids=str)
def test_a_finding_tells_what_to_do_and_where_to_read_more(case: rule_cases.Provoking) -> None:
    plan = support.planned(case.source)
    for finding in plan.findings:
        assert len(finding.fix) > 10
        assert len(finding.message) > 10
        assert "\n" not in finding.message + finding.fix
        assert finding.see == f"docs/rules.md#{finding.rule}"
        assert finding.host, "a finding names a host, an instance or a group"
        words = f"{finding.message} {finding.fix}"
        for inner in ("Traceback", "object at 0x", "KeyError", "<class", "None of", "{'", "Ellipsis"):
            assert inner not in words.replace(repr(finding.value), ""), words


@pytest.mark.parametrize("case", rule_cases.PROVOKING, ids=str)
def test_findings_are_in_the_plan_that_is_written(case: rule_cases.Provoking) -> None:
    plan = support.planned(case.source)
    written = json.loads(planner.to_json(plan))["findings"]
    assert [entry["rule"] for entry in written] == [finding.rule for finding in plan.findings]
    assert all(
        set(entry) == {"rule", "severity", "host", "variable", "value", "message", "fix", "see"} for entry in written
    )


@pytest.mark.parametrize("case", rule_cases.QUIET, ids=str)
def test_quiet(case: rule_cases.Quiet) -> None:
    plan = support.planned(case.source)
    assert case.rule not in {finding.rule for finding in plan.findings}, support.told(plan.findings)
    if case.clean:
        assert not plan.findings, support.told(plan.findings)


def test_errors_come_before_warnings() -> None:
    source = support.base(p1={"pd_kv_port": "20002"}, decode={"pd_qos_priority": True})
    severities = [finding.severity for finding in support.planned(source).findings]
    assert severities == sorted(severities)
    assert {"error", "warning"} == set(severities)


def test_all_faults_of_one_plan_are_reported_together() -> None:
    """Faults of a value, of the layout, of sizes, of ports and of options in one inventory."""
    source = support.base(
        all={"pd_kv_release_timeout": 5, "pd_container_network": "bridge"},
        p1={"pd_kv_port": 20002, "pd_nic": "bond 0"},
        p2={"pd_kv_port": 20002, "pd_kvport": 1},
        decode={"pd_engine_args": {"speculative-config": "nope"}},
        d2={"pd_dp_rank_start": 8},
    )
    rules = set(support.rules_of(source))
    assert rules >= {
        "kv-release-timeout",
        "container-network",
        "variable-value",
        "unknown-variable",
        "kv-port-reserve",
        "dp-ranks",
    }, support.told(support.planned(source).findings)


def test_the_same_fault_on_many_hosts_is_said_once_and_names_the_others() -> None:
    finding = support.only(support.base(all={"pd_nic": "xxxx"}), "placeholder")
    assert finding.host == "p1"
    assert "also on p2, d1, d2" in finding.message


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("additional-config", "nope", "json-option"),
        ("kv-transfer-config", {"kv_role": "kv_both"}, "planned-argument"),
        ("uds", "/tmp/x", "planned-argument"),
        ("enable-expert-parallel", "true", "text-option"),
        ("max-num-seqs", "many", "option-value"),
    ],
)
def test_a_fault_of_the_common_options_is_said_once(option: str, value: t.Any, rule: str) -> None:
    finding = support.only(support.base(all={"pd_engine_args_common": {option: value}}), rule)
    assert finding.variable == f"pd_engine_args_common.{option}"


def test_faults_of_common_options_that_differ_by_role_are_both_said() -> None:
    source = support.base(
        all={"pd_engine_args_common": {"enable-prefix-caching": True}, "pd_model_family": "hybrid_mamba"}
    )
    found = [f for f in support.planned(source).findings if f.rule == "hybrid-prefix-cache"]
    assert [f.severity for f in found] == ["error", "warning"]


def test_many_hosts_are_counted_not_listed() -> None:
    hosts = [f"x{number}" for number in range(40)]
    more = {
        host: {**support.CLUSTER, "pd_node_ip": f"192.0.2.{100 + number}", "pd_nic": "xxxx", "pd_dp_size": 640}
        for number, host in enumerate(hosts)
    }
    source = support.base(groups={"decode": {"hosts": hosts}}, more=more)
    for host in hosts:
        source["hosts"][host]["pd_tp_size"] = 1
    finding = support.only(source, "placeholder")
    assert "also on x1, x2, x3, x4, and 35 more" in finding.message
    assert len(finding.message) < 400

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The inventories that the planner's tests vary, and the few questions they ask of a plan.

BASE is four A3 hosts with two prefill instances and one decode instance over two hosts, everything given explicitly.
It must plan without any finding, so that a test which changes one thing sees what that one thing does.
"""

from __future__ import annotations

import copy
import json
import typing as t

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import planner, report
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.model import Finding, Placement

Source = dict[str, t.Any]
Variables = dict[str, t.Any]

# A variable with this value is taken out of the inventory.
ABSENT: t.Final = ...

CLUSTER: Variables = {
    "pd_hardware": "a3",
    "pd_nic": "eth-data0",
    "pd_container_network": "host",
    "pd_proxy_port": 1999,
    "pd_model_is_moe": True,
    "pd_model_family": "other",
    "pd_model_path": "/models/DeepSeek-r1_w8a8_mtp",
    "pd_served_model_name": "ds_r1",
    "pd_connector": "MooncakeConnectorV1",
    "pd_kv_release_timeout": 480,
}
PREFILL_ARGS: Variables = {
    "block-size": 128,
    "speculative-config": {"num_speculative_tokens": 1, "method": "deepseek_mtp"},
}
DECODE_ARGS: Variables = {
    "block-size": 128,
    "speculative-config": {"num_speculative_tokens": 3, "method": "deepseek_mtp"},
}
PREFILL: Variables = {
    "pd_dp_size": 2,
    "pd_tp_size": 8,
    "pd_pp_size": 1,
    "pd_dp_size_local": 2,
    "pd_dp_rank_start": 0,
    "pd_dp_rpc_port": 12321,
    "pd_api_port": 7100,
    "pd_engine_args": PREFILL_ARGS,
}
DECODE: Variables = {
    "pd_dp_size": 32,
    "pd_tp_size": 1,
    "pd_pp_size": 1,
    "pd_dp_size_local": 16,
    "pd_dp_rpc_port": 12321,
    "pd_api_port": 7100,
    "pd_engine_args": DECODE_ARGS,
}
HOSTS: dict[str, Variables] = {
    "p1": {"pd_node_ip": "192.0.2.11", "pd_dp_address": "192.0.2.11", "pd_kv_port": 36000},
    "p2": {"pd_node_ip": "192.0.2.12", "pd_dp_address": "192.0.2.12", "pd_kv_port": 36100},
    "d1": {"pd_node_ip": "192.0.2.21", "pd_dp_address": "192.0.2.21", "pd_kv_port": 36200, "pd_dp_rank_start": 0},
    "d2": {"pd_node_ip": "192.0.2.22", "pd_dp_address": "192.0.2.21", "pd_kv_port": 36200, "pd_dp_rank_start": 16},
}
GROUPS: dict[str, t.Any] = {
    "prefill": {"hosts": [], "children": {"p-a": ["p1"], "p-b": ["p2"]}},
    "decode": {"hosts": [], "children": {"d-a": ["d1", "d2"]}},
    "proxy": {"hosts": ["p1"]},
}
# What nothing reads on BASE's p1 once it is a host of two instances.
NOT_READ: Variables = dict.fromkeys((*PREFILL, "pd_dp_address", "pd_kv_port"), ABSENT)
SCOPES: dict[str, tuple[str, ...]] = {
    "all": ("p1", "p2", "d1", "d2"),
    "prefill": ("p1", "p2"),
    "decode": ("d1", "d2"),
}


def base(*, groups: Variables | None = None, more: dict[str, Variables] | None = None, **changes: Variables) -> Source:
    """BASE, with variables changed for `all`, a role or a host; `more` adds hosts, `groups` replaces groups.

    Values of one scope are one object for all of its hosts, as Ansible has it for group variables.
    """
    hosts = {host: {**CLUSTER, **(PREFILL if host.startswith("p") else DECODE), **own} for host, own in HOSTS.items()}
    hosts = copy.deepcopy({**hosts, **(more or {})})
    for scope in ("all", "prefill", "decode", *hosts):
        for host in SCOPES.get(scope, (scope,)):
            for name, value in changes.get(scope, {}).items():
                if value is ABSENT:
                    hosts[host].pop(name, None)
                else:
                    hosts[host][name] = value
    unknown = set(changes) - {"all", "prefill", "decode", *hosts}
    assert not unknown, f"no such scope: {unknown}"
    return {"groups": copy.deepcopy({**GROUPS, **(groups or {})}), "hosts": hosts}


def base_at(scope: str, **variables: t.Any) -> Source:
    """BASE with variables of one scope changed."""
    changes: dict[str, t.Any] = {scope: variables}
    return base(**changes)


def planned_by_default(**changes: Variables) -> Source:
    """BASE without what the plan works out itself: ranks, addresses and ports."""
    left_out = dict.fromkeys(
        (
            "pd_dp_address",
            "pd_dp_rank_start",
            "pd_dp_size_local",
            "pd_dp_rpc_port",
            "pd_api_port",
            "pd_kv_port",
        ),
        ABSENT,
    )
    return base(**{**changes, "all": {**left_out, **changes.get("all", {})}})


def one_host(
    prefill: Variables | None = None, decode: Variables | None = None, host: Variables | None = None
) -> Source:
    """Prefill `p-a` and decode `d-a` on one A2 host, four chips each."""
    return {
        "groups": {
            "prefill": {"hosts": [], "children": {"p-a": ["h1"]}},
            "decode": {"hosts": [], "children": {"d-a": ["h1"]}},
            "proxy": {"hosts": ["h1"]},
        },
        "hosts": {
            "h1": {
                "pd_hardware": "a2",
                "pd_model_path": "/models/m",
                "pd_served_model_name": "m",
                "pd_node_ip": "192.0.2.31",
                "pd_instances": {
                    "p-a": {"pd_dp_size": 2, "pd_tp_size": 2, "pd_chips": [0, 1, 2, 3], **(prefill or {})},
                    "d-a": {"pd_dp_size": 4, "pd_tp_size": 1, "pd_chips": [4, 5, 6, 7], **(decode or {})},
                },
                **(host or {}),
            }
        },
    }


# Two a5 hosts, four chips in use on each, and the configuration that D2RH was validated in.
A5_PAIR: Variables = {
    "pd_hardware": "a5",
    "pd_model_path": "/models/DeepSeek-V4-Flash-0731-w4a4c8",
    "pd_served_model_name": "dsv4",
    "pd_dp_size": 4,
    "pd_tp_size": 1,
    "pd_chips": [0, 1, 2, 3],
}
D2RH: Variables = {
    "pd_connector": "MooncakeD2RHConnectorV1",
    "pd_fabric": "uboe",
    "pd_dp_mode": "internal",
    "pd_kv_cache_gib": 50,
    "pd_host_memory_gib": 1024,
}
ROCE: Variables = {"pd_fabric": "host_roce"}


def roce(host: str, chips: t.Iterable[int] = range(8)) -> dict[int, str]:
    """Host RoCE addresses of p1 or d1."""
    return {chip: f"198.51.100.{(10 if host == 'p1' else 20) + chip}" for chip in chips}


def a5(*, groups: Variables | None = None, **changes: Variables) -> Source:
    """One prefill (p1) and one decode instance (d1) on a5 hosts, with variables changed for `all` or a host."""
    hosts: dict[str, Variables] = {
        "p1": {"pd_node_ip": "192.0.2.11", **copy.deepcopy(A5_PAIR)},
        "d1": {"pd_node_ip": "192.0.2.21", **copy.deepcopy(A5_PAIR)},
    }
    for scope in ("all", "p1", "d1"):
        for host in hosts if scope == "all" else (scope,):
            for name, value in changes.get(scope, {}).items():
                if value is ABSENT:
                    hosts[host].pop(name, None)
                else:
                    hosts[host][name] = value
    assert not set(changes) - {"all", *hosts}
    named = {"prefill": {"hosts": ["p1"]}, "decode": {"hosts": ["d1"]}, "proxy": {"hosts": ["p1"]}}
    return {"groups": {**named, **(groups or {})}, "hosts": hosts}


def host_roce(**changes: Variables) -> Source:
    """The pair with Host RoCE and every address told."""
    own = {host: {"pd_roce_addresses": roce(host), **changes.pop(host, {})} for host in ("p1", "d1")}
    return a5(all={**ROCE, **changes.pop("all", {})}, **own, **changes)


def d2rh(**changes: Variables) -> Source:
    return a5(**{**changes, "all": {**D2RH, **changes.get("all", {})}})


def two_prefill_on_p1(first: Variables, second: Variables, **changes: Variables) -> Source:
    """BASE's p1 with two prefill instances; p2 carries none, as instances of a role have equal sizes."""
    groups = {"prefill": {"hosts": [], "children": {"p-a": ["p1"], "p-b": ["p1"]}}}
    instances = {"p-a": first, "p-b": second}
    own = {**NOT_READ, **changes.get("p1", {})}
    return base(groups=groups, **{**changes, "p1": own, "all": {"pd_instances": instances, **changes.get("all", {})}})


def planned(source: Source) -> planner.Plan:
    return planner.plan(source)


def as_json(source: Source) -> t.Any:
    """The public JSON of the plan, read back."""
    return json.loads(planner.to_json(planner.plan(source)))


def told(findings: t.Sequence[Finding]) -> str:
    """The findings as an operator sees them, for the message of a failed test."""
    return "\n".join(report.finding_lines(findings)) or "no findings"


def rules_of(source: Source) -> list[str]:
    return [finding.rule for finding in planned(source).findings]


def errors_of(source: Source) -> list[str]:
    return [finding.rule for finding in planned(source).errors]


def only(source: Source, rule: str, host: str | None = None) -> Finding:
    """The one finding of this rule (and host)."""
    findings = planned(source).findings
    found = [finding for finding in findings if finding.rule == rule and host in (None, finding.host)]
    assert len(found) == 1, f"{len(found)} findings of {rule}:\n{told(findings)}"
    return found[0]


def everything_said(finding: Finding) -> str:
    """All of a finding that a reader sees."""
    return " ".join(report.finding_lines([finding]))


def placement(plan: planner.Plan, instance: str, host: str) -> Placement:
    found = [p for p in plan.placements if p.instance.name == instance and p.host == host]
    assert len(found) == 1, f"{instance} is {len(found)} times on {host}:\n{told(plan.findings)}"
    return found[0]


def argv_of(source: Source, instance: str = "p-a", host: str = "p1", process: int = 0) -> list[str]:
    return placement(planned(source), instance, host).processes[process].argv


def value_of(argv: t.Sequence[str], option: str) -> str:
    """The word after an option that is given exactly once."""
    assert argv.count(option) == 1, f"{option} is {argv.count(option)} times in {argv}"
    return argv[argv.index(option) + 1]


def kv_config(source: Source, instance: str = "p-a", host: str = "p1") -> t.Any:
    return json.loads(value_of(argv_of(source, instance, host), "--kv-transfer-config"))


def speculative(tokens: t.Any, method: t.Any = "deepseek_mtp") -> Variables:
    """pd_engine_args of a role with this many speculative tokens; ABSENT leaves the option out."""
    if tokens is ABSENT:
        return {"pd_engine_args": {"block-size": 128}}
    config = {"num_speculative_tokens": tokens, **({} if method is None else {"method": method})}
    return {"pd_engine_args": {"block-size": 128, "speculative-config": config}}

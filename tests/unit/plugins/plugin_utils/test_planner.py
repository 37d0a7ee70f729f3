# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The plan as a whole and its public JSON."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import planner
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    ABSENT,
    CLUSTER,
    as_json,
    base,
    one_host,
    planned,
    planned_by_default,
    told,
)

LAYERWISE = "MooncakeLayerwiseConnector"


def strict(content: bytes) -> t.Any:
    """JSON as every reader takes it: no Infinity, no NaN."""

    def refuse(name: str) -> t.NoReturn:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(content, parse_constant=refuse)


def test_shape() -> None:
    written = as_json(base())
    assert set(written) == {"schema", "cluster", "instances", "placements", "hosts", "findings", "kv_pool", "proxy"}
    assert written["schema"] == 1
    assert written["findings"] == []
    assert set(written["cluster"]["versions"]) == {"vllm_ascend", "cann", "mooncake", "hixl"}
    for instance in written["instances"]:
        assert set(instance) >= {
            *("name", "role", "dp_size", "tp_size", "pp_size", "pcp_size", "dcp_size", "dp_mode"),
            *("hosts", "dp_address", "dp_rpc_port", "api_port", "kv_port"),
        }
    for placement in written["placements"]:
        assert set(placement) >= {
            *("instance", "host", "role", "chips", "dp_rank_start", "dp_size_local", "kv_listen", "ports"),
            *("container", "processes"),
        }
        assert set(placement["container"]) >= {
            *("image", "name", "devices", "mounts", "privileged", "shm_size", "ulimits", "capabilities", "env"),
        }
        for ports in placement["ports"]:
            assert set(ports) == {"first", "last", "owner", "variable"}
        for process in placement["processes"]:
            assert set(process) == {"dp_rank", "dp_ranks", "visible_devices", "api_port", "env", "argv"}
    assert set(written["proxy"]) >= {"host", "kind", "port", "argv"}


def test_values_of_the_guides_example() -> None:
    written = as_json(base())
    assert [
        (i["name"], i["role"], i["dp_size"], i["tp_size"], i["hosts"], i["dp_address"], i["kv_port"])
        for i in written["instances"]
    ] == [
        ("p-a", "prefill", 2, 8, ["p1"], "192.0.2.11", 36000),
        ("p-b", "prefill", 2, 8, ["p2"], "192.0.2.12", 36100),
        ("d-a", "decode", 32, 1, ["d1", "d2"], "192.0.2.21", 36200),
    ]
    assert [(p["host"], p["dp_rank_start"], p["dp_size_local"], p["kv_listen"]) for p in written["placements"]] == [
        ("p1", 0, 2, [36000, 36015]),
        ("p2", 0, 2, [36100, 36115]),
        ("d1", 0, 16, []),
        ("d2", 16, 16, []),
    ]


def test_one_entry_a_line() -> None:
    """A plan of a thousand hosts is read with grep and diff."""
    text = planner.to_json(planned(base())).decode()
    lines = [line for line in text.splitlines() if line.startswith('{"instance":')]
    assert len(lines) == 4
    assert text.endswith("}\n")


def test_text_is_written_as_it_is() -> None:
    source = base(all={"pd_served_model_name": "模型 ☃"})
    assert "模型 ☃" in planner.to_json(planned(source)).decode()


def test_a_plan_without_hardware_is_written_too() -> None:
    written = as_json(base(all={"pd_hardware": ABSENT}))
    assert written["cluster"] is None
    assert written["instances"] == written["placements"] == written["hosts"] == []
    assert written["proxy"] is None
    assert written["findings"]


def test_an_instance_that_cannot_be_laid_out_is_in_findings_only() -> None:
    written = as_json(base(d2={"pd_dp_rank_start": 4}))
    assert [instance["name"] for instance in written["instances"]] == ["p-a", "p-b"]
    assert {placement["instance"] for placement in written["placements"]} == {"p-a", "p-b"}
    assert written["findings"]


@pytest.mark.parametrize("value", [float("inf"), float("nan"), [float("-inf")]])
def test_findings_about_numbers_that_json_does_not_have(value: t.Any) -> None:
    plan = planned(base(p1={"pd_tp_size": value}))
    assert plan.errors
    strict(planner.to_json(plan))


def test_lone_surrogates() -> None:
    """Text of the file system may hold them; the file must still be read back."""
    plan = planned(base(all={"pd_served_model_name": "m\udc80"}))
    assert json.loads(planner.to_json(plan))["cluster"]["served_model_name"] == "m\udc80"


SECRET = "s3cret-'value"
LOGIN = "http://user:passw0rd@proxy.example:3128"
LONG = {f"OTHER_{number}": "x" * 20 for number in range(3)}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"p1": {"pd_engine_args_extra": {"api-key": f"-{SECRET}"}}}, "option-value"),
        ({"p1": {"pd_engine_args_extra": {"api_key": ["good", f"-{SECRET}"]}}}, "option-value"),
        ({"p1": {"pd_engine_args_extra": {"hf-token": [SECRET]}}}, "option-value"),
        ({"p1": {"pd_engine_args_extra": {"api-keys": SECRET}}}, "unknown-option"),
        ({"d1": {"pd_engine_env": {}}, "d2": {"pd_engine_env": {"HF_TOKEN": SECRET}}}, "instance-variable-differs"),
        (
            {"d1": {"pd_engine_env": LONG}, "d2": {"pd_engine_env": {**LONG, "A_KEY": SECRET}}},
            "instance-variable-differs",
        ),
        (
            {"d2": {"pd_engine_env_common": {"A_TOKEN": SECRET}}, "d1": {"pd_engine_env_common": {}}},
            "cluster-variable-differs",
        ),
        ({"d2": {"pd_engin_env": {"A_TOKEN": SECRET}}}, "unknown-variable"),
        ({"d2": {"pd_api_key": SECRET}}, "unknown-variable"),
        (
            {"all": {"pd_engine_env_common": {"OPENAI_API_KEY": SECRET}}, "p1": {"pd_nic": f"a {SECRET}"}},
            "variable-value",
        ),
        ({"all": {"pd_instances": {"p-x": {"pd_engine_env": {"A_KEY": SECRET}}}}}, "instance-entry"),
        ({"all": {"pd_instances": {"p-a": {"pd_enginenv": {"A_TOKEN": SECRET}}}}}, "unknown-variable"),
        ({"all": {"pd_instances": {"p-a": {"pd_engine_args": {"api-key": f"-{SECRET}"}}}}}, "option-value"),
        ({"all": {"pd_image": LOGIN}}, "variable-value"),
        ({"d1": {"pd_engine_env": {}}, "d2": {"pd_engine_env": {"PROXY": LOGIN}}}, "instance-variable-differs"),
    ],
)
def test_no_finding_tells_a_secret(changes: dict[str, t.Any], rule: str) -> None:
    plan = planned(base(**changes))
    assert rule in [finding.rule for finding in plan.findings], told(plan.findings)
    written = json.dumps(as_json(base(**changes))["findings"])
    for text in (told(plan.findings), written):
        assert "s3c" not in text, text
        assert "passw0rd" not in text, text


def test_a_secret_that_is_short_or_no_text_is_masked_where_it_is_named() -> None:
    (finding,) = planned(base(p1={"pd_engine_args_extra": {"api-key": [True, "-k1"]}})).findings
    assert (finding.value, "k1" in finding.message) == ("********", False)
    assert "none of them beginning with '-'" in finding.message


def test_what_only_sounds_like_a_secret_is_shown() -> None:
    (finding,) = planned(base(p1={"pd_engine_args_extra": {"max-num-seqs": "tokens"}})).findings
    assert (finding.value, "'tokens'" in finding.message) == ("tokens", True)
    (finding,) = planned(
        base(p1={"pd_engine_args_extra": {"speculative-config": {"num_speculative_tokens": 0}}})
    ).findings
    assert finding.value == 0


# Proxy --------------------------------------------------------------------------------------------------------------


def test_proxy_as_the_guide_has_it() -> None:
    proxy = planned(planned_by_default()).proxy
    assert proxy is not None
    assert proxy["kind"] == "prefill_first"
    assert proxy["argv"] == [
        "python3",
        "/vllm-workspace/vllm-ascend/examples/disaggregated_prefill_v1/load_balance_proxy_server_example.py",
        *("--host", "192.0.2.11", "--port", "1999"),
        *("--prefiller-hosts", "192.0.2.11", "192.0.2.11", "192.0.2.12", "192.0.2.12"),
        *("--prefiller-ports", "7100", "7101", "7100", "7101"),
        *("--decoder-hosts", *["192.0.2.21"] * 16, *["192.0.2.22"] * 16),
        *("--decoder-ports", *map(str, range(7100, 7116)), *map(str, range(7100, 7116))),
    ]


def test_layerwise_has_its_own_proxy() -> None:
    proxy = planned(planned_by_default(all={"pd_connector": LAYERWISE})).proxy
    assert proxy is not None
    assert proxy["kind"] == "decode_first"
    assert proxy["argv"][1].endswith("load_balance_proxy_layerwise_server_example.py")
    assert "0.0.0.0" not in proxy["argv"]


def test_workers() -> None:
    proxy = planned(base(all={"pd_proxy_workers": 4})).proxy
    assert proxy is not None
    assert proxy["argv"][-2:] == ["--workers", "4"]


def test_hosts_and_ports_are_of_equal_number_and_pairs_are_unique() -> None:
    for source in (base(), one_host(), base(decode={"pd_dp_mode": "internal"})):
        plan = planned(source)
        assert not plan.findings, told(plan.findings)
        assert plan.proxy is not None
        argv = plan.proxy["argv"]
        ends = [argv.index(f"--{side}-{what}") for side in ("prefiller", "decoder") for what in ("hosts", "ports")]
        lists = [argv[start + 1 : end] for start, end in zip(ends, [*ends[1:], len(argv)], strict=True)]
        for hosts, ports in (lists[:2], lists[2:]):
            assert len(hosts) == len(ports) > 0
            assert len(set(zip(hosts, ports, strict=True))) == len(hosts)


def test_appending_an_instance_appends_to_the_proxys_lists() -> None:
    """What restarts is the proxy alone; the words before stay."""
    more = {"p3": {**CLUSTER, "pd_node_ip": "192.0.2.13", "pd_dp_size": 2, "pd_tp_size": 8}}
    groups = {"prefill": {"hosts": [], "children": {"p-a": ["p1"], "p-b": ["p2"], "p-c": ["p3"]}}}
    before, after = planned(planned_by_default()), planned(planned_by_default(groups=groups, more=more))
    assert not after.findings, told(after.findings)
    for old in before.placements:
        new = next(p for p in after.placements if (p.instance.name, p.host) == (old.instance.name, old.host))
        assert new.processes == old.processes

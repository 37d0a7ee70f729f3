# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What people read."""

from __future__ import annotations

import shlex
import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import report, slices
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.model import Finding
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    ABSENT,
    base,
    d2rh,
    one_host,
    planned,
    planned_by_default,
)


def test_table() -> None:
    assert report.table([("A", "LONG"), ("wider", "x"), ("", "y")]) == ["A      LONG", "wider  x", "       y"]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([0], "0"),
        ([0, 1, 2], "0-2"),
        ([0, 2], "0,2"),
        ([0, 1, 2, 8, 9, 11], "0-2,8-9,11"),
        ([3, 2, 1], "3,2,1"),
        (range(16), "0-15"),
    ],
)
def test_span(numbers: t.Sequence[int], text: str) -> None:
    assert report.span(numbers) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "00:00"), (59.9, "00:59"), (60, "01:00"), (3599, "59:59"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_clock(seconds: float, text: str) -> None:
    assert report.clock(seconds) == text


def test_plan_of_base() -> None:
    assert report.plan_lines(planned(base())) == [
        "Cluster pd: a3, MooncakeConnectorV1, vLLM-Ascend v0.23.0 (CANN 9.1.0, Mooncake 0.3.11.post1)",
        "2 prefill instances + 1 decode instance on 4 hosts, 36 vllm processes",
        "",
        "HOST  ADDRESS     INSTANCE  ROLE     CHIPS  RANKS  TP  API        KV LISTENS   DP RPC",
        "p1    192.0.2.11  p-a       prefill  0-15   0-1    8   7100-7101  36000-36015  12321",
        "p2    192.0.2.12  p-b       prefill  0-15   0-1    8   7100-7101  36100-36115  12321",
        "d1    192.0.2.21  d-a       decode   0-15   0-15   1   7100-7115  -            12321",
        "d2    192.0.2.22  d-a       decode   0-15   16-31  1   7100-7115  -            -",
        "",
        "Proxy on p1, http://192.0.2.11:1999 (prefill_first): 4 prefill endpoints, 32 decode endpoints",
    ]


def test_plan_with_headless_hosts_and_part_of_the_chips() -> None:
    internal = "\n".join(report.plan_lines(planned(base(decode={"pd_dp_mode": "internal"}))))
    assert "headless" in internal
    assert "1 decode endpoint" in internal
    assert "38 vllm" not in internal
    one = "\n".join(report.plan_lines(planned(one_host())))
    assert "4-7" in one


def test_plan_without_hardware() -> None:
    lines = report.plan_lines(planned(base(all={"pd_hardware": ABSENT})))
    assert len(lines) == 1
    assert "hardware" in lines[0]


def test_plan_without_any_placement() -> None:
    lines = report.plan_lines(planned(base(all={"pd_tp_size": ABSENT})))
    assert lines[1] == "2 prefill instances + 1 decode instance: none can be laid out, for what the findings say"
    assert not any(line.startswith("HOST") for line in lines)


def test_plan_with_an_instance_that_cannot_be_laid_out() -> None:
    lines = report.plan_lines(planned(base(d2={"pd_dp_rank_start": 4})))
    assert lines[1].endswith(" on 2 hosts, 4 vllm processes; not laid out, for what the findings say: d-a")


def test_plan_of_an_unknown_version() -> None:
    assert "(CANN ?, Mooncake ?)" in report.plan_lines(planned(base(all={"pd_vllm_ascend_version": "v0.99.0"})))[0]


def test_a_large_plan_is_cut() -> None:
    hosts = [f"x{number}" for number in range(300)]
    more = {
        host: {"pd_node_ip": f"198.51.{100 + number // 250}.{1 + number % 250}", "pd_dp_size": 2, "pd_tp_size": 8}
        for number, host in enumerate(hosts)
    }
    source = planned_by_default(groups={"prefill": {"hosts": hosts}}, more=more)
    lines = report.plan_lines(planned(source))
    assert sum(line.startswith("x") for line in lines) == report.MAX_ROWS
    assert any("102 more placements" in line for line in lines)


# Findings -----------------------------------------------------------------------------------------------------------


def finding(**changes: t.Any) -> Finding:
    made: dict[str, t.Any] = {
        "rule": "kv-port-reserve",
        "severity": "error",
        "host": "p1",
        "variable": "pd_kv_port",
        "value": 20002,
        "message": "what is wrong",
        "fix": "what to do",
        **changes,
    }
    return Finding(**made)


def test_finding_lines() -> None:
    assert report.finding_lines([finding()]) == [
        "ERROR [kv-port-reserve] p1 pd_kv_port = 20002",
        "    what is wrong",
        "    Fix: what to do",
    ]


def test_finding_without_variable_or_value() -> None:
    assert report.finding_lines([finding(severity="warning", variable=None, value=None)])[0] == (
        "WARNING [kv-port-reserve] p1"
    )


@pytest.mark.parametrize("value", [0, False, "", [], {}])
def test_empty_values_are_shown(value: t.Any) -> None:
    assert " = " in report.finding_lines([finding(value=value)])[0]


def test_long_values_are_cut() -> None:
    line = report.finding_lines([finding(value=list(range(1000)))])[0]
    assert len(line) < 120
    assert line.endswith("...")


@pytest.mark.parametrize(
    ("severities", "text"),
    [
        ([], "No findings."),
        (["error"], "1 error, 0 warnings."),
        (["warning", "warning"], "0 errors, 2 warnings."),
        (["error", "error", "warning"], "2 errors, 1 warning."),
    ],
)
def test_verdict(severities: list[str], text: str) -> None:
    assert report.verdict([finding(severity=severity) for severity in severities]).startswith(text)


# Progress and status ----------------------------------------------------------------------------------------------------


def test_progress_line() -> None:
    line = report.progress_line("d-a", 3, 32, 75, "loading weights " + "x" * 500)
    assert line.startswith("[01:15] d-a: 3/32 ranks ready  loading weights")
    assert len(line) < 160
    assert report.progress_line("d-a", 0, 1, 0, "") == "[00:00] d-a: 0/1 ranks ready"


def unit(**changes: t.Any) -> dict[str, t.Any]:
    processes = [
        {
            "name": f"rank{n}",
            "label": f"rank {n}",
            "health": "ready",
            "health_url": f"http://192.0.2.21:{7100 + n}/health",
        }
        for n in range(4)
    ]
    return {
        "deployed": True,
        "running": True,
        "current": True,
        "pid": 42,
        "contained": False,
        "since": 0,
        "end": None,
        "processes": processes,
        **changes,
    }


def test_a_unit_that_is_up() -> None:
    state = report.unit_state("d1", "pd-pd-d-a", "d-a", unit(), "process")
    assert state.problems == []
    assert state.deployed
    assert "4/4" in state.row
    assert "up" in state.row


def test_a_rank_that_does_not_answer() -> None:
    """RUN-01: the dead endpoint by host and port, and how many are left."""
    found = unit()
    found["processes"][1]["health"] = "unhealthy"
    state = report.unit_state("d1", "pd-pd-d-a", "d-a", found, "process")
    assert len(state.problems) == 1
    assert "d1:7101" in state.problems[0]
    assert "d-a" in state.problems[0]
    assert "3/4" in state.row


def test_run_03_endpoints_that_became_fewer() -> None:
    """RUN-03: three of sixteen do not answer any more; all three ports are named, and the count of the host."""
    found = unit(processes=[])
    found["processes"] = [
        {
            "name": f"rank{n}",
            "label": f"rank {n}",
            "health": "none" if n in (3, 8, 15) else "ready",
            "health_url": f"http://192.0.2.21:{7100 + n}/health",
        }
        for n in range(16)
    ]
    state = report.unit_state("d1", "pd-pd-d-a", "d-a", found, "process")
    (problem,) = state.problems
    for words in ("d1", "7103", "7108", "7115", "down", "13/16"):
        assert words in problem
    assert "13/16" in state.row


def test_a_unit_that_runs_with_the_other_runtime() -> None:
    state = report.unit_state("d1", "pd-pd-d-a", "d-a", unit(contained=True, current=False), "process")
    (note,) = state.notes
    assert note.startswith("d-a on d1 runs with runtime docker, but pd_runtime is process: stop it as it runs ")
    assert "in container" in state.row and "42" not in state.row
    assert report.unit_state("d1", "pd-pd-d-a", "d-a", unit(contained=True), "docker").notes == []


def test_a_unit_that_has_ended() -> None:
    end = {"at": 1, "code": 137, "reason": "rank 1 (pid 7) was killed by signal 9 (SIGKILL); ending the other 3"}
    found = unit(running=False, end=end, processes=[])
    state = report.unit_state("d1", "pd-pd-d-a", "d-a", found, "process")
    assert "ended" in state.row
    assert "killed by signal 9" in state.problems[0]
    assert "d1" in state.problems[0]


def test_a_unit_without_a_reason() -> None:
    state = report.unit_state("d1", "pd-pd-d-a", "d-a", unit(running=False, processes=[]), "process")
    assert "launcher is gone" in state.problems[0]


def test_a_unit_that_was_never_deployed() -> None:
    state = report.unit_state("d1", "pd-pd-d-a", "d-a", unit(deployed=False, running=False, processes=[]), "process")
    assert "not deployed" in state.row
    assert not state.deployed


def test_status_lines() -> None:
    states = [report.unit_state(f"x{n}", "pd-pd-d-a", "d-a", unit(), "process") for n in range(report.MAX_ROWS + 7)]
    lines = report.status_lines(states)
    assert lines[0].split() == ["HOST", "INSTANCE", "UNIT", "READY", "STATE", "PID", "SINCE"]
    assert "and 7 more" in "\n".join(lines)


# Summary ------------------------------------------------------------------------------------------------------------


def test_summary() -> None:
    plan = planned(base(all={"pd_served_model_name": "it's a model"}))
    overview = slices.overview(plan, slices.host_slices(plan, {}))
    gate = {
        "p-a": {"ready": 2, "seconds": 75.0, "started": True},
        "d-a": {"ready": 32, "seconds": 0.0, "started": False},
    }
    verify = {
        "requests": 8,
        "latency": {"median": 0.25},
        "roles": {"prefill": {"reached": 4, "total": 4}, "decode": {"reached": 30, "total": 32}},
    }
    text = "\n".join(report.summary_lines(overview, gate, verify, ["p-b is outside the limit"], 125))
    for words in (
        "Cluster pd (a3, MooncakeConnectorV1)",
        "2/2 ready after 01:15",
        "32/32 ready, was up",
        "not judged",
        "http://192.0.2.11:1999",
        "30/32 decode endpoints reached",
        "median 0.25 s",
        "p-b is outside the limit",
        "02:05",
    ):
        assert words in text
    command = shlex.split(text.rpartition("Try it:")[2])
    assert command[0] == "curl"
    assert "http://192.0.2.11:1999/v1/completions" in command


@pytest.mark.parametrize(
    ("ready", "started", "text"),
    [
        (32, True, "32/32 ready after 00:32"),
        (32, False, "32/32 ready, was up"),
        (0, True, "0/32 ready, 00:32 after the start"),
        (16, True, "16/32 ready, 00:32 after the start"),
        (16, False, "16/32 ready"),
    ],
)
def test_a_share_that_is_not_ready_is_not_said_to_be(ready: int, started: bool, text: str) -> None:
    plan = planned(base())
    overview = slices.overview(plan, slices.host_slices(plan, {}))
    gate = {"d-a": {"ready": ready, "seconds": 32.0, "started": started}}
    (row,) = (line for line in report.summary_lines(overview, gate, None, [], 0) if line.startswith("d-a"))
    assert row.endswith(f"  {text}")


def test_summary_without_a_verdict_offers_no_command() -> None:
    plan = planned(base())
    overview = slices.overview(plan, slices.host_slices(plan, {}))
    assert "curl" not in "\n".join(report.summary_lines(overview, {}, None, [], 0))


def test_the_command_to_try_has_a_body_that_is_json() -> None:
    import json

    plan = planned(base(all={"pd_served_model_name": 'a "quoted" name'}))
    overview = slices.overview(plan, slices.host_slices(plan, {}))
    text = "\n".join(report.summary_lines(overview, {}, {"requests": 1}, [], 0))
    command = shlex.split(text.rpartition("Try it:")[2])
    assert json.loads(command[-1])["model"] == 'a "quoted" name'


def test_a5_shows_its_fabric_and_decode_its_control_ports() -> None:
    lines = report.plan_lines(planned(d2rh()))
    assert lines[0].startswith("Cluster pd: a5 (uboe), MooncakeD2RHConnectorV1,")
    assert "28000-28003" in next(line for line in lines if line.startswith("p1"))
    assert "38100-38103,38200-38203" in next(line for line in lines if line.startswith("d1"))


def test_stop_names_what_it_leaves_in_parts() -> None:
    instances = [{"name": "prefill-p1", "hosts": ["p1"]}, {"name": "decode", "hosts": ["d1", "d2"]}]
    overview = {"name": "pd", "instances": instances}
    whole = report.stopped_lines(overview, ["p1", "d1", "d2"], [])
    assert len(whole) == 1 and "Cluster pd is stopped on 3 hosts" in whole[0]
    part = report.stopped_lines(overview, ["d2"], ["o1"])
    assert "stopped on 1 host." in part[0]
    assert "decode serves no more" in part[1] and "d1 still has the rest" in part[1]
    assert part[2:] == ["Not looked at, since they are in no group of a role: o1."]

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Preflight of rehearsed hosts: what is ordered to be wrong is found, alone, and nothing is changed."""

from __future__ import annotations

import collections
import itertools
import json
import pathlib
import socket
import typing as t

import pytest
import yaml

from ansible_collections.ascend.pd_serving.plugins.module_utils import port_probe

from .conftest import Rehearsal, Result

HOSTS = ("p1", "d1", "d2")
NPU = "opt/pd_rehearsal/npu"


def inventory(hardware: str = "a3") -> dict[str, t.Any]:
    """A prefill and a decode instance, the latter over two hosts, on four chips of each host."""
    return {
        "all": {
            "vars": {
                "pd_hardware": hardware,
                "pd_model_path": "/models/m",
                "pd_served_model_name": "m",
                "pd_chips": [0, 1, 2, 3],
                "pd_engine_args_common": {"max-model-len": 4096, "enable-expert-parallel": True},
            },
            "children": {
                "prefill": {"hosts": {"p1": {"ansible_host": "192.0.2.1"}}, "vars": {"pd_dp_size": 2, "pd_tp_size": 2}},
                "decode": {
                    "hosts": {name: {"ansible_host": f"192.0.2.{i + 2}"} for i, name in enumerate(HOSTS[1:])},
                    "vars": {"pd_dp_size": 4, "pd_tp_size": 2},
                },
                "proxy": {"hosts": {"p1": {}}},
            },
        }
    }


class Fleet:
    """A rehearsal and its simulated chips."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal

    def order(self, host: str, *lines: str) -> None:
        path = self.rehearsal.state / "hosts" / host / NPU / "faults"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def check(self, **more: t.Any) -> tuple[Result, dict[str, t.Any]]:
        """preflight.yml, and the report that it wrote."""
        folder = self.rehearsal.folder / "report"
        run = self.rehearsal.run("preflight.yml", preflight_report_dir=str(folder), **more)
        report: dict[str, t.Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        return run, report

    def found(self, **more: t.Any) -> set[tuple[str, str, str, int | None]]:
        """(check, severity, host, chip) of everything that is not good."""
        _run, report = self.check(**more)
        return {
            (one["check"], one["severity"], one["host"], one["chip"])
            for one in report["verdicts"]
            if one["severity"] != "info"
        }

    def calls(self, host: str) -> list[list[str]]:
        """start, end, exit code, tool, arguments of every call of a tool."""
        log = self.rehearsal.state / "hosts" / host / NPU / "calls.log"
        return [line.split(maxsplit=4) for line in log.read_text(encoding="utf-8").splitlines()]

    def forget_calls(self) -> None:
        for host in HOSTS:
            (self.rehearsal.state / "hosts" / host / NPU / "calls.log").unlink()

    def listeners(self) -> list[int]:
        """Processes that still listen on planned ports for the probes of a run."""
        roots = (str(self.rehearsal.state / "hosts" / host) for host in HOSTS)
        cluster = self.rehearsal.plan()["cluster"]["name"]
        return [pid for root in roots for pid in port_probe.listener_pids(cluster, root)]

    def tree(self) -> dict[str, tuple[int, bytes]]:
        """Every file of every host: mode and content, but for the log of calls."""
        files = {}
        for path in sorted((self.rehearsal.state / "hosts").rglob("*")):
            if path.is_file() and not path.is_symlink() and path.name != "calls.log":
                files[str(path)] = (path.stat().st_mode, path.read_bytes())
        return files


@pytest.fixture
def fleet(rehearse: t.Callable[..., Rehearsal], tmp_path: pathlib.Path) -> Fleet:
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump(inventory(), sort_keys=False), encoding="utf-8")
    return Fleet(rehearse(path))


# (lines, by host) -> what is found
FAULTS: dict[str, tuple[dict[str, list[str]], set[tuple[str, str, str, int | None]]]] = {
    "TLS of one chip": ({"d1": ["tls 3 on"]}, {("tls-equal", "error", "d1", 3)}),
    "a chip in alarm": ({"d2": ["health 1 Alarm"]}, {("chip-health", "error", "d2", 1)}),
    "another super pod": ({"d2": ["superpod 9"]}, {("super-pod", "error", "d2", None)}),
    "a vNIC that is down": ({"p1": ["vnic_link 0 down"]}, {("vnic-link", "error", "p1", 0)}),
    "an answer cut in the middle": ({"p1": ["garbled tls 2 cut"]}, {("tls-equal", "unknown", "p1", 2)}),
    "the RoCE link of a chip on A3, whose HCCS works": ({"d1": ["link 2 down"]}, {("link", "warning", "d1", 2)}),
}


def test_what_is_wrong_is_found_alone(fleet: Fleet) -> None:
    assert fleet.found() == set(), "a clean fleet has nothing"
    seen = {}
    for name, (lines, expected) in FAULTS.items():
        for host, ordered in lines.items():
            fleet.order(host, *ordered)
        seen[name] = (fleet.found(), expected)
        for host in lines:
            fleet.order(host)
    wrong = {name: found for name, (found, expected) in seen.items() if not expected <= found or len(found) > 2}
    assert wrong == {}
    fleet.order("d1", "tls 3 on")
    fleet.order("d2", "health 1 Alarm")
    run, report = fleet.check()
    assert {("tls-equal", "d1", 3), ("chip-health", "d2", 1)} <= {
        (one["check"], one["host"], one["chip"]) for one in report["verdicts"]
    }
    assert run.rc != 0 and report["exit_code"] == 2
    refused = fleet.rehearsal.run("site.yml")
    assert refused.rc != 0 and refused.changed() == {} and fleet.rehearsal.processes() == []
    assert "d1 chip 3" in refused.messages() and "Fix:" in refused.messages()
    assert list(fleet.rehearsal.state.glob("hosts/*/opt/pd_serving/*/run.lock")) == [], "others need not wait for it"
    for gate in ("warn", "off"):
        shown = fleet.rehearsal.run("preflight.yml", preflight_gate=gate)
        assert shown.rc == 0 and "d1 chip 3" in shown.stdout, gate


def test_a_host_with_only_the_proxy_is_asked_what_concerns_it(
    rehearse: t.Callable[..., Rehearsal], tmp_path: pathlib.Path
) -> None:
    given = inventory()
    given["all"]["children"]["proxy"] = {"hosts": {"x1": {"ansible_host": "192.0.2.9"}}}
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump(given, sort_keys=False), encoding="utf-8")
    alone = Fleet(rehearse(path))
    for words in ("", "--tags fabric"):
        assert alone.found(cmdline=words) <= {("proxy-not-on-prefill", "warning", "x1", None)}, words


def test_nothing_is_changed_and_each_question_asked_once(fleet: Fleet) -> None:
    fleet.check()
    before = fleet.tree()
    fleet.forget_calls()
    run, _report = fleet.check()
    assert run.rc == 0 and run.changed() == {}
    assert fleet.tree() == before
    for host in HOSTS:
        calls = fleet.calls(host)
        asked = collections.Counter((tool, arguments) for _start, _end, _code, tool, arguments in calls)
        assert set(asked.values()) == {1}, [call for call, count in asked.items() if count > 1]
        assert not [arguments for _tool, arguments in asked if " -s" in f" {arguments}" or arguments.startswith("set")]
        hccn = sorted(
            (float(start), float(end)) for start, end, _code, tool, _arguments in calls if tool == "hccn_tool"
        )
        assert all(second[0] >= first[1] for first, second in itertools.pairwise(hccn)), "one at a time"
        assert {code for _start, _end, code, _tool, _arguments in calls} == {"0"}
    executed = run.on_hosts()
    assert all(len(tasks) <= 3 for tasks in executed.values()), executed
    assert all("End the listeners" in tasks for tasks in executed.values()), executed
    assert fleet.listeners() == []


def test_32_hosts_are_asked_at_the_same_time_and_each_of_them_one_thing_at_a_time(
    rehearse: t.Callable[..., Rehearsal], tmp_path: pathlib.Path
) -> None:
    """By the log of calls, with tools that take 50 ms per call: everything once, in turn on a host, at once over hosts."""
    names = [f"h{number:02}" for number in range(32)]
    rows = {name: {"ansible_host": f"192.0.2.{number + 1}"} for number, name in enumerate(names)}
    wide = inventory()
    wide["all"]["vars"]["pd_chips"] = [0, 1]
    wide["all"]["children"] = {
        "prefill": {
            "hosts": {name: rows[name] for name in names[:16]},
            "vars": {"pd_dp_size": 1, "pd_tp_size": 2},
        },
        "decode": {"hosts": {name: rows[name] for name in names[16:]}, "vars": {"pd_dp_size": 16, "pd_tp_size": 2}},
        "proxy": {"hosts": {names[0]: {}}},
    }
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump(wide, sort_keys=False), encoding="utf-8")
    fleet = Fleet(rehearse(path))
    fleet.rehearsal.plan()  # builds the hosts
    for name in names:
        fleet.order(name, "delay_ms 50")
    run, report = fleet.check()
    assert run.rc == 0 and report["hosts"] == names
    executed = run.on_hosts()
    assert set(executed) == set(names) and max(map(len, executed.values())) <= 5, executed

    queries = ("lldp", "link", "net_health", "netdetect", "gateway", "ip", "vnic", "tls")
    expected = {f"hccn_tool -i {chip} -{query} -g" for chip in (0, 1) for query in queries}
    expected |= {f"npu-smi info -t spod-info -i 0 -c {chip}" for chip in (0, 1)}
    expected |= {"npu-smi info", "npu-smi info -m"}
    pinged: set[tuple[str, str, int]] = set()
    events: list[tuple[float, int]] = []
    for name in names:
        calls = fleet.calls(name)
        spans = sorted((float(start), float(end)) for start, end, *_rest in calls)
        assert all(second[0] >= first[1] for first, second in itertools.pairwise(spans)), f"{name}: one at a time"
        events += [edge for start, end in spans for edge in ((start, 1), (end, -1))]
        asked = collections.Counter(f"{tool} {words}" for _start, _end, _code, tool, words in calls)
        assert set(asked.values()) == {1}, [question for question, count in asked.items() if count > 1]
        assert {question for question in asked if "ping" not in question} == expected, name
        for question in asked.keys() - expected:
            _tool, _i, chip, _ping, _g, _address, address, *_more = question.split()
            net, _dot, last = address.rpartition(".")
            assert int(last) == int(chip) + 1, "the same chip of another host"
            pinged.add((name, net, int(chip)))
    net_of = {}
    for name in names:
        lines = (fleet.rehearsal.state / "hosts" / name / NPU / "host").read_text(encoding="utf-8").splitlines()
        net_of[next(line.split()[1] for line in lines if line.startswith("vnic_net "))] = name
    pairs = {(source, net_of[net], chip) for source, net, chip in pinged}
    assert len(pairs) == 32 * 8 * 2, "eight other hosts each, both chips"
    assert {(other, source, chip) for source, other, chip in pairs} == pairs, "in both directions"
    # A call that ends at the very moment is over before the next one begins.
    assert max(itertools.accumulate(change for _time, change in sorted(events))) >= 4, "hosts at the same time"


def test_a_cluster_that_serves_is_clean_and_serves_on(fleet: Fleet) -> None:
    assert fleet.rehearsal.run("site.yml").rc == 0
    before = fleet.rehearsal.pids("p1", "pd-pd-prefill-p1")
    assert fleet.found() == set()
    assert fleet.listeners() == []
    assert fleet.rehearsal.pids("p1", "pd-pd-prefill-p1") == before
    assert fleet.rehearsal.run("verify.yml").rc == 0


def test_a_limited_run_says_what_it_could_not_judge(fleet: Fleet) -> None:
    run, report = fleet.check(limit="d1")
    assert "End the listeners" not in run.on_hosts()["d1"], "nobody tries its ports, so none was listened on"
    assert report["hosts"] == ["d1"] and report["not_asked"] == ["p1", "d2"]
    assert {"tls-equal", "address-unique", "firewall"} <= set(report["not_judged"])
    assert report["counts"]["unknown"] == 0, report["verdicts"]


@pytest.mark.parametrize("words", ["--tags hardwear", "--tags fabric,hots", "--skip-tags iamge"])
def test_a_misspelt_tag_is_no_good_run(fleet: Fleet, words: str) -> None:
    run = fleet.rehearsal.run("preflight.yml", cmdline=words)
    assert run.rc != 0
    assert f"{words.replace(',', ' ').split()[-1]}: there is no such tag" in run.messages()
    assert "preflight, hardware, fabric, host, ports, image" in run.messages()


@pytest.mark.parametrize("words", ["--tags always", "--tags untagged,tagged", "--skip-tags never"])
def test_tags_of_ansibles_own_are_known(fleet: Fleet, words: str) -> None:
    assert fleet.rehearsal.run("preflight.yml", cmdline=words).rc == 0


def test_tags_choose_the_questions(fleet: Fleet) -> None:
    run, report = fleet.check(cmdline="--tags hardware")
    assert {check["tag"] for check in report["checks"] if check["id"] != "host-answers"} == {"hardware"}
    assert "Let the host ask others" not in {task for tasks in run.on_hosts().values() for task in tasks}


def test_a_port_that_somebody_else_has(fleet: Fleet) -> None:
    fleet.check()
    address = next(row["node_ip"] for row in fleet.rehearsal.plan()["placements"] if row["host"] == "d2")
    with socket.create_server((address, 7100)):
        found = fleet.found()
    assert {(check, host) for check, _severity, host, _chip in found} == {("port", "d2")}


def test_a_gate_that_there_is_not_is_refused_before_anybody_is_asked(fleet: Fleet) -> None:
    run = fleet.rehearsal.run("preflight.yml", preflight_gate="bogus")
    assert run.rc != 0 and "preflight_gate must be one of error, warn, off; it is 'bogus'" in run.messages()
    assert run.on_hosts() == {}

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Preflight over SSH of hosts with Docker: one fault is found alone, with its host and chip; a clean fleet has none.

The fleet is this file's own: hosts that nothing was ever deployed on, and at the end a cluster that serves.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
import typing as t

import pytest

from .conftest import ARCHIVE, IMAGE, Cluster, Lab, Run, inventory

FLEET = ("f1", "f2", "f3", "f4")
NPU = "/opt/pd_rehearsal/npu"
TOOL = "/usr/local/Ascend/driver/tools/hccn_tool"
CONF = "/etc/hccn.conf"
# (check, severity, host, chip)
Found = set[tuple[str, str, str, "int | None"]]

# Everything that a deployment writes, and what Docker holds. Contents, owners, modes and times: a file that is written
# anew with the same words would show. Of logs, which engines write to meanwhile, the names.
PLACES = "/etc /opt/pd_serving /var/log/pd_serving /models /usr/local"
SNAPSHOT = f"""
places=$(ls -d {PLACES} 2>/dev/null || true)
find $places ! -name '*.log' -printf '%p %y %M %u:%g %s %T@ %l\\n' | sort
find $places -name '*.log' | sort
find $places -type f ! -name '*.log' -exec sha256sum {{}} + | sort
docker ps -a --no-trunc --format '{{{{.ID}}}} {{{{.Names}}}} {{{{.State}}}} {{{{.Image}}}}'
docker images --no-trunc --format '{{{{.ID}}}} {{{{.Repository}}}}:{{{{.Tag}}}}'
cat /proc/sys/net/ipv4/ip_local_reserved_ports
"""


class Fleet:
    """The hosts, and what preflight says of them."""

    def __init__(self, lab: Lab, folder: pathlib.Path) -> None:
        self.lab, self.folder = lab, folder
        self.cluster = Cluster(lab, folder / "pd", inventory(lab, hosts=FLEET))

    def check(self, cluster: Cluster | None = None, **more: t.Any) -> tuple[Run, dict[str, t.Any]]:
        out = self.folder / "report"
        (out / "report.json").unlink(missing_ok=True)
        run = (cluster or self.cluster).run("preflight.yml", preflight_report_dir=str(out), **more)
        report: dict[str, t.Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
        return run, report

    def found(self, cluster: Cluster | None = None) -> Found:
        """Everything that is not good; notes do not count."""
        _run, report = self.check(cluster)
        return {
            (one["check"], one["severity"], one["host"], one["chip"])
            for one in report["verdicts"]
            if one["severity"] != "info"
        }

    def snapshot(self) -> dict[str, str]:
        return {host: self.lab.sh(host, SNAPSHOT) for host in FLEET}

    def calls(self, host: str) -> list[list[str]]:
        """start, end, exit code, tool, arguments of every call of a tool since it was last forgotten."""
        return [line.split(maxsplit=4) for line in self.lab.sh(host, f"cat {NPU}/calls.log").splitlines()]

    def forget_calls(self) -> None:
        for host in FLEET:
            self.lab.sh(host, f": > {NPU}/calls.log")

    def vnic(self, host: str, chip: int) -> str:
        net = self.lab.sh(host, f"sed -n 's/^vnic_net //p' {NPU}/host").strip()
        return f"{net}.{chip + 1}"

    def sdid(self, host: str, chip: int) -> str:
        said = self.lab.sh(host, f"npu-smi info -t spod-info -i {chip // 2} -c {chip % 2}")
        return next(line.split()[-1] for line in said.splitlines() if line.split()[:1] == ["SDID"])


@dataclasses.dataclass
class Fault:
    """Something wrong with one host: how to make it so, how to undo it, and what preflight has to say."""

    host: str
    make: str
    undo: str
    found: Found


def npu(host: str, line: str, check: str, chip: int | None, severity: str = "error") -> Fault:
    """A fault of the simulated chips: docs/rehearsal.md."""
    return Fault(host, f"echo '{line}' > {NPU}/faults", f": > {NPU}/faults", {(check, severity, host, chip)})


def on_host(host: str, make: str, undo: str, check: str, chip: int | None = None) -> Fault:
    return Fault(host, make, undo, {(check, "error", host, chip)})


SERVER = "python3 -m http.server 7100"
STOP_DOCKER = "systemctl stop docker.socket docker"
FAULTS = {
    "TLS of a chip": npu("f1", "tls 7 on", "tls-equal", 7),
    "a chip in alarm": npu("f3", "health 4 Alarm", "chip-health", 4),
    "a RoCE link, while HCCS works": npu("f2", "link 4 down", "link", 4, "warning"),
    "a vNIC": npu("f2", "vnic_link 4 down", "vnic-link", 4),
    "a vNIC without an address": npu("f3", "vnic 4 unset", "chip-address", 4),
    "a live address that is not the file's": npu("f2", "address 4 10.99.0.1", "hccn-conf", 4),
    "another super pod": npu("f4", "superpod 9", "super-pod", None),
    "a foreign process on a chip": npu("f1", "process 4 4711 python3 2000", "chip-free", 4),
    "an answer that is cut off": npu("f4", "garbled tls 4 cut", "tls-equal", 4, "unknown"),
    "hccn.conf is a folder": on_host(
        "f2", f"mv {CONF} {CONF}.kept; mkdir {CONF}", f"rmdir {CONF}; mv {CONF}.kept {CONF}", "hccn-conf"
    ),
    "hccn_tool is missing": on_host("f3", f"mv {TOOL} {TOOL}.kept", f"mv {TOOL}.kept {TOOL}", "hccn-tool"),
    "the MTU": on_host("f4", "ip link set eth0 mtu 1400", "ip link set eth0 mtu 1500", "mtu-equal"),
    "a port": on_host("f3", f"nohup {SERVER} >/dev/null 2>&1 & sleep 1", f"kill $(pgrep -xf '{SERVER}')", "port"),
    "other weights": on_host(
        "f4",
        "cp -a /models/m/config.json /var/tmp/kept-config.json; echo >> /models/m/config.json",
        "mv /var/tmp/kept-config.json /models/m/config.json",
        "model-alike",
    ),
    "Docker is down": on_host("f2", STOP_DOCKER, "systemctl start docker", "docker"),
    "a chip in a foreign container": on_host(
        "f3",
        f"docker load -qi {ARCHIVE}; docker run -d --name miner --device /dev/davinci4 --network host {IMAGE} sleep 9999",
        f"docker rm -f miner; docker rmi {IMAGE}",
        "chip",
        4,
    ),
}


@pytest.fixture(scope="module")
def fleet(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Fleet]:
    lab.add(*FLEET)
    yield Fleet(lab, tmp_path_factory.mktemp("preflight"))
    lab.remove(*FLEET)


@pytest.fixture(scope="module")
def serving(fleet: Fleet) -> Fleet:
    fleet.cluster.site()
    return fleet


def test_hosts_that_nothing_runs_on_are_clean_and_stay_as_they_are(fleet: Fleet) -> None:
    unchanged(fleet)


@pytest.mark.parametrize("name", FAULTS)
def test_one_fault_is_found_alone(fleet: Fleet, name: str) -> None:
    fault = FAULTS[name]
    fleet.lab.sh(fault.host, fault.make)
    try:
        assert fleet.found() == fault.found
    finally:
        fleet.lab.sh(fault.host, fault.undo)


@pytest.mark.parametrize(
    "names",
    [
        ("TLS of a chip", "a chip in alarm"),
        ("another super pod", "hccn.conf is a folder"),
        ("a port", "the MTU"),
        ("Docker is down", "hccn_tool is missing"),
    ],
    ids=" and ".join,
)
def test_two_at_once_are_both_found(fleet: Fleet, names: tuple[str, str]) -> None:
    faults = [FAULTS[name] for name in names]
    for fault in faults:
        fleet.lab.sh(fault.host, fault.make)
    try:
        assert fleet.found() == set().union(*(fault.found for fault in faults))
    finally:
        for fault in faults:
            fleet.lab.sh(fault.host, fault.undo)


@pytest.mark.parametrize(("fault", "check"), [("vnic", "address-unique"), ("sdid", "sdid-unique")])
def test_what_two_chips_have(fleet: Fleet, fault: str, check: str) -> None:
    theirs = {"vnic": fleet.vnic, "sdid": fleet.sdid}[fault]("f2", 4)
    fleet.lab.sh("f3", f"echo '{fault} 4 {theirs}' > {NPU}/faults")
    try:
        _run, report = fleet.check()
    finally:
        fleet.lab.sh("f3", f": > {NPU}/faults")
    (one,) = [one for one in report["verdicts"] if one["severity"] != "info"]
    places = {(place["host"], place["chip"]) for place in [one, *one["also"]]}
    assert (one["check"], one["severity"], places) == (check, "error", {("f2", 4), ("f3", 4)})


def test_a_firewall_between_two_hosts(fleet: Fleet) -> None:
    """The second decode host reaches the first one, the head of its instance, no more."""
    rule = f"INPUT -p tcp -s {fleet.lab.address['f3']} --dport 1024:65535 --syn -j DROP"
    fleet.lab.sh("f2", f"iptables -I {rule}")
    try:
        _run, report = fleet.check()
    finally:
        fleet.lab.sh("f2", f"iptables -D {rule}")
    (one,) = [one for one in report["verdicts"] if one["severity"] != "info"]
    assert (one["check"], one["severity"], one["host"]) == ("firewall", "error", "f3")
    assert [place["host"] for place in one["also"]] == ["f2"] and "timeout" in one["found"]


def test_a_node_address_that_is_not_there(fleet: Fleet, tmp_path: pathlib.Path) -> None:
    """Engines on addresses of their own, beside those of ssh; one host has lost its."""
    own = {host: f"198.18.0.{200 + number}" for number, host in enumerate(FLEET)}
    hosts = inventory(fleet.lab, hosts=FLEET)
    for role in ("prefill", "decode"):
        for host, row in hosts["all"]["children"][role]["hosts"].items():
            row["pd_node_ip"] = own[host]
    cluster = Cluster(fleet.lab, tmp_path, hosts)
    for host, address in own.items():
        fleet.lab.sh(host, f"ip address add {address}/24 dev eth0")
    try:
        assert fleet.found(cluster) == set()
        fleet.lab.sh("f4", f"ip address del {own['f4']}/24 dev eth0")
        assert fleet.found(cluster) == {("node-ip", "error", "f4", None)}
    finally:
        for host, address in own.items():
            fleet.lab.sh(host, f"ip address del {address}/24 dev eth0 2>/dev/null || true")


def test_a_cluster_that_serves_is_clean_and_serves_on(serving: Fleet) -> None:
    before = serving.lab.ids(*FLEET)
    assert len(before) == len(FLEET) + 1, "an engine each and the proxy"
    unchanged(serving)
    assert serving.lab.ids(*FLEET) == before
    assert serving.lab.complete(f"http://{serving.lab.address['f1']}:1999")


@pytest.mark.parametrize("name", ["TLS of a chip", "a chip in alarm", "a foreign process on a chip"])
def test_a_fault_under_a_cluster_that_serves(serving: Fleet, name: str) -> None:
    test_one_fault_is_found_alone(serving, name)


def unchanged(fleet: Fleet) -> None:
    """Preflight finds nothing, changes no file, asks each question once, one at a time, and sets nothing."""
    fleet.forget_calls()
    before = fleet.snapshot()
    run, report = fleet.check()
    assert {one["check"] for one in report["verdicts"]} <= {"image-present"}, report["verdicts"]
    assert report["counts"]["warning"] == report["counts"]["unknown"] == report["counts"]["error"] == 0
    assert run.rc == 0 and run.changed() == {}
    assert fleet.snapshot() == before
    assert all(len(tasks) <= 5 for tasks in run.on_hosts().values()), run.on_hosts()
    for host in FLEET:
        calls = fleet.calls(host)
        asked = collections.Counter((tool, words) for _start, _end, _code, tool, words in calls)
        assert asked and set(asked.values()) == {1}, asked
        setters = [words for _tool, words in asked if {"-s", "-cfg", "set", "clear"} & set(words.split())]
        assert setters == []

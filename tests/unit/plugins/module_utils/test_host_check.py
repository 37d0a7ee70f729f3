# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What is found wrong on a host."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ansible_collections.ascend.pd_serving.plugins.module_utils import docker_socket, host_check, launcher, procfs


def ports(first: int, last: int, address: str = "10.0.0.1", owner: str = "") -> host_check.PortRange:
    return host_check.PortRange(first, last, owner, "pd_api_port", address)


def listener(port: int, address: str = "10.0.0.1") -> procfs.Listener:
    return procfs.Listener(address, port, 1)


@pytest.mark.parametrize(
    ("wanted", "bound", "clash"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "0.0.0.0", True),
        ("10.0.0.1", "::", True),
        ("", "10.0.0.2", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("::", "127.0.0.1", True),
        ("127.66.0.3", "127.66.0.4", False),
    ],
)
def test_addresses_that_clash(wanted: str, bound: str, clash: bool) -> None:
    assert ports(7100, 7115, wanted).clashes(listener(7100, bound)) is clash
    assert not ports(7100, 7115, wanted).clashes(listener(7116, bound))


def test_ranges_are_found_as_by_looking_at_each() -> None:
    rng = random.Random(7)
    ranges = []
    for n in range(300):
        first = rng.randrange(1, 60000)
        ranges.append(ports(first, first + rng.choice([0, 15, 1600]), rng.choice(["10.0.0.1", "10.0.0.2", ""]), str(n)))
    for _ in range(2000):
        one = listener(rng.randrange(1, 65536), rng.choice(["10.0.0.1", "10.0.0.2", "::"]))
        expected = sorted(each.owner for each in ranges if each.clashes(one))
        assert sorted(clash.owner for clash, _ in host_check.taken_ports(ranges, [one])) == expected
    assert host_check.taken_ports([], [listener(1)]) == []


def test_large_ranges_cost_one_pass_over_the_listeners() -> None:
    ranges = [ports(first, first + 1599, owner=str(first)) for first in range(20000, 60000, 1600)]
    found = host_check.taken_ports(ranges, [listener(port) for port in range(30000, 31000)])
    assert len(found) == 1000


def test_an_address_is_compared_in_one_spelling() -> None:
    built = host_check.build_range(
        {"first": 1, "last": 2, "owner": None, "variable": None, "address": "::ffff:10.0.0.1"}
    )
    assert built == host_check.PortRange(1, 2, "", "", "10.0.0.1")


def stat(pid: int, parent: int, session: int, start: int) -> launcher.Stat:
    return launcher.Stat(pid, "S", parent, session, session, start)


def test_whose_a_process_is() -> None:
    """A container's launcher has written down the pids it sees; the host sees others, with the same start times."""
    table = {
        s.pid: s for s in (stat(1, 0, 1, 0), stat(500, 1, 500, 50), stat(501, 500, 501, 60), stat(502, 501, 501, 70))
    }
    inner = {500: 1, 501: 7, 502: 8}

    def unit(pid: int, *pairs: tuple[int, int]) -> str | None:
        return host_check.unit_of(pid, table, dict.fromkeys(pairs, "d"), lambda each: inner.get(each, each))

    assert unit(502, (1, 50)) == "d"
    assert unit(502, (7, 60)) == "d"
    assert unit(502, (7, 61)) is None
    assert unit(1, (1, 50)) is None
    assert unit(999, (1, 50)) is None
    orphan = {**table, 502: stat(502, 1, 501, 70)}
    assert host_check.unit_of(502, orphan, {(7, 60): "d"}, lambda each: inner.get(each, each)) == "d"


def test_which_container_a_process_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = docker_socket.Container("1" * 64, "pd-demo-d", {"pd_serving.cluster": "demo"}, "running")
    other = docker_socket.Container("2" * 64, "web", {}, "running")
    groups = {7: {"9" * 64, other.id}, 8: {ours.id}}
    monkeypatch.setattr(procfs, "container_ids", lambda pid: groups.get(pid, set()))
    assert host_check.container_of(7, [ours, other]) is other
    assert host_check.container_of(8, [ours, other]) is ours
    assert host_check.container_of(9, [ours, other]) is None
    assert [host_check.is_own(one, "demo") for one in (ours, other)] == [True, False]
    assert not host_check.is_own(ours, "other")


def test_devices(tmp_path: Path) -> None:
    """DEV-07: each generation has its own nodes, and a missing one is found before docker is called."""
    dev = tmp_path / "dev"
    dev.mkdir()
    (dev / "davinci0").touch()
    (dev / "davinci1").mkdir()
    (dev / "davinci_manager").touch()
    found = host_check.check_devices(str(tmp_path), [0, 1, 2], ["davinci_manager", "hisi_hdc"])
    assert [(f["check"], f["value"], f["variable"]) for f in found] == [
        ("chip", 1, "pd_chips"),
        ("chip", 2, "pd_chips"),
        ("device", "hisi_hdc", "pd_hardware"),
    ]
    assert found[0]["message"] == f"chip 1 cannot be used: {dev}/davinci1 is a folder, not a device node"
    assert found[1]["message"] == f"chip 2 cannot be used: {dev}/davinci2 does not exist"
    assert all(f["severity"] == "error" and f["fix"] for f in found)


def test_paths(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "broken").symlink_to("nowhere")
    entries = [
        ("/file", "file"),
        ("/file", "any"),
        ("/folder", "directory"),
        ("/none", "any"),
        ("/folder", "file"),
        ("/full", "file"),
        ("/file", "directory"),
        ("/broken", "any"),
    ]
    wanted = [{"path": p, "type": k, "variable": "pd_model_path", "why": "the weights"} for p, k in entries]
    found = host_check.check_paths(str(tmp_path), wanted)
    assert [f["message"] for f in found] == [
        "/none does not exist; needed for the weights",
        "/folder is a folder, not a file (an empty one: docker makes such a folder where a mounted file was missing); "
        "needed for the weights",
        "/full is a folder, not a file; needed for the weights",
        "/file is no folder; needed for the weights",
        "/broken is a link to nothing; needed for the weights",
    ]
    assert found[0]["fix"] == "put it there, or set pd_model_path"


def test_dev_05_npu_smi_in_its_other_folder(tmp_path: Path) -> None:
    """DEV-05: each host's own is mounted (test_launch); a host without one is told both places."""
    wanted = [{"path": "/usr/local/bin/npu-smi", "type": "file", "variable": "pd_mounts", "why": "the container"}]
    (found,) = host_check.check_paths(str(tmp_path), wanted)
    assert found["message"] == (
        "/usr/local/bin/npu-smi does not exist, and /usr/local/sbin/npu-smi neither; needed for the container"
    )
    (tmp_path / "usr/local/sbin").mkdir(parents=True)
    (tmp_path / "usr/local/sbin/npu-smi").touch()
    assert host_check.check_paths(str(tmp_path), wanted) == []


def test_executables(tmp_path: Path) -> None:
    tool = tmp_path / "opt" / "tool"
    tool.parent.mkdir()
    tool.write_text("")
    tool.chmod(0o755)
    wanted = [{"name": name, "variable": "", "why": ""} for name in ("tool", "/opt/tool", "/opt/other", "other")]
    found = host_check.check_executables(str(tmp_path), wanted, {"PATH": str(tool.parent)})
    assert [f["message"] for f in found] == ["/opt/other is no command", f"other is no command in PATH={tool.parent}"]

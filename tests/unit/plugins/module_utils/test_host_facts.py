# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What a host is."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.ascend.pd_serving.plugins.module_utils import host_facts, launcher, procfs, units
from ansible_collections.ascend.pd_serving.plugins.module_utils.docker_socket import Container

# -- memory and disks --------------------------------------------------------------------------------------------------


def test_memory_in_the_units_that_are_promised() -> None:
    text = "MemTotal:       24683600 kB\nMemFree: 1 kB\nMemAvailable:   2048 kB\nHugePages_Total:      12\n"
    text += "HugePages_Free:        3\nHugePages_Rsvd:        9\nHugepagesize:       2048 kB\nodd line\nHugetlb: x kB\n"
    assert host_facts.parse_meminfo(text) == {
        "memory_total_mb": 24105,
        "memory_available_mb": 2,
        "hugepages_total": 12,
        "hugepages_free": 3,
        "hugepage_kb": 2048,
    }


@pytest.mark.parametrize("text", ["", "MemTotal:\n", "MemTotal: many kB\n", "HugePages_Total\n"])
def test_memory_that_is_not_told_is_not_made_up(text: str) -> None:
    assert host_facts.parse_meminfo(text) == {}


def test_room_for_what_is_yet_to_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def statvfs(path: str) -> Any:
        asked.append(path)
        return real(path)

    real = os.statvfs
    monkeypatch.setattr(os, "statvfs", statvfs)
    (tmp_path / "file").touch()
    free = host_facts.free_mb(f"{tmp_path}/a/b/c/")
    assert asked == [f"{tmp_path}/a/b/c/", f"{tmp_path}/a/b", f"{tmp_path}/a", str(tmp_path)]
    found = real(tmp_path)
    assert abs(free - found.f_bavail * found.f_frsize // 2**20) < 1024
    assert host_facts.free_mb(f"{tmp_path}/file/below") > 0


def test_room_that_cannot_be_read_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that were missing among others would pass for one that nobody asked for."""

    def refuse(path: str) -> Any:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "statvfs", refuse)
    facts, troubles = host_facts.gather(units.Site("demo", str(tmp_path)), disks=["/data"])
    assert facts["disks"] == {"/data": None}
    assert troubles == [f"the room in /data cannot be read: [Errno 13] Permission denied: '{tmp_path}/data'"]


# -- network cards -----------------------------------------------------------------------------------------------------


def attribute(kind: int, content: bytes) -> bytes:
    length = 4 + len(content)
    return struct.pack("=HH", length, kind) + content + b"\0" * (-length % 4)


def link(index: int, name: str, operstate: int, *, up: bool = True, mtu: int = 1500) -> tuple[int, bytes]:
    head = struct.pack("=BxHiII", 0, 1, index, 0x1 if up else 0, 0)
    more = (
        attribute(3, name.encode() + b"\0") + attribute(4, struct.pack("=I", mtu)) + attribute(16, bytes([operstate]))
    )
    return 16, head + more + attribute(18 | 0x8000, b"nested")


def address(index: int, prefix: int, **parts: str) -> tuple[int, bytes]:
    kinds = {"address": 1, "local": 2}
    head = struct.pack("=BBBBi", 2, prefix, 0, 0, index)
    packed = {
        name: socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text) for name, text in parts.items()
    }
    return 20, head + b"".join(attribute(kinds[name], content) for name, content in packed.items())


def test_cards_with_all_their_addresses() -> None:
    links = [link(1, "lo", 0, mtu=65536), link(2, "enp1s0", 6, mtu=9000), link(3, "ppp0", 6), link(9, "gone", 6)]
    addresses = [
        address(1, 8, address="127.0.0.1", local="127.0.0.1"),
        address(2, 24, address="192.0.2.21", local="192.0.2.21"),
        address(2, 64, address="fd00::21"),
        address(3, 32, address="192.0.2.254", local="192.0.2.1"),
        address(7, 24, address="192.0.2.99"),
    ]
    found = host_facts.parse_nics(links, addresses)
    assert found == {
        "lo": {"addresses": ["127.0.0.1/8"], "mtu": 65536, "state": "unknown"},
        "enp1s0": {"addresses": ["192.0.2.21/24", "fd00::21/64"], "mtu": 9000, "state": "up"},
        "ppp0": {"addresses": ["192.0.2.1/32"], "mtu": 1500, "state": "up"},
        "gone": {"addresses": [], "mtu": 1500, "state": "up"},
    }


@pytest.mark.parametrize(
    ("operstate", "up", "state"),
    [
        (6, True, "up"),
        (2, True, "down"),
        (1, True, "down"),
        (3, True, "down"),
        (0, True, "unknown"),
        (5, True, "unknown"),
        (0, False, "down"),
        (6, False, "down"),
    ],
)
def test_states_of_cards(operstate: int, up: bool, state: str) -> None:
    assert host_facts.parse_nics([link(1, "x", operstate, up=up)], [])["x"]["state"] == state


def message(kind: int, content: bytes, flags: int = 2) -> bytes:
    length = 16 + len(content)
    return struct.pack("=IHHII", length, kind, flags, 1, 1) + content + b"\0" * (-length % 4)


def test_messages_one_after_the_other() -> None:
    data = message(16, b"abc") + message(3, b"\0" * 4)
    assert host_facts.split_messages(data) == [(16, 2, b"abc"), (3, 2, b"\0" * 4)]
    assert host_facts.split_messages(b"") == []
    with pytest.raises(ValueError, match="a netlink message of 19 bytes in 18"):
        host_facts.split_messages(message(16, b"abc")[:18])
    with pytest.raises(ValueError, match="a netlink message of 0 bytes"):
        host_facts.split_messages(b"\0" * 16)


class FakeKernel:
    """Answers the two questions as it is told to."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)

    def __enter__(self) -> FakeKernel:
        return self

    def __exit__(self, *_raised: object) -> None:
        pass

    def send(self, _question: bytes) -> None:
        pass

    def recv(self, _size: int) -> bytes:
        return self._answers.pop(0)


DONE = message(3, b"\0" * 4)


def test_a_list_that_was_interrupted_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    torn = message(*link(1, "half", 6), flags=0x12)
    whole = [message(*link(1, "eth0", 6)), DONE, message(*address(1, 24, local="192.0.2.1")) + DONE]
    kernels = [FakeKernel(torn), FakeKernel(*whole)]
    monkeypatch.setattr(host_facts, "_netlink", lambda: kernels.pop(0))
    assert host_facts.nics() == {"eth0": {"addresses": ["192.0.2.1/24"], "mtu": 1500, "state": "up"}}
    kernels = [FakeKernel(torn) for _ in range(host_facts.NETLINK_TRIES)]
    with pytest.raises(OSError, match="changes all the time"):
        host_facts.nics()


def test_a_kernel_that_refuses_is_no_host_without_cards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host_facts, "_netlink", lambda: FakeKernel(message(2, struct.pack("=i", -1) + b"\0" * 16)))
    facts, troubles = host_facts.gather(units.Site("demo", str(tmp_path)))
    assert "nics" not in facts and "kernel" in facts and "memory_total_mb" in facts
    assert troubles == ["the network cards cannot be read: [Errno 1] Operation not permitted"]


def test_the_cards_of_this_machine() -> None:
    found = host_facts.nics()
    assert set(found) == {name for _index, name in socket.if_nameindex()}
    assert "127.0.0.1/8" in found["lo"]["addresses"]
    for name, card in found.items():
        assert card["mtu"] == int(Path(f"/sys/class/net/{name}/mtu").read_text())


# -- models ------------------------------------------------------------------------------------------------------------


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text("index")
    (tmp_path / "a.safetensors").write_bytes(b"x" * 10)
    (tmp_path / "b.bin").write_bytes(b"x" * 5)
    (tmp_path / "tokenizer.json").write_text("no weights")
    (tmp_path / "dir.bin").mkdir()
    return tmp_path


def test_a_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    real = os.open

    def note(path: Any, *rest: Any, **more: Any) -> int:
        opened.append(os.path.basename(path))
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", note)
    (folder / "c.safetensors").symlink_to(folder / "a.safetensors")
    (folder / "d.safetensors").symlink_to(folder / "nothing")
    assert host_facts.model(str(folder)) == (
        {"state": "ok", "config_digest": sha("{}"), "index_digest": sha("index"), "count": 3, "bytes": 25},
        "",
    )
    assert opened == ["config.json", "model.safetensors.index.json"], "weights are not read"


def test_a_model_in_one_file(folder: Path) -> None:
    for name in ("config.json", "model.safetensors.index.json"):
        (folder / name).unlink()
    found, trouble = host_facts.model(str(folder))
    assert (found["state"], found["config_digest"], found["index_digest"], trouble) == ("ok", None, None, "")


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ([], None),
        (["pytorch_model.bin.index.json"], "pytorch_model.bin.index.json"),
        (["quant.safetensors.index.json", "a.bin.index.json"], "quant.safetensors.index.json"),
        (["z.safetensors.index.json", "b.safetensors.index.json"], "b.safetensors.index.json"),
        (["a.safetensors.index.json", "model.safetensors.index.json"], "model.safetensors.index.json"),
        (["index.json", "config.json"], None),
    ],
)
def test_which_index_it_is(names: list[str], chosen: str | None) -> None:
    assert host_facts.index_name(names) == chosen
    assert host_facts.index_name(names[::-1]) == chosen


def test_no_model(folder: Path) -> None:
    assert host_facts.model(str(folder / "none")) == ({"state": "missing"}, "")
    assert host_facts.model(str(folder / "config.json")) == ({"state": "missing"}, "")


def test_a_model_that_may_not_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> Any:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    found, trouble = host_facts.model(str(folder))
    assert found == {"state": "unreadable"} and "Permission denied" in trouble


def test_an_index_that_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_facts, "TEXT_LIMIT", 4)
    found, trouble = host_facts.model(str(folder))
    assert found == {"state": "unreadable"} and "File too large" in trouble
    os.mkfifo(folder / "pipe")
    started = time.monotonic()
    with pytest.raises(OSError, match="no plain file"):
        host_facts.digest(str(folder / "pipe"))
    assert time.monotonic() - started < 1


def test_paths_are_below_the_root_and_named_without_it(folder: Path) -> None:
    (folder / "models" / "demo").mkdir(parents=True)
    facts, troubles = host_facts.gather(units.Site("demo", str(folder)), ["/models/demo"], ["/opt/pd_serving"])
    assert facts["models"]["/models/demo"]["state"] == "ok"
    assert list(facts["disks"]) == ["/opt/pd_serving"] and troubles == []
    assert abs(facts["clock"]["host"] - time.time()) < 5
    assert facts["kernel"] == os.uname().release


# -- processes ---------------------------------------------------------------------------------------------------------

WORKERS = """
import os, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
print(worker.pid, flush=True)
time.sleep(300)
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[units.Site, int]]:
    """A cluster with one process that has started another one in a session of its own; and that one's pid."""
    site = units.Site("demo", str(tmp_path))
    argv = [sys.executable, "-c", WORKERS]
    spec = {"schema": 1, "unit": "pd-a", "stop_grace_seconds": 1, "processes": [{"name": "r", "argv": argv}]}
    wanted = units.Wanted("pd-a", spec)
    units.write_unit(site, wanted, Path(launcher.__file__).read_text())
    start = units.Start(site, wanted, os.environ)
    assert units.wait_until_up([start]) == {}
    log = site.unit_logs("pd-a") + "/r.log"
    deadline = time.monotonic() + 10
    while not units.log_tail(log, 1):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield site, int(units.log_tail(log, 1)[0])
    assert units.stop([units.observe(site, "pd-a")], None) == {}
    start.exited  # noqa: B018  # reaps the launcher


def test_own_processes_with_all_that_descends_from_them(running: tuple[units.Site, int]) -> None:
    site, worker = running
    state = launcher.read_state(site.unit_dir("pd-a"))
    assert state is not None
    rank = state["processes"][0]["pid"]
    found = host_facts.own_pids(site)
    assert {state["pid"], rank, worker} <= set(found)
    assert os.getpid() not in found and 1 not in found
    assert host_facts.own_pids(units.Site("other", site.root)) == []


def test_processes_in_containers_of_this_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that somebody started in there by hand, which descends from nothing that a launcher knows."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    try:
        groups = {child.pid: {"c1"}, os.getppid(): {"c2"}}
        monkeypatch.setattr(procfs, "container_ids", lambda pid: groups.get(pid, set()))
        labels = {"pd_serving.cluster": "demo"}
        ours = Container("c1", "pd-demo-a", labels, "running")
        other = Container("c2", "web", {}, "running")
        site = units.Site("demo", str(tmp_path))
        assert host_facts.own_pids(site, [ours, other]) == [child.pid]
        assert host_facts.own_pids(site, [Container("c1", "pd-demo-a", labels, "exited")]) == []
        assert host_facts.own_pids(units.Site("else", str(tmp_path)), [ours]) == []
    finally:
        child.kill()
        child.wait()


def test_a_folder_that_may_not_be_read_leaves_own_processes_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_site: units.Site) -> Any:
        raise PermissionError(13, "Permission denied", "/opt/pd_serving/demo")

    monkeypatch.setattr(units.Site, "found", refuse)
    facts, troubles = host_facts.gather(units.Site("demo", str(tmp_path)))
    assert "own_pids" not in facts
    assert len(troubles) == 1 and troubles[0].startswith("this cluster's own processes cannot be read")


def test_families() -> None:
    def stat(pid: int, parent: int, session: int) -> launcher.Stat:
        return launcher.Stat(pid, "S", parent, session, session, pid)

    stats = {
        each.pid: each
        for each in [
            stat(1, 0, 1),
            stat(10, 1, 10),
            stat(11, 10, 10),
            stat(12, 11, 12),
            stat(13, 1, 10),  # its parent is gone, its session tells
            stat(20, 1, 20),
            stat(30, 31, 30),  # read while pids changed hands: a circle ends
            stat(31, 30, 30),
        ]
    }
    assert host_facts.family(stats, {10}) == {10, 11, 12, 13}
    assert host_facts.family(stats, {12}) == {12}
    assert host_facts.family(stats, set()) == set()

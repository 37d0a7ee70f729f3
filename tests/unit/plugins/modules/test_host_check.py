# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Module host_check on this machine."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.ascend.pd_serving.plugins.module_utils import docker_check, kernel, launcher, procfs, units
from ansible_collections.ascend.pd_serving.plugins.modules import host_check
from ansible_collections.ascend.pd_serving.tests.unit.plugins.module_utils.fake_docker import FakeDocker, serving

LISTEN = """
import os, socket, sys, time
server = socket.create_server(("127.0.0.1", 0))
if os.fork():
    server.close()
else:
    print(server.getsockname()[1], flush=True)
time.sleep(300)
"""


def call(root: Path, **args: Any) -> list[dict[str, Any]]:
    findings: list[dict[str, Any]] = run(root, **args)["findings"]
    return findings


def run(root: Path, **args: Any) -> dict[str, Any]:
    out = io.StringIO()
    given = {"cluster": "demo", "root": str(root), **args}
    with patch_module_args(given), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        host_check.main()
    result: dict[str, Any] = json.loads(out.getvalue())
    assert not result.get("failed") and result["changed"] is False, result
    return result


def port_entry(port: int, **more: Any) -> dict[str, Any]:
    entry = {"first": port - 5, "last": port + 5, "owner": "the API of decode", "variable": "pd_api_port"}
    return {**entry, "address": "127.0.0.1", **more}


def test_everything_is_found_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        findings = call(
            tmp_path,
            chips=[3],
            device_nodes=["hisi_hdc"],
            paths=[{"path": "/models/x", "type": "directory", "variable": "pd_model_path"}],
            executables=[{"name": "no-such-tool"}],
            environment={"PATH": "/opt/nowhere"},
            ports=[port_entry(port), port_entry(port, address="127.0.0.2"), port_entry(port, address="")],
        )
    assert [f["check"] for f in findings] == ["chip", "device", "path", "executable", "port", "port"]
    assert findings[3]["message"] == "no-such-tool is no command in PATH=/opt/nowhere"
    taken = findings[4]
    assert taken["message"].startswith(
        f"port {port - 5}-{port + 5} of the API of decode: 127.0.0.1:{port} is taken by pid {os.getpid()} ("
    )
    assert (taken["value"], taken["variable"], taken["severity"]) == (port, "pd_api_port", "error")
    assert taken["fix"] == "end that process, or set pd_api_port to other ports"


def test_a_host_with_nothing_wrong(tmp_path: Path) -> None:
    assert call(tmp_path) == []


def test_a_cluster_name_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    out = io.StringIO()
    with patch_module_args({"cluster": "../x"}), contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        host_check.main()
    assert "cluster must be made of letters" in json.loads(out.getvalue())["msg"]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[units.Site, units.Start]]:
    site = units.Site("demo", str(tmp_path))
    argv = [sys.executable, "-c", LISTEN]
    spec = {"schema": 1, "unit": "pd-a", "stop_grace_seconds": 1, "processes": [{"name": "r", "argv": argv}]}
    wanted = units.Wanted("pd-a", spec)
    units.write_unit(site, wanted, Path(launcher.__file__).read_text())
    start = units.Start(site, wanted, os.environ)
    assert units.wait_until_up([start]) == {}
    yield site, start
    assert units.stop([units.observe(site, "pd-a")], None) == {}
    start.exited  # noqa: B018  # reaps the launcher


def listened_port(site: units.Site) -> int:
    log = site.unit_logs("pd-a") + "/r.log"
    deadline = time.monotonic() + 5
    while not units.log_tail(log, 1):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return int(units.log_tail(log, 1)[0])


def test_ports_of_the_clusters_own_units_are_not_taken(tmp_path: Path, running: Any) -> None:
    site, _ = running
    port = listened_port(site)
    assert call(tmp_path, ports=[port_entry(port)]) == []
    assert len(call(tmp_path, ports=[port_entry(port)], cluster="other")) == 1


def test_what_a_killed_launcher_left_is_only_a_warning(tmp_path: Path, running: Any) -> None:
    site, start = running
    port = listened_port(site)
    state = launcher.read_state(site.unit_dir("pd-a"))
    assert state is not None
    below = launcher.descendants(launcher.all_stats(), start.pid)
    (guard,) = [pid for pid in below if Path(f"/proc/{pid}/comm").read_text() == "pd-guard\n"]
    rank = state["processes"][0]["pid"]
    (worker,) = launcher.descendants(launcher.all_stats(), rank)
    for pid in (guard, start.pid):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while launcher.lock_is_held(site.unit_dir("pd-a")) and time.monotonic() < deadline:
        time.sleep(0.02)
    (found,) = call(tmp_path, ports=[port_entry(port)])
    assert found["severity"] == "warning"
    assert found["message"].endswith(f"is taken by pid {worker}, which an earlier run of pd-a has left behind")


# -- docker ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDocker]:
    monkeypatch.setattr(docker_check, "check_requests", lambda: [])
    with serving(tmp_path / "var" / "run" / "docker.sock") as fake:
        yield fake


def docker(root: Path, **args: Any) -> dict[str, Any]:
    return run(root, engine="docker", containers=["pd-demo-decode", "pd-demo-proxy"], **args)


def test_a_host_that_is_ready_for_containers(tmp_path: Path, daemon: FakeDocker) -> None:
    daemon.images = {"example/vllm:1"}
    daemon.add("pd-demo-decode", chips=[0, 1], cluster="demo")
    result = docker(tmp_path, image="example/vllm:1", image_source="/none.tar")
    assert result["findings"] == []
    assert result["docker"] == {"version": "28.2.2", "api_version": "1.50"}


def test_without_an_engine_nothing_is_asked(tmp_path: Path, daemon: FakeDocker) -> None:
    assert run(tmp_path, image="x", image_source="/none.tar")["docker"] is None
    assert daemon.asked == []


def test_all_that_is_wrong_with_docker_is_found_at_once(tmp_path: Path, daemon: FakeDocker) -> None:
    (tmp_path / "dev").mkdir()
    for chip in range(4, 8):
        (tmp_path / "dev" / f"davinci{chip}").touch()
    daemon.add("other", chips=[4, 5, 6, 7])
    daemon.add("pd-demo-proxy", state="created")
    result = docker(tmp_path, chips=[4, 5, 6, 7], image="example/vllm:1", image_source="/none.tar")
    found = [(one["check"], one["severity"], one["value"]) for one in result["findings"]]
    assert found == [
        ("container", "error", "pd-demo-proxy"),
        ("chip", "error", [4, 5, 6, 7]),
        ("image", "error", "/none.tar"),
    ]


def test_a_daemon_that_is_down_is_one_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "requests", None)
    result = docker(tmp_path, image="example/vllm:1", image_source="/none.tar")
    assert [one["check"] for one in result["findings"]] == ["requests", "docker"]
    assert result["findings"][1]["message"].startswith("the docker daemon is not installed or does not run: ")
    assert result["docker"] is None


@pytest.fixture
def sysctls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel whose reserved ports were set by us, and the file that keeps them."""
    monkeypatch.setattr(kernel, "parameter_path", lambda name: str(tmp_path / name))
    (tmp_path / kernel.RESERVED_PORTS).write_text("7100-7101\n", encoding="ascii")
    file = tmp_path / "90-pd_serving.conf"
    file.write_text(f"{kernel.HEADER}{kernel.RESERVED_PORTS} = 7100-7101\n", encoding="ascii")
    return file


def prepare(root: Path, file: Path, **args: Any) -> list[str]:
    left: list[str] = docker(root, image="example/vllm:1", sysctl_file=str(file), **args)["prepare"]
    return left


def test_nothing_is_left_to_prepare(tmp_path: Path, daemon: FakeDocker, sysctls: Path) -> None:
    daemon.images = {"example/vllm:1"}
    assert prepare(tmp_path, sysctls, reserved_ports="7100-7101") == []
    assert prepare(tmp_path, tmp_path / "none") == [], "nothing is asked of the kernel"


def test_what_is_left_to_prepare(tmp_path: Path, daemon: FakeDocker, sysctls: Path) -> None:
    assert prepare(tmp_path, sysctls, reserved_ports="7100-7102") == ["kernel", "image"]
    daemon.images = {"example/vllm:1"}
    assert prepare(tmp_path, sysctls, reserved_ports="7100-7101", hugepages=8) == ["kernel"]
    assert prepare(tmp_path, tmp_path / "none", reserved_ports="7100-7101") == ["kernel"], "not kept over a reboot"


def test_the_library_is_left_to_prepare(
    tmp_path: Path, daemon: FakeDocker, sysctls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "requests", None)
    assert prepare(tmp_path, sysctls) == ["requests", "image"]


def test_a_process_has_nothing_to_prepare(tmp_path: Path) -> None:
    assert run(tmp_path, reserved_ports="1-2")["prepare"] == []


def test_ports_that_a_container_holds(tmp_path: Path, daemon: FakeDocker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was started in our container by hand descends from none of ours; its control group tells."""
    ours = daemon.add("pd-demo-decode", cluster="demo")
    other = daemon.add("web")
    groups: dict[int, set[str]] = {}
    monkeypatch.setattr(procfs, "container_ids", lambda pid: groups.get(pid, set()))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        groups[os.getpid()] = {ours}
        assert docker(tmp_path, ports=[port_entry(port)])["findings"] == []
        groups[os.getpid()] = {other}
        (found,) = docker(tmp_path, ports=[port_entry(port)])["findings"]
    assert found["message"].endswith(") in container web")
    assert found["fix"] == "stop that container (docker stop web), or set pd_api_port to other ports"


def memory_entry(gigabytes: int, **more: Any) -> dict[str, Any]:
    per_worker = {"global_segment_size": (gigabytes - 1) << 30, "local_buffer_size": 1 << 30}
    entry = {"bytes": 16 * gigabytes << 30, "workers": 16, "per_worker": per_worker, "owner": "KV pool"}
    return {**entry, "variable": "pd_kv_pool.config.global_segment_size", "units": ["pd-demo-decode"], **more}


def test_memory_that_is_not_there(tmp_path: Path) -> None:
    """POOL-01: 16 processes of 64 GB each on a host with 800 GB, then of 32 GB."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {900 << 20} kB\nMemAvailable: {800 << 20} kB\n")
    (finding,) = call(tmp_path, memory=[memory_entry(64)])
    assert finding["check"] == "memory" and finding["severity"] == "error"
    assert finding["variable"] == "pd_kv_pool.config.global_segment_size"
    assert "16 workers x (63 GB global_segment_size + 1 GB local_buffer_size) = 1024 GB" in finding["message"]
    assert "800 GB are available" in finding["message"]
    assert call(tmp_path, memory=[memory_entry(32)]) == []
    assert call(tmp_path, memory=[memory_entry(50)]) == []


def test_memory_of_a_host_that_does_not_tell(tmp_path: Path) -> None:
    """A rehearsed host has the machine's memory, not that of the host it stands for."""
    assert call(tmp_path, memory=[memory_entry(1 << 20)]) == []


def test_memory_that_running_units_hold_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 1024 kB\n")
    assert len(call(tmp_path, memory=[memory_entry(64)])) == 1
    folder = tmp_path / "opt/pd_serving/demo/pd-demo-decode"
    folder.mkdir(parents=True)
    lock = launcher._take_lock(str(folder))
    try:
        assert call(tmp_path, memory=[memory_entry(64)]) == []
        assert len(call(tmp_path, memory=[memory_entry(64, units=["pd-demo-other"])])) == 1
    finally:
        os.close(lock)

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Module host_check on this machine."""

from __future__ import annotations

import contextlib
import hashlib
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

from ansible_collections.ascend.pd_serving.plugins.module_utils import (
    docker_check,
    host_facts,
    kernel,
    launcher,
    port_probe,
    procfs,
    units,
)
from ansible_collections.ascend.pd_serving.plugins.module_utils import host_check as host_rules
from ansible_collections.ascend.pd_serving.plugins.modules import host_check
from ansible_collections.ascend.pd_serving.tests.unit.plugins.module_utils.fake_docker import (
    IMAGE_ID,
    FakeDocker,
    serving,
)

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


def test_a_port_of_a_unit_that_is_no_more_planned_here_is_taken(tmp_path: Path, running: Any) -> None:
    """Nothing would end it, and the unit that is to have the port would end at its start."""
    site, _ = running
    port = listened_port(site)
    assert call(tmp_path, ports=[port_entry(port)], containers=["pd-a"]) == []
    (found,) = call(tmp_path, ports=[port_entry(port)], containers=["pd-b"])
    assert (found["check"], found["severity"], found["value"]) == ("port", "error", port)
    assert found["message"] == (
        f"pd-a, which is of this cluster and no more planned for this host, has ports of others (the API of decode: {port})"
    )
    assert "stop.yml with --limit" in found["fix"]


def test_what_runs_with_the_other_runtime(tmp_path: Path, running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site, _ = running
    listened_port(site)
    assert call(tmp_path) == []
    (found,) = host_rules.check_runtime(site, "docker")
    assert (found["check"], found["variable"], found["value"]) == ("runtime", "pd_runtime", "docker")
    assert found["message"] == "pd-a of cluster demo run as processes of the host, but pd_runtime is docker"
    monkeypatch.setattr(units, "runs_elsewhere", lambda observed: True)
    assert host_rules.check_runtime(site, "docker") == []
    (found,) = call(tmp_path)
    assert found["message"] == "pd-a of cluster demo run in containers, but pd_runtime is process"
    assert found["fix"] == "stop the cluster as it runs (stop.yml with -e pd_runtime=docker), then run this again"


def test_a_container_that_is_shown_another_boot_id(tmp_path: Path, running: Any) -> None:
    """Its lock says that it lives; its processes are still known when the container engine cannot be asked."""
    site, _ = running
    port = listened_port(site)
    path = Path(site.unit_dir("pd-a"), launcher.STATE_FILE)
    state = path.read_text()
    path.write_text(state.replace(launcher.boot_id(), "0" * 36))
    assert call(tmp_path, ports=[port_entry(port)]) == []
    path.write_text(state)


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
    monkeypatch.setattr(docker_check, "why_no_requests", lambda: "none")
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
    monkeypatch.setattr(docker_check, "why_no_requests", lambda: "none")
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
        groups[os.getpid()] = {daemon.add("pd-demo-old", cluster="demo")}
        (found,) = docker(tmp_path, ports=[port_entry(port)])["findings"]
        assert found["message"].startswith("pd-demo-old, which is of this cluster and no more planned for this host, ")
        groups[os.getpid()] = {other}
        (found,) = docker(tmp_path, ports=[port_entry(port)])["findings"]
    assert found["message"].endswith(") in container web")
    assert found["fix"] == "stop that container (docker stop web), or set pd_api_port to other ports"


# -- probing listeners -------------------------------------------------------------------------------------------------


def test_a_listener_for_probes_of_this_cluster_is_not_in_the_way(tmp_path: Path) -> None:
    """One preflight run must not report what another one, or one that was interrupted, has left for some seconds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = port_probe.Endpoint(*server.getsockname())
    try:
        assert port_probe.listen("demo", str(tmp_path), "", [endpoint], 60).bound == [endpoint]
        assert call(tmp_path, ports=[port_entry(endpoint.port)]) == []
        (found,) = call(tmp_path, ports=[port_entry(endpoint.port)], cluster="other")
        assert found["check"] == "port"
    finally:
        port_probe.done("demo", str(tmp_path), "")


# -- facts -------------------------------------------------------------------------------------------------------------


def test_facts_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any) -> Any:
        raise AssertionError("gathered")

    monkeypatch.setattr(host_facts, "gather", refuse)
    told = run(tmp_path, models=["/m"], disks=["/d"])
    # Newer ansible-core leaves out the first; warnings of other tests in this process count as this one's.
    assert set(told) - {"invocation", "warnings"} == {"changed", "findings", "prepare", "docker"}


def test_facts_of_a_host(tmp_path: Path, running: Any) -> None:
    _site, start = running
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    (tmp_path / "m" / "a.safetensors").write_bytes(b"12345")
    facts = run(tmp_path, facts=True, models=["/m", "/none"], disks=["/opt/pd_serving", "/m/a.safetensors"])["facts"]
    listed_keys = {
        "clock",
        "kernel",
        "memory_total_mb",
        "memory_available_mb",
        "disks",
        "nics",
        "docker",
        "models",
        "own_pids",
    }
    assert listed_keys <= set(facts)
    assert set(facts) - listed_keys <= {"hugepages_total", "hugepages_free", "hugepage_kb"}
    digest = hashlib.sha256(b"{}").hexdigest()
    assert facts["models"] == {
        "/m": {"state": "ok", "config_digest": digest, "index_digest": None, "count": 1, "bytes": 5},
        "/none": {"state": "missing"},
    }
    assert set(facts["disks"]) == {"/opt/pd_serving", "/m/a.safetensors"} and facts["disks"]["/opt/pd_serving"] > 0
    assert start.pid in facts["own_pids"] and os.getpid() not in facts["own_pids"]
    assert facts["docker"] is None
    assert "127.0.0.1/8" in facts["nics"]["lo"]["addresses"]


def test_the_images_id(tmp_path: Path, daemon: FakeDocker) -> None:
    daemon.images = {"example/vllm:1"}
    facts = docker(tmp_path, facts=True, image="example/vllm:1")["facts"]
    assert facts["docker"] == {"version": "28.2.2", "image": {"present": True, "digest": IMAGE_ID, "parts": None}}
    facts = docker(tmp_path, facts=True, image="example/vllm:2")["facts"]
    assert facts["docker"] == {"version": "28.2.2", "image": {"present": False, "digest": None, "parts": None}}
    assert docker(tmp_path, facts=True)["facts"]["docker"] == {"version": "28.2.2"}


def test_a_daemon_that_is_down_is_no_docker_in_facts(tmp_path: Path) -> None:
    assert docker(tmp_path, facts=True, image="example/vllm:1")["facts"]["docker"] is None


def test_what_cannot_be_read_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: list[str]) -> None:
    def refuse() -> Any:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(host_facts, "nics", refuse)
    facts = run(tmp_path, facts=True)["facts"]
    assert "nics" not in facts
    assert warned == ["the network cards cannot be read: [Errno 1] Operation not permitted"]


def test_relative_paths_are_refused_together(tmp_path: Path) -> None:
    out = io.StringIO()
    args = {"cluster": "demo", "models": ["m", "/ok"], "disks": ["d"]}
    with patch_module_args(args), contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        host_check.main()
    assert json.loads(out.getvalue())["msg"] == "paths must be absolute: models has 'm', disks has 'd'"

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

from ansible_collections.ascend.pd_serving.plugins.module_utils import launcher, units
from ansible_collections.ascend.pd_serving.plugins.modules import host_check

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
    out = io.StringIO()
    given = {"cluster": "demo", "root": str(root), **args}
    with patch_module_args(given), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        host_check.main()
    result = json.loads(out.getvalue())
    assert not result.get("failed") and result["changed"] is False, result
    findings: list[dict[str, Any]] = result["findings"]
    return findings


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

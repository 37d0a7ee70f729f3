# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Modules launch and launch_info on this machine: real launchers, real processes, a folder as the host's root."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.ascend.pd_serving.plugins.module_utils import launcher, unit_report, units
from ansible_collections.ascend.pd_serving.plugins.modules import launch, launch_info
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.report import unit_state

FOREVER = "sleep 300"
LISTENER = """
import signal, socket, subprocess, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
subprocess.run(["sleep", "300"])
"""


def rank(number: int, script: str = FOREVER, **more: Any) -> dict[str, Any]:
    return {"name": f"rank{number}", "label": f"rank {number}", "argv": ["sh", "-c", script], **more}


def unit(
    name: str, *processes: dict[str, Any], files: list[dict[str, Any]] | None = None, **more: Any
) -> dict[str, Any]:
    spec = {"schema": 1, "unit": name, "stop_grace_seconds": 1, "fail_grace_seconds": 0.2}
    return {"name": name, "spec": {**spec, "processes": list(processes) or [rank(0)], **more}, "files": files or []}


class Host:
    """A host below a folder, with the modules that act on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.site = units.Site("demo", str(root))

    def call(self, module: ModuleType, check_mode: bool = False, **args: Any) -> dict[str, Any]:
        given = {"cluster": "demo", "root": str(self.root), "_ansible_check_mode": check_mode, **args}
        out = io.StringIO()
        with patch_module_args(given), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            module.main()
        result: dict[str, Any] = json.loads(out.getvalue())
        return result

    def launch(self, *wanted: dict[str, Any], check_mode: bool = False, **args: Any) -> dict[str, Any]:
        return self.call(launch, check_mode, units=list(wanted), **args)

    def info(self, check_mode: bool = False, **args: Any) -> dict[str, Any]:
        return self.call(launch_info, check_mode, **args)

    def state(self, name: str) -> dict[str, Any]:
        return launcher.read_state(self.site.unit_dir(name)) or {}

    def sessions(self) -> set[int]:
        found: set[int] = set()
        for name in self.site.found():
            found |= {stat.pid for stat in units.living_members(units.observe(self.site, name).state).own}
        return found

    def files(self) -> dict[str, tuple[int, bytes]]:
        places = [path for path in self.root.rglob("*") if path.is_file()]
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in places}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(units, "SETTLE_SECONDS", 0.2)
    monkeypatch.setattr(units, "LEFTOVER_GRACE", 0.2)
    host = Host(tmp_path)
    yield host
    for name in host.site.found():
        process = units.launcher_process(host.state(name) or None)
        if process is not None:
            os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    folders = [host.site.unit_dir(name) for name in host.site.found()]
    while (host.sessions() or any(map(launcher.lock_is_held, folders))) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not host.sessions()


def actions(result: dict[str, Any]) -> dict[str, str]:
    assert not result.get("failed"), result
    return {name: one["action"] for name, one in result["units"].items()}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_start_again_change_and_stop(host: Host) -> None:
    first = host.launch(unit("pd-a", rank(0), rank(1)), unit("pd-b"))
    assert actions(first) == {"pd-a": "started", "pd-b": "started"} and first["changed"]
    assert first["units"]["pd-a"]["pid"] == host.state("pd-a")["pid"]
    assert host.state("pd-a")["phase"] == "running"
    folder = Path(host.site.unit_dir("pd-a"))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "launch.json").stat().st_mode & 0o777 == 0o600
    assert (folder / "launcher.py").read_text() == Path(launcher.__file__).read_text()
    assert Path(host.site.unit_logs("pd-a")).stat().st_mode & 0o777 == 0o700

    before = host.files()
    again = host.launch(unit("pd-a", rank(0), rank(1)), unit("pd-b"))
    assert actions(again) == {"pd-a": "unchanged", "pd-b": "unchanged"} and not again["changed"]
    assert again["units"]["pd-b"]["pid"] == first["units"]["pd-b"]["pid"]
    assert host.files() == before

    changed = host.launch(unit("pd-a", rank(0), rank(1, "sleep 301")), unit("pd-b"))
    assert actions(changed) == {"pd-a": "restarted", "pd-b": "unchanged"} and changed["changed"]
    assert changed["units"]["pd-a"]["reason"] == "the launch spec changed"
    assert changed["units"]["pd-b"]["pid"] == first["units"]["pd-b"]["pid"]

    asked = host.launch(unit("pd-a", rank(0), rank(1, "sleep 301")), unit("pd-b"), restart=["pd-b"])
    assert actions(asked) == {"pd-a": "unchanged", "pd-b": "restarted"}

    stopped = host.launch(unit("pd-b") | {"spec": None}, state="stopped")
    assert actions(stopped) == {"pd-b": "stopped"} and stopped["changed"]
    everything = host.launch(state="stopped")
    assert actions(everything) == {"pd-a": "stopped", "pd-b": "unchanged"}
    assert not host.sessions()
    assert (folder / "launch.json").exists() and (Path(host.site.unit_logs("pd-a")) / "rank0.log").exists()
    assert not host.launch(state="stopped")["changed"]
    assert actions(host.launch({"name": "pd-none"}, state="stopped")) == {"pd-none": "absent"}

    back = host.launch(unit("pd-b"))
    assert back["units"]["pd-b"]["reason"] == "had ended: stopped by SIGTERM"


def test_nothing_deployed_is_fine(host: Host) -> None:
    result = host.launch(state="stopped")
    assert (result["changed"], result["units"]) == (False, {})
    assert host.info()["units"] == {}


def test_check_mode_changes_nothing_and_tells_everything(host: Host, warned: list[str]) -> None:
    result = host.launch(unit("pd-a"), check_mode=True)
    assert actions(result) == {"pd-a": "started"} and result["changed"]
    assert list(host.root.iterdir()) == []
    missing = host.launch(unit("pd-a", {"name": "r", "argv": ["no-such-tool"]}), check_mode=True)
    assert actions(missing) == {"pd-a": "started"}
    assert [warning[: len("pd-a: process r: command no-such-tool not found")] for warning in warned] == [
        "pd-a: process r: command no-such-tool not found"
    ]

    host.launch(unit("pd-a", rank(0, env={"HF_TOKEN": "secret-of-old"})))
    before = host.files()
    new = rank(0, env={"HF_TOKEN": "secret-of-new", "PLAIN": "1"}) | {
        "argv": ["sleep", "300", "--api-key", "secret-arg"]
    }
    result = host.launch(unit("pd-a", new), check_mode=True)
    assert actions(result) == {"pd-a": "restarted"}
    (diff,) = result["diff"]
    assert '"PLAIN": "1"' in diff["after"] and "PLAIN" not in diff["before"]
    assert "secret-of" not in json.dumps(result) and "secret-arg" not in json.dumps(result)
    stop = host.launch(state="stopped", check_mode=True)
    assert actions(stop) == {"pd-a": "stopped"} and stop["changed"]
    assert host.files() == before


def test_written_writes_and_starts_nothing(host: Host) -> None:
    script = {"path": "run_dp_template.sh", "content": "echo\n", "mode": "0750"}
    wanted = unit("pd-a", {"name": "r", "argv": ["only-in-the-image"]}, files=[script], container={"image": "x:1"})
    announced = host.launch(wanted, state="written", check_mode=True)
    assert actions(announced) == {"pd-a": "written"} and announced["changed"]
    assert list(host.root.iterdir()) == []

    first = host.launch(wanted, state="written")
    logs = Path(host.site.unit_logs("pd-a"))
    files = ["launcher.py", "launch.json", "run_dp_template.sh", str(logs)]
    expected = {"action": "written", "reason": "not deployed yet", "pid": None, "files": files, "mounts": []}
    assert first["changed"] and first["units"]["pd-a"] == expected == announced["units"]["pd-a"]
    folder = Path(host.site.unit_dir("pd-a"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in [folder, logs / ".", *folder.iterdir()]}
    assert modes == {"pd-a": 0o700, "launch.json": 0o600, "launcher.py": 0o700, "run_dp_template.sh": 0o750}
    assert json.loads((folder / "launch.json").read_text()) == wanted["spec"]
    assert not host.sessions() and not launcher.lock_is_held(str(folder))

    before = host.files()
    again = host.launch(wanted, state="written")
    assert actions(again) == {"pd-a": "unchanged"} and not again["changed"] and again["diff"] == []
    assert host.files() == before
    change = unit("pd-a", container={"image": "x:2", "env": {"A_TOKEN": "secret-value"}})
    changed = host.launch(change, state="written")
    assert changed["units"]["pd-a"]["files"] == ["launch.json"]
    assert '"image": "x:2"' in changed["diff"][0]["after"] and "secret-value" not in json.dumps(changed)


def test_written_leaves_alone_what_runs(host: Host) -> None:
    wanted, running = unit("pd-a"), unit("pd-a", rank(0, "sleep 301"))
    host.launch(running)
    folder = Path(host.site.unit_dir("pd-a"))
    (folder / "launcher.py").write_text("# of an earlier release\n")
    before = host.files()
    same = host.launch(running | {"files": [{"path": "x", "content": "y"}]}, state="written")
    assert actions(same) == {"pd-a": "unchanged"} and not same["changed"]
    kept = host.launch(wanted, state="written")
    assert actions(kept) == {"pd-a": "kept"} and not kept["changed"] and kept["diff"] == []
    assert kept["units"]["pd-a"]["pid"] == host.state("pd-a")["pid"]
    assert host.files() == before
    asked = host.launch(wanted, state="written", restart=["pd-a"], check_mode=True)
    assert actions(asked) == {"pd-a": "written"} and asked["changed"] and asked["diff"]
    assert host.files() == before
    assert actions(host.launch(wanted, state="written", restart=["pd-a"])) == {"pd-a": "written"}
    assert (folder / "launcher.py").read_text() == Path(launcher.__file__).read_text()
    assert not host.info(units=[wanted])["units"]["pd-a"]["current"], "what runs counts"


@pytest.fixture
def contained(host: Host) -> Iterator[subprocess.Popen[bytes]]:
    """A unit whose launcher sees other pids than the host: in all that matters here a container."""
    wanted = unit("pd-a", container={"image": "x"})
    host.launch(wanted, state="written")
    unshare = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]
    if os.geteuid() != 0:
        unshare += ["--user", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode != 0:
        pytest.skip("this user may not make a pid namespace")
    folder = host.site.unit_dir("pd-a")
    run = [sys.executable, folder + "/launcher.py", "run", "--unit-dir", folder]
    process = subprocess.Popen([*unshare, *run, "--log-dir", host.site.unit_logs("pd-a")], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 5
    while host.state("pd-a").get("phase") != "running" and time.monotonic() < deadline:
        time.sleep(0.02)
    yield process
    process.kill()
    process.wait()
    while launcher.lock_is_held(folder) and time.monotonic() < deadline:
        time.sleep(0.02)


def test_a_unit_in_a_container(host: Host, contained: subprocess.Popen[bytes]) -> None:
    wanted = unit("pd-a", container={"image": "x"})
    (report,) = host.info(units=[wanted])["units"].values()
    assert (report["running"], report["current"], report["pid"]) == (True, True, 1)
    other = unit("pd-a", container={"image": "y"})
    assert not host.info(units=[other])["units"]["pd-a"]["current"]
    assert actions(host.launch(wanted, state="written")) == {"pd-a": "unchanged"}
    assert actions(host.launch(other, state="written")) == {"pd-a": "kept"}

    refusal = units.IN_CONTAINER
    assert host.launch(state="stopped")["msg"] == f"pd-a is not stopped: {refusal}"
    assert host.launch(other)["msg"] == f"pd-a is not started: {refusal}"
    assert actions(host.launch(state="stopped", check_mode=True)) == {"pd-a": "stopped"}
    assert units.stop([units.observe(host.site, "pd-a")], None) == {"pd-a": refusal}
    assert contained.poll() is None and host.info()["units"]["pd-a"]["running"]

    contained.kill()
    contained.wait()
    assert wait_until_free(host, "pd-a")
    assert actions(host.launch(state="stopped")) == {"pd-a": "stopped"}, "its container did not end it in order"
    assert actions(host.launch(state="stopped")) == {"pd-a": "unchanged"}
    assert actions(host.launch(other, state="written")) == {"pd-a": "written"}


def test_files_beside_the_spec_start_nothing_anew(host: Host) -> None:
    script = {"path": "run_dp_template.sh", "content": "echo ü\n", "mode": "0750"}
    first = host.launch(unit("pd-a", files=[script]))
    path = Path(host.site.unit_dir("pd-a")) / "run_dp_template.sh"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("echo ü\n", 0o750)
    second = host.launch(unit("pd-a", files=[script | {"content": "echo new\n"}]))
    assert second["changed"]
    assert second["units"]["pd-a"] | {"reason": ""} == {
        "action": "unchanged",
        "reason": "",
        "pid": first["units"]["pd-a"]["pid"],
        "files": ["run_dp_template.sh"],
    }
    assert path.read_text() == "echo new\n"
    assert "must lead below" in host.launch(unit("pd-a", files=[script | {"path": "../x"}]))["msg"]


def test_a_refused_spec_leaves_everything_as_it_runs(host: Host) -> None:
    host.launch(unit("pd-a"), unit("pd-b"))
    before = {name: host.state(name)["pid"] for name in ("pd-a", "pd-b")}
    files = host.files()
    running = host.sessions()
    bad = host.launch(
        unit("pd-a", rank(0, "sleep 301")),
        unit("pd-b", {"name": "r", "argv": ["no-such-tool"]}),
        unit("pd-c", rank(0), rank(0)),
    )
    assert bad["failed"] and not bad["changed"]
    assert bad["msg"].splitlines() == [
        f"pd-b is refused: process r: command no-such-tool not found in PATH={os.environ['PATH']}",
        "pd-c is refused: two processes are named rank0",
    ]
    assert {name: host.state(name)["pid"] for name in before} == before
    assert host.sessions() == running
    assert host.files() == files


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"units": [{"name": "pd-a"}]}, "pd-a: state started needs a spec"),
        ({"units": [{"name": "pd-a"}], "state": "written"}, "pd-a: state written needs a spec"),
        ({"units": [unit("pd-a", rank(0), rank(0))], "state": "written"}, "pd-a is refused: two processes are named"),
        ({"units": [unit("pd-a"), unit("pd-a")]}, "units names pd-a more than once"),
        ({"units": [unit("pd-a")], "restart": ["pd-x"]}, "restart names pd-x, which is not among units"),
        ({"units": [unit("../x")]}, "unit must be made of letters"),
        ({"units": [unit("pd-a") | {"name": "pd-b"}]}, "pd-b is refused: the spec is the one of unit pd-a"),
        ({"units": [], "cluster": "a/b"}, "cluster must be made of letters"),
    ],
)
def test_impossible_arguments(host: Host, args: dict[str, Any], words: str) -> None:
    result = host.call(launch, **args)
    assert result["failed"] and words in result["msg"]
    assert host.site.found() == []


def test_a_process_that_dies_at_once_is_shown_with_its_last_words(host: Host) -> None:
    dying = rank(1, "echo loading; echo 'ValueError: no model' >&2; exit 3")
    result = host.launch(unit("pd-a", rank(0), dying))
    log = Path(host.site.unit_logs("pd-a")) / "rank1.log"
    assert result["failed"]
    head, *tail = result["msg"].splitlines()
    assert head.startswith("pd-a did not come up: rank 1 (pid ")
    assert head.endswith(f"exited with code 3; ending the other 1; last lines of {log}:")
    assert tail == ["loading", "ValueError: no model"]
    silent = host.launch(unit("pd-a", rank(0, "exit 0")))
    assert "exited with code 0; it printed nothing" in silent["msg"]


def test_a_launcher_that_refuses_is_quoted(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "find_commands", lambda *_: {})  # as if the command went away in between
    result = host.launch(unit("pd-a", {"name": "r", "argv": ["no-such-tool"]}))
    assert result["msg"].startswith("pd-a did not come up: process r: command no-such-tool not found in PATH=")


def test_environment_reaches_the_launcher(host: Host) -> None:
    bin_ = host.root / "bin"
    bin_.mkdir()
    tool = bin_ / "vllm"
    tool.write_text('#!/bin/sh\necho "$PD_REHEARSAL_ROOT|$LD_LIBRARY_PATH"; exec sleep 300\n')
    tool.chmod(0o755)
    environment = {
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "PD_REHEARSAL_ROOT": str(host.root),
        "LD_LIBRARY_PATH": "/own",
    }
    engine = {"name": "r", "argv": ["vllm"], "env": {"LD_LIBRARY_PATH": "/x:$LD_LIBRARY_PATH"}}
    assert actions(host.launch(unit("pd-a", engine), environment=environment)) == {"pd-a": "started"}
    assert units.log_tail(host.site.unit_logs("pd-a") + "/r.log", 1) == [f"{host.root}|/x:/own"]


def test_what_a_killed_launcher_left_is_ended_before_the_start(host: Host) -> None:
    """DEV-09, RUN-07: left-overs of the own unit only."""
    script = "(trap '' TERM HUP; sleep 300; sleep 300) & echo up; " + FOREVER
    host.launch(unit("pd-a", rank(0, script)))
    state = host.state("pd-a")
    below = launcher.descendants(launcher.all_stats(), state["pid"])
    (guard,) = [pid for pid in below if Path(f"/proc/{pid}/comm").read_text() == "pd-guard\n"]
    os.kill(guard, signal.SIGKILL)
    os.kill(state["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 3
    while launcher.lock_is_held(host.site.unit_dir("pd-a")) and time.monotonic() < deadline:
        time.sleep(0.02)
    left = host.sessions()
    assert left, "the grandchildren outlive launcher and guard"
    report = host.info(units=[{"name": "pd-a"}])["units"]["pd-a"]
    assert (report["running"], report["phase"]) == (False, "lost")
    result = host.launch(unit("pd-a", rank(0, script)))
    assert actions(result) == {"pd-a": "started"}
    assert result["units"]["pd-a"]["reason"] == "its launcher was killed"
    assert not left & host.sessions()


def test_a_stop_that_is_not_obeyed_ends_in_a_kill(host: Host) -> None:
    """RUN-07: what ignores the first signal."""
    stubborn = "trap '' TERM; echo up; while :; do sleep 300; done"
    host.launch(unit("pd-a", rank(0, stubborn), stop_grace_seconds=60))
    os.kill(host.state("pd-a")["pid"], signal.SIGSTOP)  # not even the launcher obeys
    begun = time.monotonic()
    result = host.launch(state="stopped", stop_timeout=0.3)
    assert actions(result) == {"pd-a": "stopped"}
    assert time.monotonic() - begun < 5
    assert not host.sessions()


def test_a_stop_fails_when_a_port_stays_taken(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    engine = {"name": "r", "argv": [sys.executable, "-c", LISTENER, str(port)]}
    host.launch(unit("pd-a", engine))
    log = host.site.unit_logs("pd-a") + "/r.log"
    deadline = time.monotonic() + 5
    while units.log_tail(log, 1) != ["listening"] and time.monotonic() < deadline:
        time.sleep(0.02)
    real = units.end_leftovers
    taken: list[socket.socket] = []

    def take_the_port(states: Any) -> int:
        ended = real(states)
        taken.append(socket.create_server(("127.0.0.1", port)))
        return ended

    monkeypatch.setattr(units, "end_leftovers", take_the_port)
    result = host.launch(state="stopped")
    taken[0].close()
    assert result["failed"]
    assert result["msg"].startswith(f"pd-a is not stopped: still listened on: 127.0.0.1:{port} (by pid {os.getpid()}, ")


def test_all_stops_come_before_the_first_start(host: Host) -> None:
    port = free_port()
    engine = {"name": "r", "argv": [sys.executable, "-c", LISTENER, str(port)]}
    host.launch(unit("pd-b", engine))
    moved = host.launch(unit("pd-a", engine), unit("pd-b", rank(0)))
    assert actions(moved) == {"pd-a": "started", "pd-b": "restarted"}


class _Page(BaseHTTPRequestHandler):
    statuses: ClassVar[dict[str, int]] = {}

    def do_GET(self) -> None:
        self.send_response(self.status())
        self.end_headers()

    def status(self) -> int:
        return self.statuses.get(self.path, 200)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def pages() -> Iterator[str]:
    _Page.statuses = {}
    server = HTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_info_while_running(host: Host, pages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    closed = f"http://127.0.0.1:{free_port()}/health"
    wanted = unit(
        "pd-a",
        rank(0, "echo loading; echo ready; " + FOREVER, health_url=pages + "/ok"),
        rank(1, health_url=closed),
        rank(2),
    )
    host.launch(wanted, unit("pd-b"))
    result = host.info(units=[{"name": "pd-a", "spec": wanted["spec"]}, {"name": "pd-none"}], tail_lines=2)
    report = result["units"]["pd-a"]
    assert result["verdict"] == "ended"  # pd-none does not run
    assert [p["health"] for p in report["processes"]] == ["ready", "loading", "ready"]
    assert (report["deployed"], report["running"], report["current"], report["unknown"]) == (True, True, True, False)
    assert (report["phase"], report["end"], report["ready"]) == ("running", None, 2)
    first = report["processes"][0]
    assert (first["last_line"], first["tail"], first["answer"]) == ("ready", ["loading", "ready"], "HTTP 200")
    assert first["log"] == host.site.unit_logs("pd-a") + "/rank0.log"
    assert "tail" not in host.info()["units"]["pd-a"]["processes"][0]
    none = result["units"]["pd-none"]
    assert (none["deployed"], none["running"], none["phase"], none["processes"]) == (False, False, "none", [])
    assert result["units"]["pd-b"]["unknown"] and not host.info()["units"]["pd-b"]["unknown"]
    other = host.info(units=[{"name": "pd-a", "spec": unit("pd-a")["spec"]}])
    assert not other["units"]["pd-a"]["current"] and other["verdict"] == "waiting"


def test_info_tells_what_a_launcher_would_refuse(host: Host) -> None:
    good = unit("pd-a", files=[{"path": "x", "content": "y"}])
    bad = unit("pd-b", rank(0), rank(0))
    gone = unit("pd-c", {"name": "r", "argv": ["no-such-tool"]})

    def problems(**args: Any) -> dict[str, str | None]:
        found = host.info(units=[good, bad, gone, {"name": "pd-d"}], **args)["units"]
        return {name: report["problem"] for name, report in found.items()}

    expected = {"pd-a": None, "pd-b": "two processes are named rank0", "pd-c": None, "pd-d": None}
    assert problems() == expected
    missing = "process r: command no-such-tool not found in PATH=/bin"
    assert problems(environment={"PATH": "/bin"}) == expected | {"pd-c": missing}
    assert problems(environment={"PATH": "/bin"}, check_mode=True) == expected


def test_the_gate_opens_as_soon_as_all_are_ready(host: Host, pages: str) -> None:
    _Page.statuses = {}
    host.launch(unit("pd-a", rank(0, health_url=pages + "/a"), rank(1)))
    result = host.info(units=[{"name": "pd-a"}], wait_seconds=20)
    assert result["verdict"] == "ready" and result["waited_seconds"] < 1


def test_the_gate_waits_no_longer_than_it_may(host: Host) -> None:
    host.launch(unit("pd-a", rank(0, health_url=f"http://127.0.0.1:{free_port()}/health")))
    result = host.info(units=[{"name": "pd-a"}], wait_seconds=0.7)
    assert result["verdict"] == "waiting" and 0.7 <= result["waited_seconds"] < 2


def test_the_gate_closes_when_a_rank_dies(host: Host) -> None:
    dying = rank(1, "sleep 1; seq 1 30; echo 'RuntimeError: HCCL'; exit 9")
    host.launch(unit("pd-a", rank(0, health_url=f"http://127.0.0.1:{free_port()}/health"), dying))
    result = host.info(units=[{"name": "pd-a"}], wait_seconds=20)
    assert result["verdict"] == "ended" and result["waited_seconds"] < 4
    deadline = time.monotonic() + 3
    while host.state("pd-a")["phase"] != "ended" and time.monotonic() < deadline:
        time.sleep(0.02)
    report = host.info()["units"]["pd-a"]
    assert report["end"]["code"] == 9 and "rank 1 (pid" in report["reason"]
    assert report["processes"][1]["tail"][-1] == "RuntimeError: HCCL"
    assert len(report["processes"][1]["tail"]) == 20
    assert [p["health"] for p in report["processes"]] == ["none", "none"]


def test_the_gate_closes_when_a_rank_stays_unhealthy(host: Host, pages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_report, "POLL_SECONDS", 0.1)
    _Page.statuses = {"/sick": 500}
    host.launch(unit("pd-a", rank(0, health_url=pages + "/sick")))
    once = host.info(units=[{"name": "pd-a"}], wait_seconds=0.05)
    assert (once["verdict"], once["units"]["pd-a"]["processes"][0]["health"]) == ("waiting", "loading")
    result = host.info(units=[{"name": "pd-a"}], wait_seconds=20)
    assert result["verdict"] == "unhealthy" and result["waited_seconds"] < 3
    assert result["units"]["pd-a"]["processes"][0]["answer"] == "HTTP 500"
    assert host.info(units=[{"name": "pd-a"}])["verdict"] == "unhealthy"


def test_one_slow_answer_is_no_illness(host: Host, pages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise any run would restart a group of many hosts for it."""
    monkeypatch.setattr(unit_report, "POLL_SECONDS", 0.1)
    host.launch(unit("pd-a", rank(0, health_url=pages + "/slow")))
    answers = iter([500, 500])
    monkeypatch.setattr(_Page, "statuses", {})
    monkeypatch.setattr(_Page, "status", lambda _page: next(answers, 200))
    found = host.info(units=[{"name": "pd-a"}])
    assert (found["verdict"], found["units"]["pd-a"]["processes"][0]["health"]) == ("ready", "ready")


@contextlib.contextmanager
def stranger(address: str = "127.0.0.1") -> Iterator[str]:
    """A port of this test's own process, as a page that only asks for a connection."""
    with socket.create_server((address, 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_another_process_on_the_port_is_not_taken_for_the_unit(
    host: Host, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_report, "POLL_SECONDS", 0.1)
    with stranger(address) as url:
        host.launch(unit("pd-a", rank(0, health_url=url)))
        result = host.info(units=[{"name": "pd-a"}], wait_seconds=20)
    assert result["verdict"] == "unhealthy" and result["waited_seconds"] < 5
    answer = result["units"]["pd-a"]["processes"][0]["answer"]
    assert answer.startswith("not this unit but another process takes connections: ")
    assert f"(by pid {os.getpid()}, " in answer


def test_the_port_may_be_held_by_what_a_process_of_the_unit_has_started(host: Host) -> None:
    port = free_port()
    listens = f"setsid python3 -c '{LISTENER.strip()}' {port}; {FOREVER}"
    host.launch(unit("pd-a", rank(0, listens, health_url=f"tcp://127.0.0.1:{port}")))
    result = host.info(units=[{"name": "pd-a"}], wait_seconds=20)
    assert (result["verdict"], result["units"]["pd-a"]["processes"][0]["answer"]) == ("ready", "takes connections")


def test_a_port_in_a_container_is_told_by_its_namespace(
    host: Host, contained: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = units.observe(host.site, "pd-a")
    with stranger() as url:
        port = int(url.rsplit(":", 1)[1])
        assert f"by pid {os.getpid()}, " in str(units.foreign_listener(observed, "127.0.0.1", port))
        assert units.foreign_listener(observed, "127.0.0.9", port) is None, "nobody listens there"
        own = launcher.pid_namespace()
        with monkeypatch.context() as inside:
            state = observed.state or {}
            inside.setattr(
                units.procfs, "pid_namespace", lambda pid: state["pid_namespace"] if pid == os.getpid() else own
            )
            assert units.foreign_listener(observed, "127.0.0.1", port) is None
        # Whoever may not look at the processes of others blames nobody.
        monkeypatch.setattr(units.procfs, "sockets_of", lambda _pid: set())
        assert units.foreign_listener(observed, "127.0.0.1", port) is None


def test_a_stop_after_a_crash_leaves_the_unit_stopped(host: Host) -> None:
    host.launch(unit("pd-a", rank(0, "sleep 1; exit 9")), unit("pd-b"))
    deadline = time.monotonic() + 5
    while host.state("pd-a")["phase"] != "ended" and time.monotonic() < deadline:
        time.sleep(0.02)
    host.launch(unit("pd-c"), state="written")
    os.kill(host.state("pd-b")["pid"], signal.SIGKILL)
    assert wait_until_free(host, "pd-b")
    assert actions(host.launch(state="stopped", check_mode=True)) == dict.fromkeys(("pd-a", "pd-b", "pd-c"), "stopped")
    assert host.info()["units"]["pd-a"]["end"]["code"] == 9, "a check changes nothing"

    result = host.launch(state="stopped")
    assert result["changed"] and actions(result) == dict.fromkeys(("pd-a", "pd-b", "pd-c"), "stopped")
    found = host.info()["units"]
    assert [(found[name]["phase"], found[name]["end"]["code"]) for name in sorted(found)] == [("ended", 0)] * 3
    assert found["pd-a"]["reason"].startswith("stopped by order; before that: had ended: rank 0 (pid ")
    assert found["pd-b"]["reason"] == "stopped by order; before that: its launcher was killed"
    assert found["pd-c"]["reason"] == "stopped by order; before that: was not running"
    for name, report in found.items():
        shown = unit_state("h1", name, name, report, "process")
        assert shown.stopped and shown.row[4] == "stopped"
    again = host.launch(state="stopped")
    assert not again["changed"] and set(actions(again).values()) == {"unchanged"}
    assert actions(host.launch(unit("pd-c"))) == {"pd-c": "started"}


def test_dev_05_each_hosts_own_npu_smi_is_mounted(host: Host) -> None:
    """DEV-05: drivers put it into one of two folders; containers want it in the first."""
    mounts = ["/usr/local/bin/npu-smi:/usr/local/bin/npu-smi:ro", "/data:/data"]
    wanted = unit("pd-a", container={"image": "x", "mounts": mounts})

    def mounted() -> list[str]:
        found: list[str] = host.launch(wanted, state="written")["units"]["pd-a"]["mounts"]
        return found

    assert mounted() == mounts, "preflight says that it is missing"
    elsewhere = host.root / "usr/local/sbin/npu-smi"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.touch()
    assert mounted() == ["/usr/local/sbin/npu-smi:/usr/local/bin/npu-smi:ro", "/data:/data"]
    usual = host.root / "usr/local/bin/npu-smi"
    usual.mkdir(parents=True)  # as docker leaves it where a mounted file was missing
    assert mounted()[0].startswith("/usr/local/sbin/npu-smi:")
    usual.rmdir()
    usual.touch()
    assert mounted() == mounts


def wait_until_free(host: Host, name: str) -> bool:
    deadline = time.monotonic() + 5
    while launcher.lock_is_held(host.site.unit_dir(name)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not launcher.lock_is_held(host.site.unit_dir(name))


def test_the_gate_gives_a_unit_time_to_appear(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    threading.Timer(0.5, host.launch, [unit("pd-a")]).start()
    site_watch = unit_report.Watch(host.site, {"pd-a": unit_report.Expected()}, 1)
    assert site_watch.wait(5) == "ready"
    monkeypatch.setattr(unit_report, "START_PATIENCE", 0.3)
    assert unit_report.Watch(host.site, {"pd-never": unit_report.Expected()}, 1).wait(5) == "ended"
    deadline = time.monotonic() + 3
    while len(threading.enumerate()) > 1 and time.monotonic() < deadline:
        time.sleep(0.02)  # until the timer's call has returned


def test_lines_of_trouble_since_a_mark(host: Host) -> None:
    """TIME-05: failed transfers stand in the logs only."""
    script = (
        "echo 'Mooncake transfer failed, ret: -1 (old)'; read_it() { :; }; "
        "trap 'echo transfer failure to 192.0.2.11:20064' USR1; while :; do sleep 0.05; done"
    )
    host.launch(unit("pd-a", rank(0, script)))
    first = host.info(log_pattern="transfer fail")
    (process,) = first["units"]["pd-a"]["processes"]
    assert process["matches"] == {"count": 1, "lines": ["Mooncake transfer failed, ret: -1 (old)"]}
    marks = {"pd-a": {"rank0": process["log_mark"]}}
    quiet = host.info(log_pattern="transfer fail", log_marks=marks)
    assert quiet["units"]["pd-a"]["processes"][0]["matches"] == {"count": 0, "lines": []}
    os.kill(host.state("pd-a")["pid"], signal.SIGUSR1)
    deadline = time.monotonic() + 3
    lines: list[str] = []
    while not lines and time.monotonic() < deadline:
        again = host.info(log_pattern="transfer fail", log_marks=marks)
        lines = again["units"]["pd-a"]["processes"][0]["matches"]["lines"]
    assert lines == ["transfer failure to 192.0.2.11:20064"]
    assert "log_pattern is no regular expression" in host.info(log_pattern="(")["msg"]


def test_marks_hold_across_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "l"
    path.write_text("old\nkept\n")
    place = unit_report.mark(str(path))
    with path.open("a") as stream:
        stream.write("bad 1\n")
    path.rename(tmp_path / "l.1")
    path.write_text("bad 2\n")
    pattern = unit_report.compile_pattern("bad|old")
    assert pattern is not None
    assert unit_report.matching_lines(str(path), place, pattern) == (["bad 1", "bad 2"], 2)
    assert unit_report.matching_lines(str(path), "", pattern) == (["old", "bad 1", "bad 2"], 3)
    assert unit_report.mark(str(tmp_path / "none")) == ""


def test_the_module_runs_as_a_program(host: Host) -> None:
    """As Ansible runs it: a process of its own that ends while the launcher stays."""
    args = {"ANSIBLE_MODULE_ARGS": {"cluster": "demo", "root": str(host.root), "units": [unit("pd-a")]}}
    profile = "import ansible.module_utils.basic as b, runpy, sys; b._ANSIBLE_PROFILE = 'legacy'; "
    run = profile + f"runpy.run_module({launch.__name__!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", run],
        input=json.dumps(args),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=20,
    )
    assert actions(json.loads(done.stdout)) == {"pd-a": "started"}
    process = units.launcher_process(host.state("pd-a"))
    assert process is not None and process.session == process.pid

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The launcher as a program, with real processes below it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.ascend.pd_serving.plugins.module_utils import launcher

FOREVER = "sleep 300"
STUBBORN = "trap '' TERM HUP; echo up; while :; do sleep 300; done"


def sh(name: str, script: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "label": name.replace("rank", "rank "), "argv": ["sh", "-c", script], **more}


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
    return result


def alive(pid: int) -> bool:
    stat = launcher.read_stat(pid)
    return stat is not None and not stat.dead


class Unit:
    """A launcher under test, with its folders."""

    def __init__(self, root: Path) -> None:
        self.dir = root / "unit"
        self.logs = root / "logs"
        self.dir.mkdir(parents=True)
        self.process: subprocess.Popen[str] | None = None
        self.spec: dict[str, Any] = {
            "schema": 1,
            "unit": "pd-t",
            "stop_grace_seconds": 0.5,
            "fail_grace_seconds": 0.3,
        }

    def write(self, *processes: dict[str, Any], **more: Any) -> None:
        raw = {**self.spec, "processes": list(processes), **more}
        (self.dir / "launch.json").write_text(json.dumps(raw))

    def start(
        self, *processes: dict[str, Any], env: dict[str, str] | None = None, **more: Any
    ) -> subprocess.Popen[str]:
        self.write(*processes, **more)
        self.process = self.launch(env)
        until(lambda: self.process and (self.process.poll() is not None or self.state().get("phase")))
        return self.process

    def launch(self, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, launcher.__file__, "run", "--unit-dir", str(self.dir), "--log-dir", str(self.logs)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )

    def verb(self, verb: str, *more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, launcher.__file__, verb, "--unit-dir", str(self.dir), *more]
        return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)

    def state(self) -> dict[str, Any]:
        return launcher.read_state(str(self.dir)) or {}

    def pids(self) -> list[int]:
        return [process["pid"] for process in self.state()["processes"]]

    def sessions(self) -> set[int]:
        sessions = set(self.pids())
        return {s.pid for s in launcher.all_stats().values() if s.session in sessions and not s.dead}

    def log(self, name: str = "rank0") -> str:
        lines = (self.logs / f"{name}.log").read_text().splitlines()
        return "\n".join(line for line in lines if not line.startswith(launcher.ANNOUNCEMENT))

    def finish(self, seconds: float = 30.0) -> tuple[int, str]:
        assert self.process is not None
        _, errors = self.process.communicate(timeout=seconds)
        return self.process.returncode, errors


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[Unit]:
    unit = Unit(tmp_path)
    yield unit
    left = unit.sessions() if unit.state() else set()
    if unit.process is not None:
        if unit.process.poll() is None:
            unit.process.kill()
        unit.process.communicate(timeout=10)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, "the test left processes behind"


DUMP = """
import os, sys
out = open(sys.argv[1], "wb")
out.write(b"\\0".join(os.fsencode(a) for a in sys.argv[2:]) + b"\\0\\0")
out.write(b"\\0".join(k + b"=" + v for k, v in sorted(os.environb.items()) if k.startswith(b"T_")))
"""


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_argv_and_environment_arrive_byte_for_byte(unit: Unit, tmp_path: Path, locale: str) -> None:
    """ANS-03: what the plan writes is what the process gets."""
    words = [
        "'\"",
        "$HOME ${HOME} `id` $(id)",
        "back\\slash\\n",
        "zwei\nZeilen\t",
        "Größe 模型 \udcff",
        "*",
        "~",
        "a=b;c&d|e",
    ]
    out = tmp_path / "out"
    env = {f"T_{n}": word for n, word in enumerate(words)}
    dump = {"name": "r", "argv": [sys.executable, "-c", DUMP, str(out), *words], "env": {**env, "T_OWN": None}}
    unit.start(dump, env={"LC_ALL": locale, "T_OWN": "x", "PYTHONUTF8": "1"})
    assert unit.finish()[0] == 1
    argv, environ = out.read_bytes().split(b"\0\0")
    assert argv.split(b"\0") == [launcher.encode(word) for word in words]
    assert environ.split(b"\0") == [launcher.encode(f"{k}={v}") for k, v in sorted(env.items())]


def test_an_empty_word_arrives(unit: Unit) -> None:
    show = "import json, sys; print(json.dumps(sys.argv[1:]))"
    unit.start({"name": "rank0", "argv": [sys.executable, "-c", show, "--root-path", "", "x"]})
    assert unit.finish()[0] == 1
    assert json.loads(unit.log()) == ["--root-path", "", "x"]


def test_expansion_uses_the_launchers_own_environment(unit: Unit) -> None:
    script = 'echo "$LD_LIBRARY_PATH|${A_PATH-unset}|$HOSTS"'
    env = {"LD_LIBRARY_PATH": "/x:${LD_LIBRARY_PATH:-}", "A_PATH": "$NO_SUCH_NAME", "HOSTS": "$LD_LIBRARY_PATH"}
    unit.start(sh("rank0", script, env=env), env={"LD_LIBRARY_PATH": "/own", "A_PATH": "/a"})
    assert unit.finish()[0] == 1
    assert unit.log() == "/x:/own|unset|$LD_LIBRARY_PATH"


def test_state_while_running_and_ordered_stop(unit: Unit) -> None:
    process = unit.start(sh("rank0", "echo one; " + FOREVER), sh("rank1", "sleep 300 & sleep 300"))
    state = unit.state()
    assert (state["phase"], state["end"], state["pid"], state["unit"]) == ("running", None, process.pid, "pd-t")
    assert state["spec_sha256"] == launcher.spec_sha256(json.loads((unit.dir / "launch.json").read_text()))
    assert [(p["name"], p["label"], p["code"]) for p in state["processes"]] == [
        ("rank0", "rank 0", None),
        ("rank1", "rank 1", None),
    ]
    assert state["processes"][0]["log"] == str(unit.logs / "rank0.log")
    assert {launcher.read_stat(pid).session for pid in unit.pids()} == set(unit.pids())  # type: ignore[union-attr]
    assert unit.state()["start_ticks"] == launcher.read_stat(process.pid).start  # type: ignore[union-attr]
    assert (unit.dir / "state.json").stat().st_mode & 0o777 == 0o600
    until(lambda: unit.log() == "one")

    process.terminate()
    code, errors = unit.finish()
    assert code == 0
    assert "stopped by SIGTERM" in errors
    state = unit.state()
    assert (state["phase"], state["end"]["code"], state["end"]["reason"]) == ("ended", 0, "stopped by SIGTERM")
    assert [p["code"] for p in state["processes"]] == [143, 143]
    assert not unit.sessions()


def test_a_stop_kills_what_does_not_obey_grandchildren_too(unit: Unit) -> None:
    """RUN-07: nothing of a unit stays."""
    process = unit.start(sh("rank0", f"({STUBBORN}) & {STUBBORN}"), sh("rank1", FOREVER))
    until(lambda: unit.log() == "up\nup")
    assert len(unit.sessions()) >= 3
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    code, errors = unit.finish()
    assert code == 0
    assert 0.5 <= time.monotonic() - started < 3
    assert "have not ended in the time they were given; killing them" in errors
    assert not unit.sessions()
    assert unit.state()["processes"][0]["code"] == 137


@pytest.mark.parametrize(
    ("script", "code", "how"),
    [
        ("kill -9 $$", 137, "was killed by signal 9 (SIGKILL)"),
        ("sleep 0.2; exit 7", 7, "exited with code 7"),
        ("exit 0", 1, "exited with code 0"),
    ],
)
def test_one_process_that_ends_ends_the_unit(unit: Unit, script: str, code: int, how: str) -> None:
    unit.start(sh("rank0", FOREVER), sh("rank1", script), sh("rank2", FOREVER))
    result, errors = unit.finish()
    assert result == code
    state = unit.state()
    pid = state["processes"][1]["pid"]
    reason = f"rank 1 (pid {pid}) {how}; ending the other 2"
    assert (state["phase"], state["end"]["code"], state["end"]["reason"]) == ("ended", code, reason)
    assert reason in errors
    assert not unit.sessions()


def test_a_killed_rank_ends_a_stubborn_unit_within_five_seconds(unit: Unit) -> None:
    unit.start(*(sh(f"rank{n}", STUBBORN) for n in range(4)), fail_grace_seconds=3)
    until(lambda: all(unit.log(f"rank{n}") == "up" for n in range(4)))
    started = time.monotonic()
    os.kill(unit.pids()[2], signal.SIGKILL)
    assert unit.finish()[0] == 137
    assert time.monotonic() - started < 5
    assert not unit.sessions()


def test_nothing_survives_a_launcher_that_is_killed(unit: Unit) -> None:
    process = unit.start(sh("rank0", f"({STUBBORN}) & {STUBBORN}"), sh("rank1", FOREVER))
    until(lambda: unit.log() == "up\nup")
    process.kill()
    process.wait()
    until(lambda: not unit.sessions(), 3)
    until(lambda: not launcher.lock_is_held(str(unit.dir)), 3)
    assert unit.state()["phase"] == "running"  # nobody was left to say otherwise: the lock tells


def test_a_process_that_left_its_session_is_stopped_too(unit: Unit, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    process = unit.start(sh("rank0", f"setsid sh -c 'echo $$ > {pid_file}; {STUBBORN}' & {FOREVER}"))
    stray = int(until(lambda: pid_file.exists() and pid_file.read_text().strip()))
    until(lambda: "up" in unit.log())
    process.terminate()
    assert unit.finish()[0] == 0
    assert not alive(stray)


def test_orphans_are_reaped(unit: Unit) -> None:
    process = unit.start(sh("rank0", "for i in 1 2 3; do (setsid sleep 0.1 &); done; " + FOREVER))
    time.sleep(0.4)
    zombies = [s for s in launcher.all_stats().values() if s.parent == process.pid and s.dead]
    assert not zombies
    process.terminate()
    assert unit.finish()[0] == 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_other_signals_are_passed_on(unit: Unit, number: signal.Signals) -> None:
    name = number.name[3:]
    process = unit.start(sh("rank0", f"trap 'echo got' {name}; echo up; while :; do sleep 0.05; done"))
    until(lambda: unit.log() == "up")
    process.send_signal(number)
    until(lambda: unit.log() == "up\ngot")
    process.terminate()
    assert unit.finish()[0] == 0


def test_output_is_kept_whole_at_high_volume(unit: Unit) -> None:
    script = 'i=0; while [ $i -lt 4000 ]; do i=$((i+1)); echo "$0 line $i"; done; sleep 0.2; exit 3'
    ranks = [{"name": f"rank{n}", "argv": ["sh", "-c", script, f"r{n}"]} for n in range(4)]
    unit.start(*ranks, log_max_bytes=4096, log_keep=99)
    assert unit.finish(20)[0] == 3
    for n in range(4):
        parts = sorted(unit.logs.glob(f"rank{n}.log*"), key=lambda p: -int(p.suffix[1:]) if p.suffix != ".log" else 0)
        assert len(parts) > 10
        lines = "".join(part.read_text() for part in parts).splitlines()[1:]
        assert lines == [f"r{n} line {i}" for i in range(1, 4001)]
        assert all(part.stat().st_mode & 0o777 == 0o600 for part in parts)


def test_a_full_disk_under_the_logs_stops_nobody(unit: Unit) -> None:
    unit.logs.mkdir()
    (unit.logs / "rank0.log").symlink_to("/dev/full")
    process = unit.start(sh("rank0", "for i in 1 2 3 4; do echo $i; sleep 0.05; done; echo done >&2; " + FOREVER))
    time.sleep(0.5)
    assert process.poll() is None and unit.state()["phase"] == "running"
    process.terminate()
    code, errors = unit.finish()
    assert code == 0
    assert errors.count("No space left on device") == 1


def test_the_last_words_of_a_process_are_in_its_log(unit: Unit) -> None:
    unit.start(sh("rank0", "seq 1 20000; echo 'ValueError: no such model' >&2; exit 5"))
    assert unit.finish()[0] == 5
    assert unit.log().splitlines()[-2:] == ["20000", "ValueError: no such model"]


def test_hundreds_of_processes(unit: Unit) -> None:
    started = time.monotonic()
    process = unit.start(*(sh(f"rank{n}", f"echo {n}; exec sleep 300") for n in range(200)))
    assert time.monotonic() - started < 6
    until(lambda: all(unit.log(f"rank{n}") == str(n) for n in (0, 100, 199)))
    stat = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    before = int(stat[11]) + int(stat[12])
    time.sleep(0.3)
    stat = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    assert int(stat[11]) + int(stat[12]) - before <= 1, "an idle launcher uses no processor time"
    os.kill(unit.pids()[77], signal.SIGKILL)
    assert unit.finish()[0] == 137
    assert "rank 77" in unit.state()["end"]["reason"]
    assert "ending the other 199" in unit.state()["end"]["reason"]


def test_a_small_descriptor_limit_is_raised_for_the_launcher_only(unit: Unit) -> None:
    unit.write(*(sh(f"rank{n}", "ulimit -n; exec sleep 300") for n in range(40)))
    command = f'ulimit -S -n 64; exec "$0" "{launcher.__file__}" run --unit-dir "{unit.dir}" --log-dir "{unit.logs}"'
    unit.process = subprocess.Popen(["sh", "-c", command, sys.executable], stderr=subprocess.PIPE, text=True)
    until(lambda: unit.state().get("phase") == "running")
    until(lambda: unit.log("rank39") == "64")
    unit.process.terminate()
    assert unit.finish()[0] == 0


def refusal(unit: Unit) -> str:
    process = unit.launch()
    _, errors = process.communicate(timeout=10)
    assert process.returncode == launcher.EXIT_REFUSED
    assert errors.count("\n") == 1
    assert errors.startswith("launcher: unit: refused: ")
    return errors


def test_refusals_are_one_line_and_exit_code_two(unit: Unit) -> None:
    assert "launch.json cannot be read: No such file or directory" in refusal(unit)
    (unit.dir / "launch.json").write_text("{")
    assert "not JSON" in refusal(unit)
    unit.write(sh("rank0", "true"), sh("rank0", "true"))
    assert "two processes are named rank0" in refusal(unit)
    unit.write({"name": "rank0", "argv": ["no-such-command"]})
    assert "process rank0: command no-such-command not found in PATH=" in refusal(unit)
    assert "no-such-command" in unit.verb("check").stderr
    unit.write(sh("rank0", "true"))
    unit.logs.write_text("a file where the folder should be")
    assert f"{unit.logs} is no folder" in refusal(unit)
    assert unit.verb("check", "--log-dir", str(unit.logs)).returncode == 2
    assert unit.verb("check").returncode == 0
    assert unit.state()["processes"] == []


def test_fab_01_a_container_without_its_mounted_files(unit: Unit, tmp_path: Path) -> None:
    """FAB-01: without hccn.conf engines start and answer wrongly, so none is started; unit and file are named."""
    conf = tmp_path / "hccn.conf"
    container = {"files": [str(conf)]}
    unit.write(sh("rank0", "true"), container=container)
    assert f"{conf} in the container of pd-t is missing" in refusal(unit)
    conf.mkdir()
    assert f"{conf} in the container of pd-t is a folder" in refusal(unit)
    assert unit.state()["processes"] == []
    assert unit.verb("check").returncode == 0, "the host is not the container"
    conf.rmdir()
    conf.touch()
    assert unit.start(sh("rank0", "true"), container=container).wait(10) != launcher.EXIT_REFUSED
    unit.write(sh("rank0", "true"), container={"files": "x"})
    assert "files of the container must be a list" in refusal(unit)


def test_img_03_nothing_to_preload_is_said(unit: Unit, tmp_path: Path) -> None:
    """IMG-03: the variable is not set then, and the launcher's log tells why; one library that is there is enough."""
    for there in (False, True):
        process = sh("rank0", 'echo "preload=${LD_PRELOAD-unset}"')
        library = tmp_path / "libjemalloc.so.2"
        if there:
            library.touch()
        process["env"] = {"LD_PRELOAD": f"/nowhere/libjemalloc.so.2:{library}:$LD_PRELOAD"}
        unit.write(process)
        started = unit.launch({"LD_PRELOAD": ""})
        _, errors = started.communicate(timeout=10)
        assert ("nothing is preloaded" in errors) is not there
        said = "".join(path.read_text() for path in unit.logs.glob("rank0*"))
        assert "preload=unset" in said or there


def test_a_refusal_is_entered_into_the_state(unit: Unit) -> None:
    """In a container nobody reads what a launcher prints; what an earlier run has left behind stays known."""
    (unit.dir / "launch.json").write_text("{")
    reason = refusal(unit).split("refused: ", 1)[1].strip()
    state = unit.state()
    assert (state["phase"], state["end"]["code"], state["processes"]) == ("ended", launcher.EXIT_REFUSED, [])
    assert state["end"]["reason"] == state["reason"] == f"its launcher refused to start it: {reason}"
    (unit.dir / "state.json").unlink()
    process = unit.start(sh("rank0", FOREVER))
    process.terminate()
    unit.finish()
    before = unit.state()
    (unit.dir / "launch.json").write_text("{")
    refusal(unit)
    after = unit.state()
    assert after["processes"] == before["processes"] and after["end"]["code"] == launcher.EXIT_REFUSED


def test_a_second_launcher_is_refused_and_harms_nothing(unit: Unit) -> None:
    process = unit.start(sh("rank0", FOREVER))
    before = (unit.dir / "state.json").read_text()
    assert "another launcher holds" in refusal(unit)
    assert (unit.dir / "state.json").read_text() == before
    process.terminate()
    assert unit.finish()[0] == 0


def test_a_look_at_the_lock_does_not_keep_a_launcher_from_starting(unit: Unit) -> None:
    with open(unit.dir / "launcher.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        threading.Timer(0.4, lock.close).start()
        unit.start(sh("rank0", "exit 4"))
        assert unit.finish()[0] == 4


def test_a_process_that_cannot_be_executed_ends_the_unit(unit: Unit, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("no interpreter line")
    broken.chmod(0o755)
    unit.start(sh("rank0", FOREVER), {"name": "rank1", "label": "rank 1", "argv": [str(broken)]})
    code, errors = unit.finish()
    assert code == 1
    assert "rank 1 could not be started: [Errno 8] Exec format error" in errors
    assert unit.state()["end"]["reason"].startswith("rank 1 could not be started")


def test_a_lost_guard_is_reported(unit: Unit) -> None:
    process = unit.start(sh("rank0", FOREVER))
    below = [s.pid for s in launcher.all_stats().values() if s.parent == process.pid]
    (guard,) = set(below) - set(unit.pids())
    assert Path(f"/proc/{guard}/comm").read_text() == "pd-guard\n"
    os.kill(guard, signal.SIGKILL)
    time.sleep(0.1)
    process.terminate()
    code, errors = unit.finish()
    assert code == 0
    assert "the guard process ended" in errors


def test_root_is_put_before_both_folders(unit: Unit, tmp_path: Path) -> None:
    unit.write(sh("rank0", "echo rooted; exit 9"))
    folders = ["--root", str(tmp_path), "--unit-dir", "/unit", "--log-dir", "/l/g"]
    command = [sys.executable, launcher.__file__, "run", *folders]
    assert subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 9
    assert "rooted" in (tmp_path / "l" / "g" / "rank0.log").read_text()


class _Page(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


def test_health(unit: Unit) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/health"
    assert "not running" in unit.verb("health").stderr
    process = unit.start(sh("rank0", FOREVER, health_url=url), sh("rank1", FOREVER))
    assert unit.verb("health").returncode == 0
    _Page.status = 503
    answer = unit.verb("health")
    assert (answer.returncode, answer.stderr) == (1, "rank 0 is unhealthy (HTTP 503)\n")
    process.terminate()
    assert unit.finish()[0] == 0
    assert "not running" in unit.verb("health").stderr
    server.shutdown()
    server.server_close()

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""A rehearsed cluster, driven as a user drives it: the root playbooks, through ansible-runner, judged by its events."""

from __future__ import annotations

import ctypes
import dataclasses
import fcntl
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import time
import typing as t
import urllib.request

import ansible_runner
import pytest

PROJECT = pathlib.Path(__file__).resolve().parents[2]
# What runs on the managed host is counted; these run on the controller.
CONTROLLER_ACTIONS = {
    "ascend.pd_serving.plan",
    "ascend.pd_serving.preflight_report",
    "ascend.pd_serving.preflight_schedule",
    "ascend.pd_serving.restart_together",
    "ascend.pd_serving.status",
    "ascend.pd_serving.summary",
    "ansible.builtin.set_fact",
    "ansible.builtin.debug",
    "ansible.builtin.fail",
    "ansible.builtin.meta",
    "ansible.builtin.include_role",
    "ansible.builtin.include_tasks",
    "ansible.builtin.validate_argument_spec",
}


# Own networks ---------------------------------------------------------------------------------------------------------
#
# All rehearsals use the same ports of loopback addresses. With root each test process has a network of its own, so that
# several run at the same time; without, the tests run one after the other.

CLONE_NEWNET, SIOCSIFFLAGS, IFF_UP = 0x40000000, 0x8914, 1
LIBC = ctypes.CDLL(None, use_errno=True)
# Modules whose fixtures serve several tests: those stay in one process.
TOGETHER = ("test_installed_collection", "test_pd_flow", "test_engine", "test_groups")


def pytest_xdist_auto_num_workers() -> int:
    alone = subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode == 0
    return min(os.cpu_count() or 1, 4) if alone else 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        module = item.path.stem
        if module in TOGETHER:
            item.add_marker(pytest.mark.xdist_group(module))


def _enter(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@pytest.fixture(scope="session", autouse=True)
def machines_network() -> t.Iterator[int | None]:
    """Leave this machine's network for an empty one; yields a handle of the machine's, or None when nothing was left."""
    if os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") == "1":
        yield None
        return
    handle = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    _enter(LIBC.unshare(CLONE_NEWNET))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        fcntl.ioctl(asked, SIOCSIFFLAGS, struct.pack("16sH", b"lo", IFF_UP))
    yield handle
    os.close(handle)


@pytest.fixture
def package_index(machines_network: int | None) -> t.Iterator[None]:
    """For a test that fetches packages: it runs in this machine's network."""
    if machines_network is None:
        yield
        return
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    _enter(LIBC.setns(machines_network, CLONE_NEWNET))
    yield
    _enter(LIBC.setns(own, CLONE_NEWNET))
    os.close(own)


@dataclasses.dataclass
class Result:
    """What a run did, from its events; stdout for what only people see."""

    status: str
    rc: int
    events: list[dict[str, t.Any]]
    stdout: str
    seconds: float
    stats: dict[str, dict[str, int]]

    def changed(self) -> dict[str, int]:
        return {host: count for host, count in self.stats.get("changed", {}).items() if count}

    def on_hosts(self) -> dict[str, list[str]]:
        """Host -> tasks that were executed on it."""
        done: dict[str, list[str]] = {}
        for event in self.events:
            data = event.get("event_data", {})
            if event["event"] in ("runner_on_ok", "runner_on_failed") and (
                data["resolved_action"] not in CONTROLLER_ACTIONS
            ):
                done.setdefault(data["host"], []).append(data["task"])
        return done

    def skipped(self) -> dict[str, set[str]]:
        """Task -> hosts that skipped it; each of them cost the controller a process."""
        skipped: dict[str, set[str]] = {}
        for event in self.events:
            if event["event"] == "runner_on_skipped":
                skipped.setdefault(event["event_data"]["task"], set()).add(event["event_data"]["host"])
        return skipped

    def hosts(self) -> set[str]:
        return {event["event_data"]["host"] for event in self.events if "host" in event.get("event_data", {})}

    def result_of(self, task: str, host: str | None = None) -> dict[str, t.Any]:
        for event in self.events:
            data = event.get("event_data", {})
            if (
                event["event"].startswith("runner_on_")
                and data.get("task") == task
                and host in (None, data.get("host"))
            ):
                found: dict[str, t.Any] = data.get("res") or {}
                if found:
                    return found
        raise AssertionError(f"no result of task {task!r} on {host}")

    def messages(self) -> str:
        """Messages of failed tasks."""
        failed = [event for event in self.events if event["event"] == "runner_on_failed"]
        return "\n".join(str(event["event_data"]["res"].get("msg", "")) for event in failed)


class Rehearsal:
    """One inventory with a state folder of its own."""

    def __init__(
        self, inventory: str | pathlib.Path, folder: pathlib.Path, extra: dict[str, t.Any] | None = None
    ) -> None:
        self.inventory = str(inventory)
        self.folder = folder
        self.state = folder / "state"
        self.extra = extra or {}
        self.runs = 0

    def run(self, playbook: str, *, limit: str | None = None, cmdline: str = "", **extra: t.Any) -> Result:
        self.runs += 1
        variables = {"pd_rehearsal": True, "pd_rehearsal_dir": str(self.state), **self.extra, **extra}
        private = self.folder / f"run{self.runs}"
        private.mkdir()
        began = time.monotonic()
        runner = ansible_runner.run(
            private_data_dir=str(private),
            project_dir=str(PROJECT),
            playbook=playbook,
            inventory=self.inventory,
            extravars=variables,
            envvars={
                "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
                "ANSIBLE_HOME": str(self.folder / "ansible"),
                "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
            },
            quiet=True,
            limit=limit,
            cmdline=cmdline or None,
        )
        return Result(
            status=runner.status,
            rc=runner.rc,
            events=list(runner.events),
            stdout=runner.stdout.read(),
            seconds=time.monotonic() - began,
            stats=runner.stats or {},
        )

    def unit_state(self, host: str, unit: str) -> dict[str, t.Any]:
        path = self.state / "hosts" / host / "opt/pd_serving/pd" / unit / "state.json"
        loaded: dict[str, t.Any] = json.loads(path.read_text(encoding="utf-8"))
        return loaded

    def pids(self, host: str, unit: str) -> list[int]:
        return [process["pid"] for process in self.unit_state(host, unit)["processes"]]

    def processes(self) -> list[str]:
        """Command lines of everything that still runs below the state folder."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                except OSError:
                    continue
                if str(self.state).encode() in text:
                    found.append(text.split(b"\0\0")[0].replace(b"\0", b" ").decode(errors="replace")[:200])
        return found

    def listeners(self, addresses: set[str]) -> list[str]:
        """Listening sockets on these addresses."""
        rows = pathlib.Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
        out = []
        for row in rows:
            address, state = row.split()[1], row.split()[3]
            octets = bytes.fromhex(address.split(":")[0])[::-1]
            text = ".".join(map(str, octets))
            if state == "0A" and text in addresses:
                out.append(f"{text}:{int(address.split(':')[1], 16)}")
        return out

    def plan(self) -> dict[str, t.Any]:
        out = self.folder / "plan.json"
        run = self.run("plan.yml", plan_out=str(out))
        assert run.rc == 0, run.stdout
        loaded: dict[str, t.Any] = json.loads(out.read_text(encoding="utf-8"))
        return loaded


def complete(url: str, model: str, **more: t.Any) -> dict[str, t.Any]:
    """A completion as a user would ask for it."""
    body = {"model": model, "prompt": "Who are you?", "max_tokens": 8, "temperature": 0, **more}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
        loaded: dict[str, t.Any] = json.loads(answer.read())
        return loaded


def wait_for(what: t.Callable[[], bool], seconds: float) -> bool:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if what():
            return True
        time.sleep(0.1)
    return what()


@pytest.fixture
def rehearse(tmp_path: pathlib.Path) -> t.Iterator[t.Callable[..., Rehearsal]]:
    """Make rehearsals that are stopped at the end, whatever happened."""
    made: list[Rehearsal] = []

    def make(inventory: str | pathlib.Path, **extra: t.Any) -> Rehearsal:
        folder = tmp_path / f"rehearsal {len(made)}"
        folder.mkdir()
        rehearsal = Rehearsal(inventory, folder, extra)
        made.append(rehearsal)
        return rehearsal

    yield make
    for rehearsal in made:
        if rehearsal.processes():
            rehearsal.run("stop.yml")
    assert [process for rehearsal in made for process in rehearsal.processes()] == []

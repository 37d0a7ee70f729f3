# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Wait until the ranks of this host are ready, show how far each instance is, and stop at once when one cannot become ready.

Hosts wait side by side, one worker each; they tell each other through one file per instance in the run's private
folder. So progress is shown per instance, and a dead rank on one host ends the wait on the others.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import pathlib
import time
import typing as t

from ansible import constants
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import report, slices

display = Display()
SILENCE_SECONDS = 30
_FAILURES = "/failures"


class ActionModule(ActionBase):
    """Polls the units of the host; each call waits there until something changes or the poll time is over."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        result["changed"] = False
        _spec, options = self.validate_argument_spec(
            {
                "roles": {"type": "list", "elements": "str", "required": True},
                "timeout": {"type": "int", "default": 3600},
                "poll": {"type": "int", "default": 10},
                "partial_wait": {"type": "int", "default": 30},
            }
        )
        variables = task_vars or {}
        host = variables["inventory_hostname"]
        slice_ = slices.read(constants.DEFAULT_LOCAL_TMP, host) or {}
        units = [unit for unit in slice_.get("units", []) if unit["role"] in options["roles"]]
        if not units:
            result.update(skipped=True, skip_reason="no instance of these roles on this host")
            return result
        if self._task.check_mode:
            result.update(skipped=True, skip_reason="check mode starts nothing to wait for")
            return result
        overview = slices.read(constants.DEFAULT_LOCAL_TMP, slices.CLUSTER_FILE) or {}
        waiting = _Wait(host, units, overview, set(variables["ansible_play_hosts_all"]), options)
        result.update(self._wait(waiting, slice_, variables, options))
        for note in result.get("not_judged", ()):
            display.display(f"not judged: {note}")
        return result

    def _wait(
        self, waiting: _Wait, slice_: dict[str, t.Any], variables: dict[str, t.Any], options: dict[str, t.Any]
    ) -> dict[str, t.Any]:
        while True:
            left = options["timeout"] - waiting.elapsed
            asked = {
                "parts": ["units"],
                "arguments": {
                    "units": {
                        "cluster": slice_["cluster"],
                        "root": slice_["root"],
                        "units": [unit["launch"] for unit in waiting.units],
                        "wait_seconds": max(1, min(options["poll"], int(left))),
                    }
                },
            }
            try:
                told = self._execute_module(
                    module_name="ascend.pd_serving.on_host", module_args=asked, task_vars=variables
                )
            except AnsibleConnectionFailure as problem:
                waiting.lose(f"{waiting.host} is not reached any more: {problem}")
                raise
            if told.get("failed") or told.get("unreachable"):
                waiting.lose(f"{waiting.host} does not tell how far it is: {told.get('msg', 'no message')}")
                return t.cast("dict[str, t.Any]", told)
            answer = told["answers"]["units"]
            verdict = waiting.look(answer["units"], answer["now"])
            if verdict is not None:
                return verdict


class _Wait:
    """What one host knows while it waits, and what it tells the others."""

    def __init__(
        self,
        host: str,
        units: list[dict[str, t.Any]],
        overview: dict[str, t.Any],
        play_hosts: set[str],
        options: dict[str, t.Any],
    ) -> None:
        self.host, self.units, self.options = host, units, options
        self.began = time.monotonic()
        instances = {instance["name"]: instance for instance in overview["instances"]}
        self.totals = {unit["instance"]: instances[unit["instance"]]["ranks"] for unit in units}
        self.outside = {
            unit["instance"]: [h for h in instances[unit["instance"]]["hosts"] if h not in play_hosts] for unit in units
        }

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def run_age(self) -> float:
        """Seconds since this run made its plan: a younger unit was started by it."""
        plan_file = slices.directory(constants.DEFAULT_LOCAL_TMP) / slices.CLUSTER_FILE
        return time.time() - plan_file.stat().st_mtime

    def look(self, found: dict[str, dict[str, t.Any]], now: float) -> dict[str, t.Any] | None:
        """A result when the wait is over, None to look again. now is the host's clock, as the units' times are."""
        ready, judged = {}, {}
        for unit in self.units:
            state = found[unit["name"]]
            problem = _problem(unit, state, self.host)
            with _board(unit["instance"]) as board:
                count = _ready(unit, state)
                age = now - (state["since"] or now)
                entry = {"ready": count, "seconds": age, "started": age < self.run_age()}
                board.setdefault("hosts", {})[self.host] = entry
                self._progress(unit["instance"], board, state)
            if problem:
                self._tell(unit["instance"], problem)
                return {"failed": True, "msg": problem}
            ready[unit["instance"]] = count
            judged[unit["instance"]] = count == unit["ranks"]
        if all(judged.values()):
            return {"ready": ready, "seconds": round(self.elapsed, 1), "not_judged": self._outside_note()}
        pending = [name for name, done in judged.items() if not done]
        with _board(_FAILURES) as failures:
            failed = dict(failures)
        if failed:
            return self._give_up(pending, failed)
        if all(self.outside[name] for name in pending) and self.elapsed > self.options["partial_wait"]:
            return {"ready": ready, "seconds": round(self.elapsed, 1), "not_judged": self._pending_note(pending)}
        if self.elapsed >= self.options["timeout"]:
            return {"failed": True, "msg": self._timeout_message(found, pending)}
        return None

    def lose(self, problem: str) -> None:
        """This host is not heard of any more, and with it its instances."""
        for unit in self.units:
            self._tell(unit["instance"], problem)

    def _tell(self, instance: str, problem: str) -> None:
        with _board(_FAILURES) as failures:
            failures.setdefault(instance, f"{problem.splitlines()[0]} (see {self.host})")

    def _give_up(self, pending: list[str], failed: dict[str, str]) -> dict[str, t.Any]:
        """The run fails anyway; waiting on would only delay the message."""
        for name in pending:
            if name in failed:
                return {"failed": True, "msg": f"instance {name} cannot become ready: {failed[name]}"}
        first = next(iter(failed))
        note = f"{', '.join(pending)} on {self.host}: no longer waited for, because instance {first} has failed"
        return {"ready": {}, "seconds": round(self.elapsed, 1), "not_judged": [note]}

    def _progress(self, instance: str, board: dict[str, t.Any], state: dict[str, t.Any]) -> None:
        ready = sum(entry["ready"] for entry in board["hosts"].values())
        said = board.get("said", {"ready": -1, "at": 0.0})
        if ready == said["ready"] and time.time() - said["at"] < SILENCE_SECONDS:
            return
        board["said"] = {"ready": ready, "at": time.time()}
        total = self.totals[instance]
        last = "" if ready == total else next((p["last_line"] for p in state["processes"] if p.get("last_line")), "")
        display.display(report.progress_line(instance, ready, total, self.elapsed, last))

    def _outside_note(self) -> list[str]:
        return [
            f"ranks of {name} on {', '.join(hosts[:4])}{' ...' if len(hosts) > 4 else ''} (outside --limit)"
            for name, hosts in self.outside.items()
            if hosts
        ]

    def _pending_note(self, pending: list[str]) -> list[str]:
        return [
            f"ranks of {name} on {self.host}: they wait for {', '.join(self.outside[name][:4])}, outside --limit"
            for name in pending
        ]

    def _timeout_message(self, found: dict[str, dict[str, t.Any]], pending: list[str]) -> str:
        lines = [
            f"not ready after {report.clock(self.elapsed)} on {self.host} (engine_ready_timeout {self.options['timeout']} s)"
        ]
        for unit in self.units:
            if unit["instance"] not in pending:
                continue
            for process in found[unit["name"]]["processes"]:
                if process["health"] != "ready":
                    lines.append(f"{unit['instance']} {process['label']}: {process['health']}; log {process['log']}")
                    lines.append(f"    {process.get('last_line') or '(no output yet)'}")
        return "\n".join(lines)


def _ready(unit: dict[str, t.Any], state: dict[str, t.Any]) -> int:
    """Ranks of this host that are ready. A process of an internal group carries several ranks."""
    processes = state["processes"]
    ready = sum(process["health"] == "ready" for process in processes)
    return int(unit["ranks"]) if ready == len(processes) and processes else ready


def _problem(unit: dict[str, t.Any], state: dict[str, t.Any], host: str) -> str | None:
    """Why this unit will never become ready, with the end of the log that tells; None while there is hope."""
    instance = unit["instance"]
    sick = [process for process in state["processes"] if process["health"] == "unhealthy"]
    if not state["deployed"]:
        return (
            f"instance {instance} is not deployed on {host}, so there is nothing to wait for: "
            f"run site.yml (or {unit['role']}.yml), which deploys it"
        )
    if not state["running"]:
        end = state.get("end") or {}
        ended = [process for process in state["processes"] if process.get("code") is not None] or state["processes"]
        lines = [f"instance {instance} on {host} has ended: {end.get('reason') or 'its launcher is gone'}"]
        for process in ended[:1]:
            lines.append(f"Log {process['log']}:")
            lines += [f"    {line}" for line in process.get("tail") or [process.get("last_line") or ""]]
        return "\n".join(lines)
    if sick:
        first = sick[0]
        return (
            f"instance {instance} on {host}: {first['label']} answers but is not healthy; log {first['log']}\n"
            f"    {first.get('last_line') or ''}"
        )
    return None


@contextlib.contextmanager
def _board(instance: str) -> t.Iterator[dict[str, t.Any]]:
    """What the hosts of an instance tell each other, under a lock."""
    path = board_path(instance)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with path.open("a+", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        text = stream.read()
        board: dict[str, t.Any] = json.loads(text) if text else {}
        yield board
        stream.seek(0)
        stream.truncate()
        json.dump(board, stream)


def board_path(instance: str) -> pathlib.Path:
    return slices.directory(constants.DEFAULT_LOCAL_TMP) / "gate" / slices.file_name(instance)

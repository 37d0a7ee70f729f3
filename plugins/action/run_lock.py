# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Controller side of ascend.pd_serving.run_lock: whose run this is, and whether the run that has the lock still goes on.

A run that was broken off never gives its lock back. The host that keeps the lock cannot know that; the controller that
the run was started on can.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import pathlib
import re
import socket
import typing as t

from ansible import constants
from ansible.plugins.action import ActionBase

from ansible_collections.ascend.pd_serving.plugins.module_utils import launcher, run_lock
from ansible_collections.ascend.pd_serving.plugins.plugin_utils import small_script

MODULE = "ascend.pd_serving.run_lock"
# What the rest of a run calls, by its verb.
_LATER = ("ascend.pd_serving.on_host",)
LATER = {"site": (*_LATER, "ascend.pd_serving.completion_check"), "prefill": _LATER, "decode": _LATER}
_RUN_ID = re.compile(r"([0-9a-f]{16})\.([0-9]{1,9})\.([0-9]+)\Z")


class ActionModule(ActionBase):
    """Asks the host, and once more when the lock turns out to be one of a run that has ended."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        _spec, arguments = self.validate_argument_spec(dict(run_lock.OPTIONS))
        # A task is run by a worker process of its own; its parent is the run.
        pid = os.getppid()
        arguments["owner"] = arguments["owner"] or owner(pid)
        arguments["run_id"] = arguments["run_id"] or run_id(pid)
        answer = self._ask(arguments, variables)
        if answer.get("action") == "refused" and has_ended(answer["holder"]["run_id"]):
            arguments["ended_run"] = answer["holder"]["run_id"]
            answer = self._ask(arguments, variables)
        result.update(answer)
        self._build_ahead(variables)
        if self._discovered_interpreter_key:
            # Else the next task would look for it once more.
            result["ansible_facts"] = {self._discovered_interpreter_key: self._discovered_interpreter}
        return result

    def _ask(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """By a small program; where that gives no answer, the module does it, or says why it cannot."""
        python = small_script.interpreter(self._templar, task_vars) or small_script.USUAL
        words = {**arguments, "check_mode": bool(self._task.check_mode)}
        told = small_script.ask(self, python, small_script.program("run_lock", ("sites",), words))
        if told is None:
            return t.cast(
                "dict[str, t.Any]",
                self._execute_module(module_name=MODULE, module_args=arguments, task_vars=task_vars),
            )
        if told.get("note"):
            told["warnings"] = [told["note"]]
        return told

    def _build_ahead(self, task_vars: dict[str, t.Any]) -> None:
        """Build what the run calls later, each module in another host's worker: all hosts would wait for it then.

        With one host only the first, since nothing is won by the rest.

        A build takes a core for 0.2 seconds, once per module and run.
        """
        later = LATER.get(self._task.args.get("verb", ""), ())
        if not later:
            return
        hosts = task_vars["ansible_play_hosts"]
        place = hosts.index(task_vars["inventory_hostname"])
        if place < len(later):
            self._configure_module(module_name=later[place], module_args={}, task_vars=task_vars)


def owner(pid: int) -> str:
    """Whose run it is, as another operator would look for it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()} (pid {pid})"


def controller() -> str:
    """Names what makes a pid mean one process: this machine, this boot of it, this container. Empty when unknown."""
    boot, namespace = launcher.boot_id(), launcher.pid_namespace()
    if not boot or not namespace:
        return ""
    return hashlib.sha256(f"{socket.gethostname()}\0{boot}\0{namespace}".encode()).hexdigest()[:16]


def run_id(pid: int) -> str:
    """Names the run with this pid. Where /proc does not tell enough, by its private folder."""
    stat = launcher.read_stat(pid)
    here = controller()
    return f"{here}.{pid}.{stat.start}" if here and stat is not None else pathlib.Path(constants.DEFAULT_LOCAL_TMP).name


def has_ended(other: str) -> bool:
    """Whether a run is known to have ended: it was one of this controller, and its process is gone."""
    match = _RUN_ID.match(other)
    if match is None or match.group(1) != controller():
        return False
    pid, start = int(match.group(2)), int(match.group(3))
    try:
        os.kill(pid, 0)  # also sees processes that /proc hides from this user
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    stat = launcher.read_stat(pid)
    return stat is not None and (stat.start != start or stat.dead)

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

from ansible_collections.ascend.pd_serving.plugins.module_utils import launcher

MODULE = "ascend.pd_serving.run_lock"
# What the rest of a run calls, by its verb.
_LATER = ("ascend.pd_serving.on_host",)
LATER = {"site": (*_LATER, "ascend.pd_serving.completion_check"), "prefill": _LATER, "decode": _LATER}
# How many of the other hosts' workers build: more would share the cores of a small controller.
BUILDERS = 2
_RUN_ID = re.compile(r"([0-9a-f]{16})\.([0-9]{1,9})\.([0-9]+)\Z")


class ActionModule(ActionBase):
    """Calls the module, and once more when the lock turns out to be one of a run that has ended."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        self._build_ahead(task_vars or {})
        # A task is run by a worker process of its own; its parent is the run.
        pid = os.getppid()
        arguments = dict(self._task.args)
        arguments["owner"] = arguments.get("owner") or owner(pid)
        arguments["run_id"] = arguments.get("run_id") or run_id(pid)
        answer = self._execute_module(module_name=MODULE, module_args=arguments, task_vars=task_vars)
        if answer.get("action") == "refused" and has_ended(answer["holder"]["run_id"]):
            arguments["ended_run"] = answer["holder"]["run_id"]
            answer = self._execute_module(module_name=MODULE, module_args=arguments, task_vars=task_vars)
        result.update(answer)
        return result

    def _build_ahead(self, task_vars: dict[str, t.Any]) -> None:
        """Build what is called later while another host's worker builds this module, which all wait for.

        A build takes a core for 0.2 seconds, once per module and run; one after the other they add up.
        """
        later = LATER.get(self._task.args.get("verb", ""), ())
        if not later:
            return
        hosts = task_vars["ansible_play_hosts"]
        place = hosts.index(task_vars["inventory_hostname"])
        builders = min(len(hosts) - 1, BUILDERS)
        if 1 <= place <= builders:
            for module in later[place - 1 :: builders]:
                self._configure_module(module_name=module, module_args={}, task_vars=task_vars)


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

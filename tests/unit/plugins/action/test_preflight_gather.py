# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Controller side of preflight_gather: what is done without a module, and where there is nothing to do."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from ansible import constants

from ansible_collections.ascend.pd_serving.plugins.action import preflight_gather
from ansible_collections.ascend.pd_serving.plugins.module_utils import port_probe
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight import store


class Action(preflight_gather.ActionModule):
    """A task on host p1, by itself "End the listeners": what it lets the host do."""

    def __init__(self, *parts: str, **arguments: dict[str, Any]) -> None:
        task = mock.MagicMock(async_val=0, environment=None)
        task.args = {"parts": list(parts or ("done",)), "arguments": arguments or {"done": {"cluster": "demo"}}}
        templar = mock.MagicMock()
        templar.template = lambda value: value
        super().__init__(task, mock.MagicMock(), mock.MagicMock(), mock.MagicMock(), templar, mock.MagicMock())
        self.modules: list[dict[str, Any]] = []
        self.commands: list[list[str]] = []

    def _is_pipelining_enabled(self, *_words: Any, **_more: Any) -> bool:
        return False

    def _low_level_execute_command(self, cmd: str, **_more: Any) -> dict[str, Any]:
        self.commands.append(shlex.split(cmd))
        done = subprocess.run(["/bin/sh", "-c", cmd], capture_output=True, text=True, check=False, timeout=30)
        return {"rc": done.returncode, "stdout": done.stdout, "stderr": done.stderr}

    def _execute_module(self, **what: Any) -> dict[str, Any]:
        self.modules.append(what["module_args"])
        parts = what["module_args"]["parts"]
        return {
            "answers": {part: {"probes": []} for part in parts},
            "spans": dict.fromkeys(parts, (0, 0)),
            "elapsed": 0,
        }

    def end(self) -> dict[str, Any]:
        return self.run(task_vars={"inventory_hostname": "p1"})


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> store.Store:
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    kept = store.Store(str(tmp_path))
    kept.want("done", "p1", {"state": "done", "run": "1"})
    return kept


def test_a_host_without_listeners_is_not_asked_again(kept: store.Store) -> None:
    kept.write("listen", "p1", {"bound": [], "live": [], "not_bound": [], "listeners": [], "python": sys.executable})
    action = Action()
    assert action.end()["skipped"]
    assert (action.commands, action.modules) == ([], [])


def test_a_listener_is_ended_without_a_module(kept: store.Store, tmp_path: Path) -> None:
    address = "127.85.1.1"
    found = port_probe.listen("demo", str(tmp_path), "1", [port_probe.Endpoint(address, 20999)], 60)
    kept.write("listen", "p1", {"listeners": found.listeners, "python": sys.executable})
    action = Action()
    told = action.end()
    assert not told.get("skipped") and not told["changed"]
    assert (len(action.commands), action.modules) == (1, [])
    assert port_probe.done("demo", str(tmp_path), "1") == 0, "nobody was left to be told"


@pytest.mark.parametrize("python", ["", "/nonexistent/python3", "/bin/false"])
def test_where_that_fails_the_module_does_it(kept: store.Store, python: str) -> None:
    kept.write("listen", "p1", {"listeners": ["pd_serving.listen.x.1"], "python": python})
    action = Action()
    assert not action.end().get("skipped")
    assert [one["arguments"]["done"] for one in action.modules] == [{"cluster": "demo", "state": "done", "run": "1"}]


def test_a_host_that_never_said_what_it_started_is_asked(kept: store.Store) -> None:
    action = Action()
    action.end()
    assert (action.commands, len(action.modules)) == ([], 1)
    assert kept.read("listen", "p1") is None


PROBES = [{"to": "d1", "address": "127.85.1.2", "port": 20998}]


def choose(kept: store.Store, python: str, probes: list[dict[str, Any]]) -> None:
    kept.write("listen", "p1", {"listeners": [], "python": python})
    kept.want("pings", "p1", {"pings": []})
    kept.want("probes", "p1", {"state": "probe", "probes": probes})


def test_others_are_asked_without_a_module(kept: store.Store, tmp_path: Path) -> None:
    choose(kept, sys.executable, PROBES)
    action = Action("pings", "probes", pings={"root": str(tmp_path), "timeout": 5})
    with socket.create_server(("127.85.1.2", 20998)):
        told = action.end()
    assert not told.get("failed") and not told["changed"], told
    assert (len(action.commands), action.modules) == (1, [])
    assert [one["state"] for one in kept.read("probes", "p1")] == ["open"]
    assert kept.read("pings", "p1")["pings"] == []


@pytest.mark.parametrize(
    ("python", "probes", "tried"),
    [("/nonexistent/python3", 1, 1), (sys.executable, 2000, 0)],
    ids=["no_python", "too_long"],
)
def test_where_a_command_will_not_do_the_module_asks(kept: store.Store, python: str, probes: int, tried: int) -> None:
    choose(kept, python, PROBES * probes)
    action = Action("pings", "probes", pings={"timeout": 5})
    assert not action.end().get("failed")
    assert (len(action.commands), len(action.modules)) == (tried, 1)
    assert len(action.modules[0]["arguments"]["probes"]["probes"]) == probes


def test_arguments_that_are_wrong_are_the_modules_to_refuse(kept: store.Store) -> None:
    choose(kept, sys.executable, [{"to": "d1", "address": "127.85.1.2", "port": "http"}])
    action = Action("pings", "probes")
    action.end()
    assert (action.commands, len(action.modules)) == ([], 1)

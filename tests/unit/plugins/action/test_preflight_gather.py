# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Controller side of preflight_gather: what is done without a module, and where there is nothing to do."""

from __future__ import annotations

import ast
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
from ansible_collections.ascend.pd_serving.plugins.module_utils import port_probe, questions
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

    piped = False

    def _is_pipelining_enabled(self, *_words: Any, **_more: Any) -> bool:
        return self.piped

    def _low_level_execute_command(self, cmd: str, in_data: bytes | None = None, **_more: Any) -> dict[str, Any]:
        self.commands.append(shlex.split(cmd))
        done = subprocess.run(["/bin/sh", "-c", cmd], input=in_data, capture_output=True, check=False, timeout=30)
        return {"rc": done.returncode, "stdout": done.stdout.decode(), "stderr": done.stderr.decode()}

    def _execute_module(self, **what: Any) -> dict[str, Any]:
        self.modules.append(what["module_args"])
        parts = what["module_args"]["parts"]
        return {
            "answers": {part: {"probes": [], "findings": []} for part in parts},
            "spans": dict.fromkeys(parts, (0, 0)),
            "elapsed": 0,
        }

    def end(self, **variables: Any) -> dict[str, Any]:
        return self.run(task_vars={"inventory_hostname": "p1", **variables})


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
    action = Action(done={"cluster": "demo", "root": str(tmp_path)})
    told = action.end()
    assert not told.get("skipped") and not told["changed"]
    assert (len(action.commands), action.modules) == (1, [])
    assert port_probe.done("demo", str(tmp_path), "1") == 0, "nobody was left to be told"


@pytest.mark.parametrize("python", ["/nonexistent/python3", "/bin/false"])
def test_where_that_fails_the_module_does_it(kept: store.Store, python: str) -> None:
    kept.write("listen", "p1", {"listeners": ["pd_serving.listen.x.1"], "python": python})
    action = Action()
    assert not action.end().get("skipped")
    assert [one["arguments"]["done"] for one in action.modules] == [{"cluster": "demo", "state": "done", "run": "1"}]


def test_a_host_that_never_said_what_it_started_is_asked(kept: store.Store) -> None:
    action = Action()
    assert not action.end().get("skipped")
    assert (len(action.commands), action.modules) == (1, [])
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


def ask_the_host(kept: store.Store, root: Path, **variables: Any) -> Action:
    """The first task: the host's tools, itself, and listeners."""
    kept.want("npu", "p1", {"hardware": "a3", "chips": [0]})
    kept.want("host", "p1", {"facts": True})
    kept.want("listen", "p1", {"state": "listen", "run": "1", "endpoints": [{"address": "127.85.1.3", "port": 20997}]})
    place = {"root": str(root), "cluster": "demo"}
    given = {
        "npu": {"root": str(root), "cluster": "demo", "timeout": "5"},
        "host": {**place, "chips": [0]},
        "listen": place,
    }
    action = Action(*given, **given)
    action.piped = True
    told = action.end(**variables)
    assert not told.get("failed") and not told["changed"], told
    return action


def test_a_host_is_asked_without_a_module(kept: store.Store, tmp_path: Path) -> None:
    python = tmp_path / "python3"  # by a path without blanks: one with them may be a command and its words
    python.symlink_to(sys.executable)
    action = ask_the_host(kept, tmp_path, ansible_python_interpreter=str(python))
    assert (len(action.commands), action.modules) == (1, [])
    listening = kept.read("listen", "p1")
    assert [one["port"] for one in listening["bound"]] == [20997] and listening["python"]
    assert port_probe.done("demo", str(tmp_path), "1") == 1
    assert kept.read("npu", "p1")["chips"]["0"]["link"]["state"] == "tool_missing"
    about = kept.read("host", "p1")
    assert about["memory_total_mb"] and [one["check"] for one in about["findings"]] == ["chip"]


def test_a_module_looks_for_a_python_that_nobody_has_named(kept: store.Store, tmp_path: Path) -> None:
    """What it finds is what later modules run in, and what must have the library that these import."""
    action = ask_the_host(kept, tmp_path)
    assert (action.commands, len(action.modules)) == ([], 1)


FOLDER = Path(preflight_gather.__file__).parent.parent / "module_utils"
PREFIX = "ansible_collections.ascend.pd_serving.plugins.module_utils"


def imported(name: str) -> set[str]:
    """What a module of module_utils imports of others, wherever in its text."""
    tree = ast.parse(FOLDER.joinpath(*name.split(".")).with_suffix(".py").read_text(encoding="utf-8"))
    for_types = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    tree.body = [node for node in tree.body if node not in for_types]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ansible"):
            assert (node.module or "").startswith(PREFIX), f"{name}: a host without Ansible has no {node.module}"
            above = (node.module or "")[len(PREFIX) + 1 :]
            if above and above != "npu":
                found.add(above)
            else:
                found |= {f"{above}.{one.name}".lstrip(".") for one in node.names}
    return found - {"npu"}


@pytest.mark.parametrize("part", preflight_gather.SOURCES)
def test_everything_comes_along_that_is_imported(part: str) -> None:
    sent = set(preflight_gather.SOURCES[part])
    assert len(sent) == len(preflight_gather.SOURCES[part])
    for name in sent:
        assert imported(name) <= sent, name
    answering = questions.source(part).__name__[len(PREFIX) + 1 :]
    assert answering in sent

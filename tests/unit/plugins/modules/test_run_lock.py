# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Module run_lock, and what its controller side adds: whose run this is, and which runs have ended."""

from __future__ import annotations

import contextlib
import getpass
import io
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.ascend.pd_serving.plugins.action import run_lock as action
from ansible_collections.ascend.pd_serving.plugins.module_utils import launcher
from ansible_collections.ascend.pd_serving.plugins.modules import run_lock

ROOT = Path(__file__).resolve().parents[4]


def call(root: Path, run_id: str, check_mode: bool = False, **args: Any) -> dict[str, Any]:
    given = {"cluster": "demo", "root": str(root), "run_id": run_id, "_ansible_check_mode": check_mode, **args}
    out = io.StringIO()
    with patch_module_args(given), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        run_lock.main()
    result: dict[str, Any] = json.loads(out.getvalue())
    assert result.get("changed", False) is False
    return result


def lock_file(root: Path) -> Path:
    return root / "opt" / "pd_serving" / "demo" / "run.lock"


def test_taken_refused_released(tmp_path: Path, warned: list[str]) -> None:
    taken = call(tmp_path, "a", owner="alice@ctl", verb="site")
    assert (taken["action"], taken["note"]) == ("taken", "")
    assert taken["holder"]["owner"] == "alice@ctl" and taken["holder"]["verb"] == "site"
    assert call(tmp_path, "a")["action"] == "renewed"

    refused = call(tmp_path, "b", owner="bob@ctl", verb="stop")
    assert refused["failed"] and refused["action"] == "refused"
    assert refused["msg"].startswith("another run is changing cluster demo: alice@ctl (site), since ")
    assert f"remove {lock_file(tmp_path)} on this host, or run again with -e lock_force=true" in refused["msg"]
    assert "1 h 59 min" in refused["msg"]
    looked = call(tmp_path, "b", check_mode=True)
    assert (looked.get("failed", False), looked["action"]) == (False, "refused")
    assert looked["note"].startswith("another run is changing cluster demo")

    left = call(tmp_path, "b", state="released")
    assert left["action"] == "not_ours" and warned == [looked["note"], left["note"]]
    assert call(tmp_path, "a", state="released", check_mode=True)["action"] == "released"
    assert lock_file(tmp_path).exists()
    assert call(tmp_path, "a", state="released")["action"] == "released"
    assert call(tmp_path, "a", state="released")["action"] == "absent"
    assert not lock_file(tmp_path).exists()


@pytest.mark.parametrize("args", [{"force": True}, {"max_age_seconds": 0}, {"ended_run": "a"}])
def test_taken_over_with_a_warning(tmp_path: Path, warned: list[str], args: dict[str, Any]) -> None:
    call(tmp_path, "a", owner="alice@ctl")
    os.utime(lock_file(tmp_path), (1, 1))
    result = call(tmp_path, "b", owner="bob@ctl", **args)
    assert (result["action"], result["holder"]["owner"]) == ("taken_over", "bob@ctl")
    assert warned == [result["note"]] and "alice@ctl" in result["note"]


def test_check_mode_works_on_a_fresh_host(tmp_path: Path) -> None:
    assert call(tmp_path, "a", check_mode=True)["action"] == "taken"
    assert call(tmp_path, "a", check_mode=True, state="released")["action"] == "absent"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "words"),
    [({"run_id": ""}, "run_id must not be empty"), ({"cluster": "../x"}, "cluster must be made of letters")],
)
def test_impossible_arguments(tmp_path: Path, args: dict[str, Any], words: str) -> None:
    result = call(tmp_path, **{"run_id": "a", **args})
    assert result["failed"] and words in result["msg"]


def test_a_folder_that_cannot_be_made_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "opt").write_text("")
    assert "Not a directory" in call(tmp_path, "a")["msg"]


# -- the controller ----------------------------------------------------------------------------------------------------


def test_an_owner_that_others_can_find(monkeypatch: pytest.MonkeyPatch) -> None:
    assert action.owner(7) == f"{getpass.getuser()}@{socket.gethostname()} (pid 7)"

    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert action.owner(7).startswith(f"user {os.getuid()}@")


def test_runs_of_this_controller_that_have_ended_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["sleep", "300"])
    name = action.run_id(process.pid)
    assert name.startswith(f"{action.controller()}.{process.pid}.")
    assert not action.has_ended(name)
    assert action.has_ended(name + "0"), "the number was given to another process"
    with monkeypatch.context() as others:
        others.setattr(os, "kill", refuse_signals)
        assert not action.has_ended(name), "a process of another user goes on"
        others.setattr(launcher, "read_stat", lambda pid: None)
        assert not action.has_ended(name), "also where it is hidden"
    process.kill()
    process.wait()
    assert action.has_ended(name)
    assert not action.has_ended("0" * 16 + name[16:]), "another controller's numbers say nothing here"
    assert not any(map(action.has_ended, ["", "x", f"{action.controller()}.x.1", name + "\n"]))
    assert not action.has_ended(action.run_id(os.getpid()))


def refuse_signals(pid: int, number: int) -> None:
    raise PermissionError(1, "Operation not permitted")


def test_a_controller_that_tells_nothing_of_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    name = action.run_id(os.getpid())
    monkeypatch.setattr(launcher, "boot_id", lambda: "")
    assert action.controller() == "" and not action.has_ended(name)
    assert action.run_id(os.getpid()) == Path(action.constants.DEFAULT_LOCAL_TMP).name


def test_a_run_that_was_broken_off_does_not_keep_the_next_one_out(tmp_path: Path) -> None:
    """As Ansible runs it, on two hosts of one run: both have the run's one id."""
    gone = subprocess.Popen(["sleep", "300"])
    name = action.run_id(gone.pid)
    gone.kill()
    gone.wait()
    call(tmp_path, name, owner="alice@ctl", verb="upgrade")
    interpreter = json.dumps({"ansible_python_interpreter": sys.executable})
    hosts = ["all", "-i", "one,two", "-c", "local", "-f", "1", "-e", interpreter]
    settings = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible"),
            *(*hosts, "-m", "ascend.pd_serving.run_lock", "-a", f"cluster=demo root={tmp_path}"),
        ],
        env={**os.environ, **settings, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.findall(r"^\w+ \| SUCCESS => (\{.*?^\})", done.stdout, re.MULTILINE | re.DOTALL)
    one, two = map(json.loads, said)
    assert (one["action"], two["action"]) == ("taken_over", "renewed")
    assert one["note"].startswith("took over the lock of a run that has ended: alice@ctl (upgrade), since ")
    assert one["holder"]["run_id"] == two["holder"]["run_id"]
    assert one["holder"]["owner"].startswith(f"{getpass.getuser()}@{socket.gethostname()} (pid ")


@pytest.mark.parametrize(("python", "modules"), [(sys.executable, 0), ("/nonexistent/python3", 1)])
def test_the_module_is_there_where_a_command_gives_no_answer(tmp_path: Path, python: str, modules: int) -> None:
    called: list[dict[str, Any]] = []

    class Action(action.ActionModule):
        def _is_pipelining_enabled(self, *_words: Any, **_more: Any) -> bool:
            return False

        def _low_level_execute_command(self, cmd: str, **_more: Any) -> dict[str, Any]:
            done = subprocess.run(["/bin/sh", "-c", cmd], capture_output=True, text=True, check=False, timeout=30)
            return {"rc": done.returncode, "stdout": done.stdout, "stderr": done.stderr}

        def _execute_module(self, **what: Any) -> dict[str, Any]:
            called.append(what["module_args"])
            given = {name: value for name, value in what["module_args"].items() if name not in ("root", "cluster")}
            return call(tmp_path, **given)

    task = mock.MagicMock(async_val=0, environment=None, check_mode=False)
    task.args = {"cluster": "demo", "root": str(tmp_path)}
    templar = mock.MagicMock()
    templar.template = lambda value: value
    doing = Action(task, mock.MagicMock(), mock.MagicMock(), mock.MagicMock(), templar, mock.MagicMock())
    told = doing.run(task_vars={"ansible_python_interpreter": python, "inventory_hostname": "p1"})
    assert (told["action"], len(called)) == ("taken", modules)
    assert lock_file(tmp_path).exists()

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""A function of module_utils, run by a bare Python: same answer as in this process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ansible_collections.ascend.pd_serving.plugins.module_utils import run_lock
from ansible_collections.ascend.pd_serving.plugins.plugin_utils import small_script

ARGUMENTS = {
    "cluster": "demo",
    "state": "taken",
    "verb": "site",
    "run_id": "a",
    "ended_run": "",
    "max_age_seconds": 7200,
    "force": False,
    "check_mode": False,
}


def run(
    root: Path,
    python: str = sys.executable,
    cwd: Path | None = None,
    piped: bool = True,
    display: Any = None,
    **changes: Any,
) -> dict[str, Any] | None:
    arguments = {**ARGUMENTS, "root": str(root), "owner": 'o\'hara $HOME `id` \\ "x"', **changes}
    text = small_script.program("run_lock", ["sites"], arguments)
    assert len(text) < small_script.LONGEST / 4
    action = mock.MagicMock(_display=display or mock.MagicMock())
    action._is_pipelining_enabled.return_value = piped

    def execute(line: str, in_data: bytes | None = None) -> dict[str, Any]:
        assert (in_data is not None) is piped
        done = subprocess.run(
            ["/bin/sh", "-c", line], input=in_data, capture_output=True, check=False, timeout=30, cwd=cwd
        )
        return {"rc": done.returncode, "stdout": done.stdout.decode(), "stderr": done.stderr.decode()}

    action._low_level_execute_command = execute
    return small_script.ask(action, python, text)


@pytest.mark.parametrize("piped", [True, False])
def test_it_does_and_says_what_the_function_does(tmp_path: Path, piped: bool) -> None:
    taken = run(tmp_path, piped=piped)
    assert taken is not None
    assert (taken["action"], taken["holder"]["owner"]) == ("taken", 'o\'hara $HOME `id` \\ "x"')
    assert (tmp_path / "opt/pd_serving/demo/run.lock").exists()
    refused = run(tmp_path, run_id="b")
    here = run_lock.answer({**ARGUMENTS, "root": str(tmp_path), "run_id": "b", "owner": "x"})
    assert refused is not None and refused["failed"] and refused["action"] == here["action"] == "refused"


@pytest.mark.parametrize("piped", [True, False])
@pytest.mark.parametrize("name", ["base64", "json", "zlib", "types", "sitecustomize"])
def test_nothing_of_the_current_folder_comes_in_between(tmp_path: Path, name: str, piped: bool) -> None:
    """That of a login, which is anybody's, while the command may run as root."""
    home = tmp_path / "home"
    home.mkdir()
    (home / f"{name}.py").write_text("raise SystemExit('somebody else ran')")
    told = run(tmp_path / "root", cwd=home, piped=piped)
    assert told is not None and told["action"] == "taken"


def test_a_failure_of_its_own_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "opt").write_text("")
    told = run(tmp_path)
    assert told is not None and told["failed"] and "Not a directory" in told["msg"]


def test_what_nobody_has_foreseen_is_told_with_where_it_was(tmp_path: Path) -> None:
    run(tmp_path)
    display = mock.MagicMock()
    told = run(tmp_path, display=display, run_id="b", max_age_seconds="soon")
    assert told is not None and told["failed"] and told["msg"].startswith("TypeError: ")
    assert "traceback" not in told
    ((shown,), _more) = display.vvv.call_args
    assert shown.startswith("Traceback ") and "run_lock" in shown


@pytest.mark.parametrize("python", ["/nonexistent/python3", "/bin/false", "/bin/true"])
def test_no_python_no_answer(tmp_path: Path, python: str) -> None:
    assert run(tmp_path, python) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        ({"rc": 0, "stdout": '{"a": 1}\n'}, {"a": 1}),
        ({"rc": 0, "stdout": 'Welcome to p1\n{"a": 1}\n\n'}, {"a": 1}),
        ({"rc": 1, "stdout": '{"a": 1}'}, None),
        ({"rc": 0, "stdout": ""}, None),
        ({"rc": 0, "stdout": "[1]"}, None),
        ({"rc": 0, "stdout": '{"a":'}, None),
        ({}, None),
    ],
)
def test_what_counts_as_an_answer(result: dict[str, Any], answer: dict[str, Any] | None) -> None:
    assert small_script.answered(result) == answer


@pytest.mark.parametrize(
    ("variables", "python"),
    [
        ({}, None),
        ({"ansible_python_interpreter": "auto"}, None),
        ({"ansible_python_interpreter": "/usr/bin/env python3"}, None),
        ({"ansible_python_interpreter": "/opt/python/bin/python3"}, "/opt/python/bin/python3"),
        ({"ansible_facts": {"discovered_interpreter_python": "/usr/bin/python3.9"}}, "/usr/bin/python3.9"),
    ],
)
def test_which_python(variables: dict[str, Any], python: str | None) -> None:
    templar = mock.MagicMock()
    templar.template = lambda value: value
    assert small_script.interpreter(templar, variables) == python

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Module on_host on this machine: the answers of other modules, in one execution."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.common.parameters import PASS_VARS
from ansible.module_utils.testing import patch_module_args

from ansible_collections.ascend.pd_serving.plugins.module_utils import questions
from ansible_collections.ascend.pd_serving.plugins.modules import host_check, launch_info, npu_facts, on_host

OPTIONS = {
    "npu": {"hardware": "a2"},
    "host": {"cluster": "demo"},
    "listen": {"state": "listen", "cluster": "demo"},
    "pings": {"pings": []},
    "probes": {"state": "probe"},
}


# Newer versions of ansible-core show a module's arguments when asked to alone; older ones know no such option.
SHOW_ARGUMENTS = {"_ansible_inject_invocation": True} if "inject_invocation" in PASS_VARS else {}


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    """The module is a process of its own on hosts; here it shares one with other tests."""
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def run(module: Any, **args: Any) -> dict[str, Any]:
    out = io.StringIO()
    with patch_module_args(args), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        module.main()
    result: dict[str, Any] = json.loads(out.getvalue())
    return result


def test_answers_are_those_of_the_public_modules(tmp_path: Path) -> None:
    npu = {"hardware": "a2", "chips": [0], "root": str(tmp_path)}
    host = {"cluster": "demo", "root": str(tmp_path), "chips": [0]}
    told = run(on_host, parts=["npu", "host"], arguments={"npu": npu, "host": host})
    assert not told.get("failed") and not told["changed"]
    alone = run(npu_facts, **npu)["npu"]
    for each in (alone, told["answers"]["npu"]):
        del each["calls"]  # seconds
    assert told["answers"]["npu"] == alone
    alone = run(host_check, **host)
    assert told["answers"]["host"] == {name: alone[name] for name in ("findings", "prepare", "docker")}
    assert told["answers"]["host"]["findings"], "the chip is not there"
    for begin, end in told["spans"].values():
        assert 0 < begin <= end <= told["elapsed"]


@pytest.mark.parametrize(("tools", "other"), [("npu", "host"), ("pings", "probes")])
def test_what_needs_no_tool_is_asked_while_a_tool_is(monkeypatch: pytest.MonkeyPatch, tools: str, other: str) -> None:
    asked = threading.Event()
    monkeypatch.setattr(questions.source(tools), "answer", lambda _options: {"beside": asked.wait(10)})
    monkeypatch.setattr(questions.source(other), "answer", lambda _options: asked.set() or {"warnings": ["w"]})
    told = run(on_host, parts=[tools, other], arguments=OPTIONS)
    assert told["answers"] == {tools: {"beside": True}, other: {}} and list(told["spans"]) == [tools, other]


def test_listeners_are_started_when_no_thread_runs_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting one forks this process; a lock that a thread holds at that moment would never be given back there."""
    before = threading.active_count()

    def look(_options: object) -> dict[str, Any]:
        time.sleep(0.2)
        return {}

    monkeypatch.setattr(questions.source("npu"), "answer", lambda _options: {})
    monkeypatch.setattr(questions.source("host"), "answer", look)
    monkeypatch.setattr(questions.source("listen"), "answer", lambda _: {"threads": threading.active_count()})
    told = run(on_host, parts=["npu", "host", "listen"], arguments=OPTIONS)
    assert told["answers"]["listen"] == {"threads": before}


def test_a_fault_beside_the_tools_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions.source("npu"), "answer", lambda _options: {})
    options = {**OPTIONS, "host": {"cluster": "demo", "models": ["models/m"]}}
    told = run(on_host, parts=["npu", "host", "listen"], arguments=options)
    assert told["failed"] and told["msg"] == "paths must be absolute: models has 'models/m'"
    assert list(told["answers"]) == ["npu"]

    def stumble(_options: object) -> None:
        raise KeyError("nobody foresaw this")

    monkeypatch.setattr(questions.source("host"), "answer", stumble)
    with pytest.raises(KeyError, match="nobody foresaw this"):
        run(on_host, parts=["npu", "host", "listen"], arguments=OPTIONS)


def test_a_part_that_fails_keeps_the_answers_before_it(tmp_path: Path) -> None:
    npu = {"hardware": "a2", "chips": [0], "root": str(tmp_path)}
    listen = {"state": "listen", "cluster": "demo", "root": str(tmp_path), "lifetime": 0}
    told = run(on_host, parts=["npu", "listen", "done"], arguments={"npu": npu, "listen": listen, "done": listen})
    assert told["failed"] and told["msg"] == "lifetime is 0, it must be 1 to 600"
    assert list(told["answers"]) == ["npu"] and told["elapsed"] >= told["spans"]["npu"][1]


def test_options_are_checked_as_the_public_modules_check_them() -> None:
    told = run(on_host, parts=["npu"], arguments={"npu": {"hardware": "a2", "timeout": "soon"}})
    assert told["failed"] and told["msg"].startswith("npu: ") and "'timeout'" in told["msg"]
    told = run(on_host, parts=["done"], arguments={"done": {"state": "done"}})
    assert told["failed"] and "state is done but all of the following are missing: cluster" in told["msg"]


def test_units_are_told_of_as_by_launch_info(tmp_path: Path) -> None:
    spec = {"schema": 1, "unit": "u", "processes": [{"name": "a", "label": "a", "argv": ["true"], "env": {}}]}
    asked = {"cluster": "demo", "root": str(tmp_path), "units": [{"name": "u", "spec": spec}]}
    told = run(on_host, parts=["units"], arguments={"units": asked})["answers"]["units"]
    alone = run(launch_info, **asked)
    assert told["units"] == alone["units"] and told["verdict"] == alone["verdict"]
    assert list(told["units"]) == ["u"] and not told["units"]["u"]["deployed"]


def test_secrets_of_units_are_not_shown(tmp_path: Path) -> None:
    process = {"name": "a", "label": "a", "argv": ["true"], "env": {"VLLM_API_KEY": "not-for-anybody-else"}}
    spec = {"schema": 1, "unit": "u", "processes": [process]}
    asked = {"cluster": "demo", "root": str(tmp_path), "units": [{"name": "u", "spec": spec}]}
    told = run(on_host, parts=["units"], arguments={"units": asked}, **SHOW_ARGUMENTS)
    assert told["invocation"]["module_args"]["arguments"]["units"]["cluster"] == "demo"
    assert "not-for-anybody-else" not in json.dumps(told)


@pytest.mark.parametrize(
    ("parts", "wrong"),
    [(["npu", "units"], {"npu": {"hardware": "a2", "chips": [-1]}}), (["units"], {"units": {"wait_seconds": "soon"}})],
    ids=["another_part_fails", "arguments_are_refused"],
)
def test_secrets_are_not_shown_by_a_failure(tmp_path: Path, parts: list[str], wrong: dict[str, Any]) -> None:
    process = {"name": "a", "label": "a", "argv": ["true"], "env": {"VLLM_API_KEY": "not-for-anybody-else"}}
    spec = {"schema": 1, "unit": "u", "processes": [process]}
    units = {"cluster": "demo", "root": str(tmp_path), "units": [{"name": "u", "spec": spec}], **wrong.get("units", {})}
    told = run(on_host, parts=parts, arguments={**wrong, "units": units}, **SHOW_ARGUMENTS)
    assert told["failed"] and told["invocation"]["module_args"]["parts"] == parts
    assert "not-for-anybody-else" not in json.dumps(told)

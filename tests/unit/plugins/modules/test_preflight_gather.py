# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Module preflight_gather on this machine: the answers of the gathering modules, in one execution."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from ansible.module_utils.testing import patch_module_args

from ansible_collections.ascend.pd_serving.plugins.modules import host_check, npu_facts, preflight_gather


def run(module: Any, **args: Any) -> dict[str, Any]:
    out = io.StringIO()
    with patch_module_args(args), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        module.main()
    result: dict[str, Any] = json.loads(out.getvalue())
    return result


def test_answers_are_those_of_the_public_modules(tmp_path: Path) -> None:
    npu = {"hardware": "a2", "chips": [0], "root": str(tmp_path)}
    host = {"cluster": "demo", "root": str(tmp_path), "chips": [0]}
    told = run(preflight_gather, parts=["npu", "host"], arguments={"npu": npu, "host": host})
    assert not told.get("failed") and not told["changed"]
    alone = run(npu_facts, **npu)["npu"]
    for each in (alone, told["answers"]["npu"]):
        del each["calls"]  # seconds
    assert told["answers"]["npu"] == alone
    alone = run(host_check, **host)
    assert told["answers"]["host"] == {name: alone[name] for name in ("findings", "prepare", "docker")}
    assert told["answers"]["host"]["findings"], "the chip is not there"
    times = [*told["spans"]["npu"], *told["spans"]["host"], told["elapsed"]]
    assert times == sorted(times), "one part after the other, within the whole"


def test_a_part_that_fails_keeps_the_answers_before_it(tmp_path: Path) -> None:
    npu = {"hardware": "a2", "chips": [0], "root": str(tmp_path)}
    listen = {"state": "listen", "cluster": "demo", "root": str(tmp_path), "lifetime": 0}
    told = run(
        preflight_gather, parts=["npu", "listen", "done"], arguments={"npu": npu, "listen": listen, "done": listen}
    )
    assert told["failed"] and told["msg"] == "lifetime is 0, it must be 1 to 600"
    assert list(told["answers"]) == ["npu"] and told["elapsed"] >= told["spans"]["npu"][1]


def test_options_are_checked_as_the_public_modules_check_them() -> None:
    told = run(preflight_gather, parts=["npu"], arguments={"npu": {"hardware": "a2", "timeout": "soon"}})
    assert told["failed"] and told["msg"].startswith("npu: ") and "'timeout'" in told["msg"]
    told = run(preflight_gather, parts=["done"], arguments={"done": {"state": "done"}})
    assert told["failed"] and "state is done but all of the following are missing: cluster" in told["msg"]

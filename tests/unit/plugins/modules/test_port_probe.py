# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Module port_probe on this machine."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.ascend.pd_serving.plugins.module_utils import port_probe as engine
from ansible_collections.ascend.pd_serving.plugins.modules import port_probe

ADDRESS = f"127.84.{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250 + 1}"


def run(**args: Any) -> dict[str, Any]:
    out = io.StringIO()
    with patch_module_args(args), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        port_probe.main()
    result: dict[str, Any] = json.loads(out.getvalue())
    return result


@pytest.mark.parametrize("check", [False, True])
def test_listen_probe_done(tmp_path: Path, check: bool) -> None:
    with socket.create_server((ADDRESS, 0)) as live, socket.create_server((ADDRESS, 0)) as other:
        ports = [live.getsockname()[1], other.getsockname()[1]]
        other.close()
        endpoints = [{"address": ADDRESS, "port": port} for port in ports]
        there = {"cluster": "demo", "root": str(tmp_path), "_ansible_check_mode": check}
        elsewhere = {"address": "192.0.2.77", "port": 7100}
        try:
            found = run(state="listen", endpoints=[*endpoints, elsewhere], **there)
            assert found["changed"] is False
            assert (found["live"], found["bound"]) == ([endpoints[0]], [endpoints[1]])
            assert not found.get("failed"), "an endpoint that is not there is no failed task"
            assert found["not_bound"] == [{**elsewhere, "why": "192.0.2.77 is no address of this host"}]
            assert len(found["listeners"]) == 1 and found["python"] == sys.executable
            probes = [{"to": "d1", **endpoint} for endpoint in endpoints]
            assert run(state="probe", probes=probes)["probes"] == [{**one, "state": "open"} for one in probes]
        finally:
            done = run(state="done", **there)
        assert done["ended"] == 1
        answers = run(state="probe", probes=probes)["probes"]
        assert [one["state"] for one in answers] == ["open", "refused"]
    assert engine.listener_pids("demo", str(tmp_path)) == set()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"state": "listen"}, "state is listen but all of the following are missing: cluster"),
        ({"state": "done"}, "state is done but all of the following are missing: cluster"),
        ({"state": "listen", "cluster": "demo", "lifetime": 0}, "lifetime is 0, it must be 1 to 600"),
        ({"state": "listen", "cluster": "demo", "endpoints": [{"address": "x", "port": 1}]}, "'x' is no IP address"),
        ({"state": "probe", "probes": [{"to": "a", "address": "192.0.2.1", "port": 0}]}, "is not within 1-65535"),
        ({"state": "probe", "timeout": 0}, "timeout is 0, it must be 0.1 to 60"),
        ({"state": "probe", "concurrency": 1000}, "concurrency is 1000, it must be 1 to 512"),
        ({"state": "probe", "budget": 1e9}, "budget is 1e+09, it must be 0.1 to 600"),
    ],
)
def test_what_makes_no_sense_is_refused(args: dict[str, Any], words: str) -> None:
    result = run(**args)
    assert result["failed"] and words in result["msg"]

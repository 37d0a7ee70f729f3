# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Module warm_up against the small deployment of threads that completion_check is tested with."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.ascend.pd_serving.plugins.module_utils import completions
from ansible_collections.ascend.pd_serving.plugins.modules import warm_up
from ansible_collections.ascend.pd_serving.tests.unit.plugins.modules.test_completion_check import Deployment


@pytest.fixture
def deployment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    monkeypatch.setattr(completions, "SETTLE_SECONDS", 0.2)
    made = Deployment(2, 3)
    yield made
    for server in made.servers:
        server.shutdown()
        server.server_close()


def warm(deployment: Deployment, **args: Any) -> dict[str, Any]:
    endpoints = [
        {"name": e.name, "role": e.role, "instance": e.role, "host": f"{e.role[0]}1", "url": e.url}
        for e in deployment.engines
    ]
    given = {"proxy_url": deployment.url, "model": "demo", "endpoints": endpoints, "requests": 6, "timeout": 10, **args}
    out = io.StringIO()
    with patch_module_args(given), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        warm_up.main()
    result: dict[str, Any] = json.loads(out.getvalue())
    return result


def test_every_round_reaches_every_endpoint(deployment: Deployment, warned: list[str]) -> None:
    result = warm(deployment, rounds=3)
    assert not result.get("failed") and result["cold"] == [] and warned == []
    assert [each["requests"] for each in result["rounds"]] == [6, 6, 6]
    assert all(each["latency"]["median"] > 0 and each["time_to_first_token"]["max"] > 0 for each in result["rounds"])
    assert len({request.get("prompt") or request["messages"][0]["content"] for request in deployment.seen}) == 18, (
        "a prompt that was seen before would come from the prefix cache and warm nothing"
    )


def test_an_endpoint_that_saw_nothing_is_named(deployment: Deployment, warned: list[str]) -> None:
    deployment.skip = {"prefill rank 1"}
    assert warm(deployment, rounds=1)["cold"] == ["prefill rank 1"]
    assert "prefill rank 1" in warned[0]


def test_an_endpoint_without_statistics_is_not_called_cold(deployment: Deployment) -> None:
    deployment.skip = {"prefill rank 1"}
    deployment.engines[1].statistics = False
    assert warm(deployment, rounds=1)["cold"] == []


def test_a_failing_request_ends_it(deployment: Deployment) -> None:
    deployment.fault = "status"
    result = warm(deployment, rounds=3)
    assert result["failed"] and "HTTP 500" in result["msg"]
    assert len(result["rounds"]) == 1, "no further round is sent to what does not serve"


def test_no_round_sends_nothing(deployment: Deployment) -> None:
    result = warm(deployment, rounds=0)
    assert result["rounds"] == [] and result["cold"] == [] and deployment.seen == []


@pytest.mark.parametrize("wrong", [{"requests": 0}, {"rounds": -1}, {"max_tokens": 0}, {"timeout": 0}])
def test_numbers_that_make_no_sense_are_refused(deployment: Deployment, wrong: dict[str, int]) -> None:
    assert warm(deployment, **wrong)["failed"] and deployment.seen == []

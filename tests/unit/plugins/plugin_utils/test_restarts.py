# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Which groups restart."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils.restarts import restart_together


def unit(**changes: t.Any) -> dict[str, t.Any]:
    processes = [{"label": f"rank {number}", "health": "ready"} for number in range(2)]
    return {"deployed": True, "running": True, "current": True, "processes": processes, **changes}


def on(**units: t.Any) -> dict[str, t.Any]:
    return {"units": {name.replace("_", "-"): state for name, state in units.items()}}


def test_nothing_to_do() -> None:
    assert restart_together([on(pd_p=unit()), on(pd_d=unit()), on(pd_d=unit())]) == {
        "units": [],
        "reasons": {},
        "problems": [],
    }


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"deployed": False, "running": False}, "not deployed"),
        ({"running": False, "end": {"reason": "rank 1 was killed"}}, "rank 1 was killed"),
        ({"running": False, "end": None}, "its launcher is gone"),
        ({"current": False}, "its configuration has changed"),
        ({"processes": [{"label": "rank 1", "health": "unhealthy"}]}, "rank 1 is not healthy"),
    ],
)
def test_one_host_decides_for_the_instance(changed: dict[str, t.Any], reason: str) -> None:
    """A data-parallel group lets no member rejoin."""
    found = restart_together([on(pd_p=unit()), on(pd_d=unit()), on(pd_d=unit(**changed))])
    assert found == {"units": ["pd-d"], "reasons": {"pd-d": reason}, "problems": []}


@pytest.mark.parametrize("health", ["ready", "starting", "none"])
def test_a_unit_that_is_loading_is_left_alone(health: str) -> None:
    found = restart_together([on(pd_d=unit(processes=[{"label": "rank 0", "health": health}]))])
    assert found["units"] == []


def test_what_is_refused_is_named_and_what_is_unknown_passed_over() -> None:
    answers = [on(pd_p=unit(problem="two processes with one name"), pd_d={"unknown": True})]
    assert restart_together(answers) == {"units": [], "reasons": {}, "problems": ["pd-p: two processes with one name"]}


@pytest.mark.parametrize("answers", [[], [None], ["x"], [{}], [{"units": None}], [{"skipped": True}]])
def test_hosts_without_an_answer(answers: list[t.Any]) -> None:
    assert restart_together(answers)["units"] == []


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (unit(current=False), "its group is on d1 too"),
        (unit(running=False, end={"reason": "rank 17 was killed", "code": 1}), "its group is on d1 too"),
        (unit(running=False, end=None), "its group is on d1 too"),
        # Stopped by order, or never there: somebody brings a group up host by host.
        (unit(running=False, end={"reason": "stopped by order", "code": 0}), None),
        (unit(deployed=False, running=False), None),
        (unit(), None),
    ],
    ids=["another configuration", "a rank died", "a reboot", "stopped", "not deployed", "serves"],
)
def test_a_group_does_not_start_anew_on_a_part_of_its_hosts(state: dict[str, t.Any], says: str | None) -> None:
    instances = [{"unit": "pd-d", "hosts": ["d1", "d2"]}]
    problems = restart_together([on(pd_d=state)], instances, ["d2"])["problems"]
    assert len(problems) == (says is not None)
    if says is not None:
        assert says in problems[0] and "outside --limit" in problems[0]
    assert restart_together([on(pd_d=state)], instances, ["d1", "d2"])["problems"] == []

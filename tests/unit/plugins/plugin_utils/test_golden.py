# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The plans of the shipped inventories, word by word, as they were last looked at by a person.

A change of the planner that changes a command line, an environment or a port shows here as a diff. When the new plan is
the intended one, write it and read what changed:

    GOLDEN_UPDATE=1 .venv/bin/python -m pytest tests/unit/plugins/plugin_utils/test_golden.py
    git diff tests/unit/golden
"""

from __future__ import annotations

import difflib
import json
import os
import typing as t
from pathlib import Path

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import planner, rehearsal
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils import inventories
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import planned, told

ROOT = Path(__file__).resolve().parents[4]
INVENTORIES = ROOT / "inventories"
GOLDEN = ROOT / "tests" / "unit" / "golden"
MAX_DIFF_LINES = 60

# Golden file -> inventory and what -e would add.
PLANS: dict[str, tuple[str, dict[str, t.Any]]] = {
    "2p1d-v1": ("2p1d", {}),
    "2p1d-layerwise": ("2p1d", {"pd_connector": "MooncakeLayerwiseConnector"}),
    "1p1d": ("1p1d", {}),
    "1p1d-850e-d2rh": ("1p1d-850e-d2rh", {}),
    "1p1d-950-host-roce": ("1p1d-950-host-roce", {}),
    "1p1d-kv-pool": ("1p1d-kv-pool", {}),
    "one_host": ("one_host", {}),
    "over_a_bastion": ("over_a_bastion", {}),
    "4p1d-a2": ("4p1d-a2", {}),
}


def plan_of(name: str) -> planner.Plan:
    inventory, extra = PLANS[name]
    source = inventories.collected(INVENTORIES / inventory)
    for values in source["hosts"].values():
        values.update(extra)
    return planned(source)


def pretty(plan: planner.Plan) -> str:
    return json.dumps(json.loads(planner.to_json(plan)), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("name", PLANS)
def test_plan_is_the_golden_one(name: str) -> None:
    path, now = GOLDEN / f"{name}.json", pretty(plan_of(name))
    if os.environ.get("GOLDEN_UPDATE"):
        path.write_text(now, encoding="utf-8")
    then = path.read_text(encoding="utf-8")
    if then != now:
        lines = list(
            difflib.unified_diff(then.splitlines(), now.splitlines(), f"golden/{name}.json", "planned now", lineterm="")
        )
        more = f"\n... and {len(lines) - MAX_DIFF_LINES} more lines" if len(lines) > MAX_DIFF_LINES else ""
        pytest.fail(
            "the plan has changed; if it should have, run this test with GOLDEN_UPDATE=1\n"
            + "\n".join(lines[:MAX_DIFF_LINES])
            + more,
            pytrace=False,
        )


@pytest.mark.parametrize("name", PLANS)
def test_shipped_inventories_have_no_finding(name: str) -> None:
    plan = plan_of(name)
    assert not plan.findings, told(plan.findings)


@pytest.mark.parametrize("name", PLANS)
def test_shipped_inventories_can_be_rehearsed(name: str) -> None:
    inventory, extra = PLANS[name]
    source = inventories.collected(INVENTORIES / inventory)
    for values in source["hosts"].values():
        values.update(extra)
    plan = planned(rehearsal.rehearse(source, "/state"))
    assert not plan.findings, told(plan.findings)


def test_every_shipped_inventory_has_a_golden_plan() -> None:
    assert {inventory for inventory, _extra in PLANS.values()} == {path.name for path in INVENTORIES.iterdir()}


def test_there_is_no_golden_plan_of_nothing() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(PLANS)

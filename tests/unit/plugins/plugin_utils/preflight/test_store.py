# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What preflight keeps between its tasks."""

from __future__ import annotations

import pathlib

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import preflight
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight.store import Store
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.preflight import fleets


def test_pings_are_judged_among_the_hosts_that_they_were_chosen_among(tmp_path: pathlib.Path) -> None:
    """Or each chip that a host which failed on the way was not asked about would be an unknown of its own."""
    case, kept = fleets.good("a3"), Store(str(tmp_path))
    assert kept.pinged(case.facts) == case.facts, "nobody was asked to ping"
    asked = [host for host in case.facts if host != "d2"]
    kept.write_pinged(asked)
    chosen = kept.pinged(case.facts)
    assert list(chosen) == asked
    schedule = preflight.plan_pings(case.view, chosen, mode="rail", peers=8, budget_seconds=180)
    assert set(schedule.by_host) == set(asked)
    kept.forget()
    assert kept.pinged(case.facts) == case.facts, "a new round begins"


def test_long_names_of_hosts_are_kept_apart(tmp_path: pathlib.Path) -> None:
    """Fully qualified names that differ at their end only."""
    names = [f"{'rack-' * 49}{number}" for number in range(2)]
    kept = Store(str(tmp_path))
    for name in names:
        kept.write("npu", name, {"hardware": name})
    assert [kept.read("npu", name) for name in names] == [{"hardware": name} for name in names]

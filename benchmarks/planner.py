# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""CPU time of the planner, from plain variables to the complete JSON bytes, for growing fleets."""

from __future__ import annotations

import time

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import planner

from . import fleet

SIZES = (4, 64, 256, 1024)
ROUNDS = 3


def measure(hosts: int) -> tuple[float, int, planner.Plan]:
    """(best CPU seconds of a few rounds, bytes, plan)."""
    best, size = float("inf"), 0
    for _round in range(ROUNDS):
        source = fleet.plain(hosts)
        began = time.process_time()
        plan = planner.plan(source)
        size = len(planner.to_json(plan))
        best = min(best, time.process_time() - began)
    return best, size, plan


def main() -> None:
    print("planner: plain variables -> JSON bytes, CPU seconds (best of 3), 16 chips per host")
    seconds = {}
    for hosts in SIZES:
        seconds[hosts], size, plan = measure(hosts)
        ranks = sum(len(placement.processes) for placement in plan.placements)
        print(
            f"  {hosts:5} hosts  {len(plan.placements):5} placements  {ranks:6} processes  {size / 1e6:7.2f} MB  "
            f"{seconds[hosts]:6.3f} s  {len(plan.findings)} findings"
        )
    print(f"  ratio t(1024)/t(256) = {seconds[1024] / seconds[256]:.2f}")


if __name__ == "__main__":
    main()

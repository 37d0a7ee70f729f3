# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Which units must be started or restarted, decided once over all hosts.

A data-parallel group cannot live without a member and lets none rejoin. When a unit of an instance is gone or has
another configuration on one host, the instance's units on all hosts must start together.
"""

from __future__ import annotations

import collections.abc as c
import typing as t


def restart_together(
    answers: t.Iterable[t.Any], instances: t.Sequence[t.Any] = (), play_hosts: t.Sequence[str] = ()
) -> dict[str, t.Any]:
    """Collect over hosts; a unit's name is the same on all hosts of its instance."""
    reasons: dict[str, str] = {}
    problems: list[str] = []
    running: set[str] = set()
    broken: set[str] = set()
    for answer in answers:
        found = answer.get("units") if isinstance(answer, c.Mapping) else None
        for name, state in (found or {}).items():
            if state.get("unknown"):
                continue
            if state.get("problem"):
                problems.append(f"{name}: {state['problem']}")
            if state["running"]:
                running.add(name)
            elif state["deployed"] and (state.get("end") or {}).get("code") != 0:
                # Not stopped by order: its ranks elsewhere may stand as processes, and wait for it in vain.
                broken.add(name)
            reason = _why(state)
            if reason:
                reasons.setdefault(name, reason)
    for instance in instances:
        outside = [host for host in instance["hosts"] if host not in play_hosts]
        unit = instance["unit"]
        if outside and unit in reasons and (unit in running or unit in broken):
            problems.append(
                f"{unit} must start anew ({reasons[unit]}), but its group is on {', '.join(outside[:4])} too, outside --limit; a group "
                "restarts on all of its hosts, so name them too"
            )
    return {"units": list(reasons), "reasons": reasons, "problems": problems}


def _why(state: t.Mapping[str, t.Any]) -> str | None:
    """Why a unit has to start (anew); None when it serves or loads as it should."""
    if not state["deployed"]:
        return "not deployed"
    if not state["running"]:
        return str((state.get("end") or {}).get("reason") or "its launcher is gone")
    if not state["current"]:
        return "its configuration has changed"
    sick = [process["label"] for process in state["processes"] if process["health"] == "unhealthy"]
    return f"{sick[0]} is not healthy" if sick else None

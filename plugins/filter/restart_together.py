# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Filter ascend.pd_serving.restart_together."""

from __future__ import annotations

DOCUMENTATION = r"""
name: restart_together
author: the ascend.pd_serving contributors (@ascend-pd-serving)
version_added: 0.1.0
short_description: Units that must be started or restarted, over all hosts
description:
  - A data-parallel group cannot live without a member and lets none rejoin. When a unit of an instance is gone or has
    another configuration on one host, the instance's units on all hosts must start together.
options:
  _input:
    description: Results of M(ascend.pd_serving.launch_info) of all hosts in the play, called with their planned units.
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Work out what must start together
  ansible.builtin.set_fact:
    to_start: "{{ ansible_play_hosts | map('extract', hostvars, 'found') | ascend.pd_serving.restart_together }}"
  run_once: true
"""

RETURN = r"""
_value:
  description:
    - C(units), names of units to start on every host that has them; C(reasons), why, by unit;
      C(problems), launch specifications that the launcher would refuse, in which case nothing should be stopped.
  type: dict
"""

import collections.abc as c
import typing as t


def restart_together(answers: t.Iterable[t.Any]) -> dict[str, t.Any]:
    """Collect over hosts; a unit's name is the same on all hosts of its instance."""
    reasons: dict[str, str] = {}
    problems: list[str] = []
    for answer in answers:
        found = answer.get("units") if isinstance(answer, c.Mapping) else None
        for name, state in (found or {}).items():
            if state.get("unknown"):
                continue
            if state.get("problem"):
                problems.append(f"{name}: {state['problem']}")
            if not state["deployed"]:
                reasons.setdefault(name, "not deployed")
            elif not state["running"]:
                reasons.setdefault(name, (state.get("end") or {}).get("reason") or "its launcher is gone")
            elif not state["current"]:
                reasons.setdefault(name, "its configuration has changed")
            else:
                sick = [process["label"] for process in state["processes"] if process["health"] == "unhealthy"]
                if sick:
                    reasons.setdefault(name, f"{sick[0]} is not healthy")
    return {"units": list(reasons), "reasons": reasons, "problems": problems}


class FilterModule:
    """Group-wise restarts."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"restart_together": restart_together}

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What is up and what is not, over all hosts that were asked."""

from __future__ import annotations

import typing as t

from ansible import constants
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import report, slices

display = Display()


class ActionModule(ActionBase):
    """Runs once on the controller, over what launch_info found on the hosts."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        result["changed"] = False
        _spec, options = self.validate_argument_spec({"found": {"type": "dict", "required": True}})
        overview = slices.read(constants.DEFAULT_LOCAL_TMP, slices.CLUSTER_FILE) or {}
        found = {host: answers["units"].get("units", {}) for host, answers in options["found"].items()}
        states = [
            report.unit_state(host, unit["name"], _what(unit), units[unit["name"]], slice_["runtime"])
            for host, units in found.items()
            for slice_ in [slices.read(constants.DEFAULT_LOCAL_TMP, host) or {}]
            for unit in _units(slice_)
            if unit["name"] in units
        ]
        strangers = [
            f"{name} on {host} belongs to no instance of the inventory{' and runs' if unit['running'] else ''}"
            for host, units in found.items()
            for name, unit in units.items()
            if unit["unknown"]
        ]
        engines = [
            f"{host}: {finding['message']}. Fix: {finding['fix']}."
            for host, answers in options["found"].items()
            for finding in answers.get("host", {}).get("findings", ())
            if finding["check"] == "docker"
        ]
        asked = set(options["found"])
        planned = {host for instance in overview["instances"] for host in instance["hosts"]}
        if overview["proxy"]:
            planned.add(overview["proxy"]["host"])
        if overview["kv_pool"] and overview["kv_pool"]["started"]:
            planned.add(overview["kv_pool"]["host"])
        missing = sorted(planned - asked)
        display.display("\n".join(["", *report.status_lines(states), *strangers, ""]))
        if missing:
            display.display(
                f"Not asked: {', '.join(missing[:8])}{' ...' if len(missing) > 8 else ''} (outside --limit or unreachable)"
            )
        down = [problem for state in states for problem in state.problems]
        result["deployed"] = any(state.deployed for state in states)
        if engines and result["deployed"]:
            result["failed"] = True
            result["msg"] = "\n".join(
                [
                    f"cluster {overview['name']}: nothing can be started or stopped where the container engine does not answer:",
                    *engines[:40],
                    *down[:40],
                    "Then site.yml repairs what is down.",
                ]
            )
        elif not result["deployed"]:
            display.display(f"Cluster {overview['name']} is not deployed on these hosts: site.yml does that.")
        elif all(state.stopped or not state.deployed for state in states):
            display.display(f"Cluster {overview['name']} is stopped: site.yml starts it.")
        elif down:
            # What ended explains what is not ready, so it comes first.
            down.sort(key=lambda line: " has ended" not in line)
            more = [f"... and {len(down) - 40} more"] if len(down) > 40 else []
            loads = all(" loading (" in line for line in down)
            fix = "They load, which takes minutes; site.yml waits for them." if loads else "site.yml repairs it."
            result["failed"] = True
            result["msg"] = "\n".join([f"cluster {overview['name']} is not wholly up:", *down[:40], *more, fix])
        return result


def _units(slice_: dict[str, t.Any]) -> list[dict[str, t.Any]]:
    return [unit for key in slices.UNIT_KEYS for unit in slice_.get(key, ())]


def _what(unit: dict[str, t.Any]) -> str:
    """The instance, or which of the units beside the instances it is."""
    return str(unit.get("instance") or unit["what"])

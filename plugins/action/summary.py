# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The last words of a run: topology, endpoints, timings, the line to try."""

from __future__ import annotations

import json
import time
import typing as t

from ansible import constants
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.ascend.pd_serving.plugins.action import gate
from ansible_collections.ascend.pd_serving.plugins.plugin_utils import inventory, report, slices

display = Display()


class ActionModule(ActionBase):
    """Runs once on the controller."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        result["changed"] = False
        _spec, options = self.validate_argument_spec(
            {"verified": {"type": "dict", "default": {}}, "stopped": {"type": "bool", "default": False}}
        )
        overview = slices.read(constants.DEFAULT_LOCAL_TMP, slices.CLUSTER_FILE) or {}
        if options["stopped"]:
            variables = task_vars or {}
            groups = variables["groups"]
            known = {"localhost", *(host for group in inventory.GROUPS for host in groups.get(group, ()))}
            others = [host for host in groups["all"] if host not in known]
            display.display("\n".join(report.stopped_lines(overview, variables["ansible_play_hosts_all"], others)))
            return result
        gated = {}
        skipped = []
        for instance in overview["instances"]:
            state = _gate_state(instance)
            if state is not None:
                gated[instance["name"]] = state
            if state is None or state["ready"] < instance["ranks"]:
                missing = instance["ranks"] - (state["ready"] if state else 0)
                left_out = [host for host in instance["hosts"] if state is None or host not in state["hosts"]]
                where = f", on {inventory.some(left_out)}" if left_out else ""
                skipped.append(f"{inventory.count(missing, 'rank')} of {instance['name']}{where}")
        verified = options["verified"] if options["verified"].get("requests") else None
        if verified is None:
            skipped.append("completions through the proxy")
        plan_file = slices.directory(constants.DEFAULT_LOCAL_TMP) / slices.CLUSTER_FILE
        elapsed = time.time() - plan_file.stat().st_mtime
        lines = report.summary_lines(overview, gated, verified, [] if self._task.check_mode else skipped, elapsed)
        if self._task.check_mode:
            lines.append("Check mode: nothing was started, so nothing was judged.")
        display.display("\n".join(["", *lines, ""]))
        return result


def _gate_state(instance: dict[str, t.Any]) -> dict[str, t.Any] | None:
    path = gate.board_path(instance["name"])
    if not path.exists():
        return None
    asked = json.loads(path.read_text(encoding="utf-8")).get("hosts", {})
    hosts = asked.values()
    return {
        "hosts": list(asked),
        "ready": sum(entry["ready"] for entry in hosts),
        "seconds": max(entry["seconds"] for entry in hosts),
        "started": any(entry["started"] for entry in hosts),
    }

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Decide once, over what was found on all hosts, which units start, and tell why."""

from __future__ import annotations

import typing as t

from ansible import constants
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import restarts, slices

display = Display()


class ActionModule(ActionBase):
    """Runs once on the controller. Fails before anything is stopped when the launcher would refuse a specification."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        _spec, options = self.validate_argument_spec({"found": {"type": "list", "required": True}})
        overview = slices.read(constants.DEFAULT_LOCAL_TMP, slices.CLUSTER_FILE) or {}
        play_hosts = (task_vars or {})["ansible_play_hosts_all"]
        decided = restarts.restart_together(options["found"], overview.get("instances", []), play_hosts)
        result.update(changed=False, units=decided["units"], reasons=decided["reasons"])
        if decided["problems"]:
            result.update(failed=True, msg=f"Nothing was stopped. {'; '.join(decided['problems'])}")
            return result
        verb = "would start" if self._task.check_mode else "starts"
        for unit, reason in decided["reasons"].items():
            display.display(f"{unit} {verb}: {reason}")
        return result

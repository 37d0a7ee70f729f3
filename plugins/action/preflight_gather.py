# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Call one gathering module on the host and keep its answer in the run's private folder."""

from __future__ import annotations

import time
import typing as t

from ansible import constants
from ansible.plugins.action import ActionBase

from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight import store

MODULES = {
    "npu": "ascend.pd_serving.npu_facts",
    "host": "ascend.pd_serving.host_check",
    "listen": "ascend.pd_serving.port_probe",
    "pings": "ascend.pd_serving.hccn_ping",
    "probes": "ascend.pd_serving.port_probe",
    "done": "ascend.pd_serving.port_probe",
}
# What later tasks of the host ask for; everything else stays out of Ansible's variables.
_KEPT = ("failed", "msg", "unreachable", "warnings", "deprecations", "exception", "docker", "prepare")

Answer = dict[str, t.Any]


class ActionModule(ActionBase):
    """Thin: what to ask comes from the task and, for what goes from host to host, from preflight_schedule."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> Answer:
        result: Answer = super().run(tmp, task_vars)
        result["changed"] = False
        _spec, options = self.validate_argument_spec(
            {
                "parts": {"type": "list", "elements": "str", "choices": list(MODULES), "required": True},
                "arguments": {"type": "dict", "default": {}},
            }
        )
        variables = task_vars or {}
        host = variables["inventory_hostname"]
        kept = store.Store(constants.DEFAULT_LOCAL_TMP)
        made = 0
        for part in options["parts"]:
            wanted = kept.wanted(part, host)
            if wanted is None and part in store.SCHEDULED:
                continue
            made += 1
            arguments = {**(options["arguments"].get(part) or {}), **(wanted or {})}
            before = time.time()
            told = self._execute_module(
                module_name=MODULES[part],
                module_args={name: value for name, value in arguments.items() if value is not None},
                task_vars=variables,
            )
            result.update({key: told[key] for key in _KEPT if key in told})
            if told.get("failed") or told.get("unreachable"):
                return result
            if part != "done":
                kept.write(part, host, store.answer(part, told, before, time.time()))
        if not made:
            result.update(skipped=True, skip_reason="nothing was chosen for this host")
        return result

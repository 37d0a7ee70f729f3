# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Ask the host in one call and keep its answers in the run's private folder."""

from __future__ import annotations

import time
import typing as t

from ansible import constants
from ansible.plugins.action import ActionBase

from ansible_collections.ascend.pd_serving.plugins.module_utils import argument_check
from ansible_collections.ascend.pd_serving.plugins.plugin_utils import slices, small_script
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight import asked, store

MODULE = "ascend.pd_serving.on_host"
# What later tasks of the host ask for; everything else stays out of Ansible's variables.
# ansible_facts: the host's Python, where Ansible had to look for it.
_KEPT = ("failed", "msg", "unreachable", "warnings", "deprecations", "exception", "ansible_facts")
_KEPT_OF_HOST = ("docker", "prepare")

_TOOLS = ("npu.answers", "npu.hccn", "npu.tool", "part_options", "sites")
_UNITS = ("host_check", "launcher", "masking", "port_probe", "procfs", "units")
_PORTS = ("port_probe", "procfs")
SOURCES: t.Mapping[str, t.Sequence[str]] = {
    "npu": (*_TOOLS, *_UNITS, "npu.facts", "npu.hccn_conf", "npu.npu_smi", "npu.versions"),
    "host": (*_UNITS, "docker_check", "docker_socket", "host_facts", "host_look", "kernel", "mooncake", "sites"),
    "listen": _PORTS,
    "pings": (*_TOOLS, "npu.pings"),
    "probes": _PORTS,
    "done": _PORTS,
}
"""What a host needs of module_utils to answer a part, besides questions."""

Answer = dict[str, t.Any]


class ActionModule(ActionBase):
    """Thin: what to ask comes from the task, the plan and, for what goes from host to host, from preflight_schedule."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> Answer:
        result: Answer = super().run(tmp, task_vars)
        result["changed"] = False
        _spec, options = self.validate_argument_spec(
            {
                "parts": {"type": "list", "elements": "str", "choices": store.SCHEDULED, "required": True},
                "arguments": {"type": "dict", "default": {}},
            }
        )
        variables = task_vars or {}
        host = variables["inventory_hostname"]
        kept = store.Store(constants.DEFAULT_LOCAL_TMP)
        wanted = {part: kept.wanted(part, host) for part in options["parts"]}
        slice_ = slices.read(constants.DEFAULT_LOCAL_TMP, host)
        planned = asked.planned(slice_) if slice_ is not None else {}
        arguments = {
            part: {**(options["arguments"].get(part) or {}), **planned.get(part, {}), **chosen}
            for part, chosen in wanted.items()
            if chosen is not None
        }
        listening = kept.read("listen", host)
        if "done" in arguments and listening is not None and not listening["listeners"]:
            # Such as a host whose ports a live cluster holds.
            del arguments["done"]
        if not arguments:
            result.update(skipped=True, skip_reason="nothing was chosen for this host")
            return result
        chosen = {
            part: {name: value for name, value in given.items() if value is not None}
            for part, given in arguments.items()
        }
        before = time.time()
        told = self._ask_small(chosen, listening, variables) or self._execute_module(
            module_name=MODULE, module_args={"parts": list(chosen), "arguments": chosen}, task_vars=variables
        )
        after = time.time()
        for part, answer in told.get("answers", {}).items():
            if part != "done":
                begin, end = told["spans"][part]
                kept.write(part, host, store.answer(part, answer, before + begin, after - told["elapsed"] + end))
        result.update({key: told[key] for key in _KEPT if key in told})
        about = told.get("answers", {}).get("host", {})
        result.update({key: about[key] for key in _KEPT_OF_HOST if key in about})
        return result

    def _ask_small(self, chosen: Answer, listening: Answer | None, task_vars: Answer) -> Answer | None:
        """Without a module; None where only that can tell what is wrong, or where a program gives no answer."""
        python = (listening or {}).get("python") or small_script.interpreter(self._templar, task_vars)
        if python is None and "host" in chosen:
            return None  # it looks for what later modules import, and Ansible chooses their Python when it starts one
        checked = {part: argument_check.check(part, given) for part, given in chosen.items()}
        if any(wrong is not None for _given, wrong in checked.values()):
            return None
        words = {"parts": list(chosen), "arguments": {part: given for part, (given, _wrong) in checked.items()}}
        others = dict.fromkeys(name for part in chosen for name in SOURCES[part])
        return small_script.ask(self, python or small_script.USUAL, small_script.program("questions", others, words))

#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
from __future__ import annotations

DOCUMENTATION = r"""
module: on_host
author: the ascend.pd_serving contributors (@ascend-pd-serving)
version_added: 0.1.0
short_description: Ask a host several things in one execution
description:
  - Answers as other modules of this collection would one after the other. Starting a module takes longer than most of
    these answers, and so does building it on the controller, which is done once per module and run.
options:
  parts:
    description:
      - What to ask, in this order; but V(host) is asked while V(npu) is, and V(probes) while V(pings) are, since tools make
        this mostly wait.
      - V(npu) is M(ascend.pd_serving.npu_facts), V(host) M(ascend.pd_serving.host_check), V(pings)
        M(ascend.pd_serving.hccn_ping), V(units) M(ascend.pd_serving.launch_info); V(listen), V(probes) and V(done) are
        M(ascend.pd_serving.port_probe).
    type: list
    elements: str
    choices: [npu, host, listen, pings, probes, done, units]
    required: true
  arguments:
    description: Options of these modules, by part.
    type: dict
    default: {}
extends_documentation_fragment:
  - ascend.pd_serving.reads
  - ascend.pd_serving.reads.hosts
"""

EXAMPLES = r"""
- name: Look at the chips and at what runs
  ascend.pd_serving.on_host:
    parts: [npu, units]
    arguments:
      npu: {hardware: a3, timeout: 10}
      units: {cluster: demo}
  register: found
"""

RETURN = r"""
answers:
  description: What the modules return, by part.
  type: dict
  returned: always
spans:
  description: When each part was asked and answered, in seconds since the module began.
  type: dict
  returned: always
elapsed:
  description: Seconds that all of it took.
  type: float
  returned: always
"""

import sys
import threading
import time
import types
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

PARTS = ["npu", "host", "listen", "pings", "probes", "done", "units"]

BESIDE = {"host": "npu", "probes": "pings"}
"""What needs no turn of hccn_tool and npu-smi is asked while these are."""


def source(part: str) -> types.ModuleType:
    """What answers a part. A host compiles all that is imported, in every call, so nothing else is."""
    if part == "npu":
        from ansible_collections.ascend.pd_serving.plugins.module_utils.npu import facts

        return facts
    if part == "host":
        from ansible_collections.ascend.pd_serving.plugins.module_utils import host_look

        return host_look
    if part == "pings":
        from ansible_collections.ascend.pd_serving.plugins.module_utils.npu import pings

        return pings
    if part == "units":
        from ansible_collections.ascend.pd_serving.plugins.module_utils import unit_report

        return unit_report
    from ansible_collections.ascend.pd_serving.plugins.module_utils import port_probe

    return port_probe


class Question:
    """One part: its *answer* or the *fault* for which there is none, and the *span* of the asking since *began*."""

    def __init__(self, part: str, arguments: t.Mapping[str, t.Any], began: float) -> None:
        self._part = part
        self._arguments = arguments
        self._began = began
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.answer: dict[str, t.Any] = {}
        self.fault: str | None = None
        self.secrets: set[str] = set()
        """What must not be shown of the arguments."""
        self.span = (0.0, 0.0)

    def start(self) -> None:
        """Ask in a thread of its own."""
        self._thread = threading.Thread(target=self._ask_aside)
        self._thread.start()

    def finish(self) -> None:
        """Wait for the thread, or ask now. Raises what nobody has foreseen, from a thread as well."""
        if self._thread is None:
            self._ask()
            return
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _ask_aside(self) -> None:
        try:
            self._ask()
        except BaseException as error:
            self._error = error

    def _ask(self) -> None:
        asked_at = time.monotonic() - self._began
        asked = source(self._part)
        checked = ArgumentSpecValidator(asked.OPTIONS, required_if=asked.REQUIRED_IF).validate(self._arguments)
        if checked.error_messages:
            self.fault = f"{self._part}: {'; '.join(checked.error_messages)}"
            return
        if self._part == "units":
            self.secrets = asked.secrets(checked.validated_parameters)
        try:
            self.answer = asked.answer(checked.validated_parameters)
        except asked.FAULTS as error:
            self.fault = str(error)
        self.span = (asked_at, time.monotonic() - self._began)


def main() -> None:
    began = time.monotonic()
    module = AnsibleModule(
        argument_spec={
            "parts": {"type": "list", "elements": "str", "choices": PARTS, "required": True},
            "arguments": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    parts = module.params["parts"]
    questions = {part: Question(part, module.params["arguments"].get(part) or {}, began) for part in parts}
    aside = [part for part in parts if BESIDE.get(part) in parts]
    if aside:
        # A tool that has answered is not to wait for the interpreter, which a thread keeps for 5 ms otherwise.
        sys.setswitchinterval(0.0005)
        for part in aside:
            source(BESIDE[part])  # first, since two that compile at once both take twice as long
            questions[part].start()
    answers: dict[str, t.Any] = {}
    spans: dict[str, tuple[float, float]] = {}
    fault = None
    for part, question in questions.items():
        question.finish()
        fault = question.fault
        module.no_log_values.update(question.secrets)
        if fault is not None:
            break
        for warning in question.answer.pop("warnings", ()):
            module.warn(warning)
        answers[part] = question.answer
        spans[part] = question.span
    told = {"changed": False, "answers": answers, "spans": spans, "elapsed": time.monotonic() - began}
    if fault is not None:
        module.fail_json(msg=fault, **told)
    module.exit_json(**told)


if __name__ == "__main__":
    main()

#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_gather
author: the ascend.pd_serving contributors (@ascend-pd-serving)
version_added: 0.1.0
short_description: Ask a host what preflight wants to know
description:
  - Asks the host everything in one go, as the gathering modules would one after the other, and keeps the answers in the
    run's private folder on the controller, so that facts of many hosts never travel in variables.
  - Asks what M(ascend.pd_serving.preflight_schedule) chose for the host; without a choice nothing.
options:
  parts:
    description:
      - What to ask, in this order. V(npu) is M(ascend.pd_serving.npu_facts), V(host) M(ascend.pd_serving.host_check),
        V(pings) M(ascend.pd_serving.hccn_ping); V(listen), V(probes) and V(done) are M(ascend.pd_serving.port_probe).
    type: list
    elements: str
    choices: [npu, host, listen, pings, probes, done]
    required: true
  arguments:
    description: More options of these modules, by part. An option that is null is left out.
    type: dict
    default: {}
extends_documentation_fragment:
  - ascend.pd_serving.reads
"""

EXAMPLES = r"""
- name: Ask the NPU tools
  ascend.pd_serving.preflight_gather:
    parts: [npu]
    arguments:
      npu: {timeout: 10}
"""

RETURN = r"""
docker:
  description: See M(ascend.pd_serving.host_check).
  type: dict
  returned: with the part V(host)
prepare:
  description: See M(ascend.pd_serving.host_check).
  type: list
  elements: str
  returned: with the part V(host)
"""

import time
import types
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

PARTS = ["npu", "host", "listen", "pings", "probes", "done"]


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
    from ansible_collections.ascend.pd_serving.plugins.module_utils import port_probe

    return port_probe


def main() -> None:
    began = time.monotonic()
    module = AnsibleModule(
        argument_spec={
            "parts": {"type": "list", "elements": "str", "choices": PARTS, "required": True},
            "arguments": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    answers: dict[str, t.Any] = {}
    spans: dict[str, tuple[float, float]] = {}
    fault = None
    for part in module.params["parts"]:
        asked_at = time.monotonic() - began
        asked = source(part)
        arguments = module.params["arguments"].get(part) or {}
        checked = ArgumentSpecValidator(asked.OPTIONS, required_if=asked.REQUIRED_IF).validate(arguments)
        fault = f"{part}: {'; '.join(checked.error_messages)}" if checked.error_messages else None
        if fault is None:
            try:
                answers[part] = asked.answer(checked.validated_parameters)
            except asked.FAULTS as error:
                fault = str(error)
        if fault is not None:
            break
        for warning in answers[part].pop("warnings", ()):
            module.warn(warning)
        spans[part] = (asked_at, time.monotonic() - began)
    told = {"changed": False, "answers": answers, "spans": spans, "elapsed": time.monotonic() - began}
    if fault is not None:
        module.fail_json(msg=fault, **told)
    module.exit_json(**told)


if __name__ == "__main__":
    main()

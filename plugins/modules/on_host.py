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

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ascend.pd_serving.plugins.module_utils import argument_check, part_options, questions


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "parts": {"type": "list", "elements": "str", "choices": list(part_options.OF_PART), "required": True},
            "arguments": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    if "units" in module.params["parts"]:
        # First: arguments are shown whatever becomes of them.
        module.no_log_values.update(questions.source("units").secrets(module.params["arguments"].get("units")))
    told = questions.ask(module.params["parts"], module.params["arguments"], argument_check.check)
    for warning in told.warnings:
        module.warn(warning)
    result = {"changed": False, "answers": told.answers, "spans": told.spans, "elapsed": told.elapsed}
    if told.fault is not None:
        module.fail_json(msg=told.fault, **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()

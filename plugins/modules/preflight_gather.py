#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Documentation of the action ascend.pd_serving.preflight_gather."""

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_gather
author: the ascend.pd_serving contributors (@ascend-pd-serving)
version_added: 0.1.0
short_description: Ask a host what preflight wants to know
description:
  - Asks the host everything in one go, with M(ascend.pd_serving.on_host), and keeps the answers in the run's private
    folder on the controller, so that facts of many hosts never travel in variables.
  - Asks what M(ascend.pd_serving.preflight_schedule) chose for the host; without a choice nothing.
options:
  parts:
    description: What to ask; see M(ascend.pd_serving.on_host).
    type: list
    elements: str
    choices: [npu, host, listen, pings, probes, done]
    required: true
  arguments:
    description: Options that neither the plan nor that choice gives, by part. An option that is null is left out.
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

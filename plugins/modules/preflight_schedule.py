#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Documentation of the action ascend.pd_serving.preflight_schedule."""

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_schedule
author: the ascend.pd_serving contributors (@ascend-pd-serving)
version_added: 0.1.0
short_description: Choose what preflight asks of each host
description:
  - Over all hosts of the play at once. O(step=begin) forgets earlier answers and chooses chips, files and the ports to listen
    on. O(step=ask) needs these first answers, and chooses which chip pings which and which ports are tried from where.
  - Keeps what it chose in the run's private folder, for M(ascend.pd_serving.preflight_gather).
  - Runs on the controller and contacts no host. Use it with C(run_once).
options:
  step:
    description: Which part of the round comes next.
    type: str
    choices: [begin, ask]
    required: true
  gate:
    description: What M(ascend.pd_serving.preflight_report) will be told, V(error) or V(warn); refused here when it is neither.
    type: str
    default: error
  probe_peers:
    description: Other hosts whose ports a host tries, for each kind of connection.
    type: int
    default: 16
extends_documentation_fragment:
  - ascend.pd_serving.reads
  - ascend.pd_serving.pings
"""

EXAMPLES = r"""
- name: Choose who asks whom
  ascend.pd_serving.preflight_schedule:
    step: ask
  run_once: true
"""

RETURN = r"""
pings:
  description: Number of pings that were chosen.
  type: int
  returned: with O(step=ask)
"""

#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Documentation of the action ascend.pd_serving.preflight_report."""

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_report
author: the ascend.pd_serving contributors (@ascend-pd-serving)
version_added: 0.1.0
short_description: Judge what all hosts told, show and write the report
description:
  - Compares all hosts with the plan and with each other. Prints a table of hosts and checks and everything that is wrong
    with its fix, and writes C(report.json) and C(report.html).
  - Fails when there are errors, with all of them in one message.
  - Hosts outside C(--limit) are named, and so are checks that need them. What could not be read is unknown and never good.
  - Runs on the controller and contacts no host. Use it with C(run_once).
options:
  directory:
    description: Folder for both reports; empty writes none.
    type: path
  gate:
    description: Whether errors fail (V(error)) or are only shown (V(warn)).
    type: str
    choices: [error, warn]
    default: error
  warnings_fail:
    description: Whether warnings fail, too.
    type: bool
    default: false
  unknown_fails:
    description: Whether what could not be read fails, too.
    type: bool
    default: false
  coming:
    description: Checks of M(ascend.pd_serving.host_check) that are left out, since the run is about to put them right.
    type: list
    elements: str
    default: []
  show:
    description: V(matrix) always prints the table, V(faults) one line when nothing is wrong.
    type: str
    choices: [matrix, faults]
    default: matrix
  defer:
    description: Return RV(refused) and the message instead of failing, for a play that has something to give back first.
    type: bool
    default: false
extends_documentation_fragment:
  - ascend.pd_serving.reads
  - ascend.pd_serving.pings
"""

EXAMPLES = r"""
- name: Judge what all hosts told
  ascend.pd_serving.preflight_report:
    directory: reports/preflight
  run_once: true
"""

RETURN = r"""
exit_code:
  description: 0 when nothing is wrong, 1 for warnings that shall count, 2 for errors. Also in C(report.json).
  type: int
  returned: always
counts:
  description: Verdicts by severity; C(ok) counts the pairs of a check and a host that are good.
  type: dict
  returned: always
refused:
  description: That the gate refuses; RV(msg) says why.
  type: bool
  returned: when it does
msg:
  description: What is wrong, with its fixes.
  type: str
  returned: when the gate refuses
reports:
  description: Paths of what was written.
  type: list
  elements: str
  returned: with O(directory)
"""

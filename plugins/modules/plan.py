#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Documentation of the action ascend.pd_serving.plan, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: plan
author: the ascend.pd_serving contributors (@ascend-pd-serving)
version_added: 0.1.0
short_description: Plan a PD-disaggregated serving cluster from the inventory
description:
  - Works out every rank, chip, port, environment and argument of the cluster that the inventory describes, checks it
    against the rules of docs/rules.md and keeps a slice for every host for the rest of the run.
  - Runs on the controller and contacts no host. Use it with C(run_once), in a play over C(all).
  - Fails when there is any finding of severity error; all findings are reported together.
options:
  out:
    description: File to write the plan to, as JSON (docs/plan.md). Written also when findings stop the run, mode 0600.
    type: path
  query:
    description: JMESPath expression; that part of the plan is printed and returned.
    type: str
  show:
    description: Whether to print the plan as a table.
    type: bool
    default: true
  needs:
    description:
      - Groups of which the rest of the run needs a host. Where C(--limit) leaves none of them, nothing would be done, so
        that is refused.
    type: list
    elements: str
    default: []
  rehearsal:
    description: Plan for a rehearsal on this machine, and make the simulated hosts.
    type: bool
    default: false
  rehearsal_dir:
    description: Folder of the simulated hosts. Default is one per cluster and inventory below the user's state folder.
    type: path
attributes:
  check_mode:
    description: Plans as always; nothing but O(out) is written.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
"""

EXAMPLES = r"""
- name: Plan the cluster
  hosts: all
  gather_facts: false
  tasks:
    - name: Work out every rank, chip, port and argument
      ascend.pd_serving.plan:
        out: /tmp/plan.json
      run_once: true
"""

RETURN = r"""
errors:
  description: Number of findings of severity error.
  type: int
  returned: always
warnings_found:
  description: Number of findings of severity warning.
  type: int
  returned: always
query_result:
  description: What O(query) selected.
  type: raw
  returned: with O(query)
"""

#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Documentation of the action ascend.pd_serving.restart_together."""

from __future__ import annotations

DOCUMENTATION = r"""
module: restart_together
author: the ascend.pd_serving contributors (@ascend-pd-serving)
version_added: 0.1.0
short_description: Decide which units must start or restart, over all hosts
description:
  - A data-parallel group cannot live without a member and lets none rejoin. When a unit of an instance is gone or has
    another configuration on one host, the instance's units on all hosts must start together.
  - Prints why each of them starts. Fails, before anything is stopped, when a launch specification is impossible or when a
    group that runs would have to restart on hosts outside C(--limit) as well.
  - Runs on the controller and contacts no host. Use it with C(run_once).
options:
  found:
    description: Results of M(ascend.pd_serving.launch_info) of all hosts in the play, called with their planned units.
    type: list
    elements: raw
    required: true
extends_documentation_fragment:
  - ascend.pd_serving.reads
"""

EXAMPLES = r"""
- name: Work out what must start together
  ascend.pd_serving.restart_together:
    found: "{{ ansible_play_hosts | map('extract', hostvars, 'found') }}"
  run_once: true
  register: to_start
"""

RETURN = r"""
units:
  description: Names of the units to start, on every host that has them.
  type: list
  elements: str
  returned: always
reasons:
  description: Why, by unit.
  type: dict
  returned: always
  sample: {pd-demo-decode: its configuration has changed}
"""

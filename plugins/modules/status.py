#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Documentation of the action ascend.pd_serving.status."""

from __future__ import annotations

DOCUMENTATION = r"""
module: status
author: the ascend.pd_serving contributors (@ascend-pd-serving)
version_added: 0.1.0
short_description: Show which ranks are up, and fail when any is not
description:
  - Compares what the plan wants with what M(ascend.pd_serving.launch_info) found on the hosts and prints it as a table.
  - Fails when the cluster is deployed but not wholly up, naming every endpoint that is down, and where a container engine
    that has its units does not answer. A cluster that is not deployed at all, or was stopped by order, is no failure.
  - Runs on the controller and contacts no host. Use it with C(run_once).
options:
  found:
    description:
      - Answers of M(ascend.pd_serving.on_host), by host. Its part V(units) is needed; V(host) tells whether the container
        engine answers.
    type: dict
    required: true
attributes:
  check_mode:
    description: Reads only.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
"""

EXAMPLES = r"""
- name: Show what is up
  ascend.pd_serving.status:
    found: >-
      {{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, ['status_found', 'answers']))) }}
  run_once: true
"""

RETURN = r"""
deployed:
  description: Whether anything of the cluster is deployed on the hosts asked.
  type: bool
  returned: always
"""

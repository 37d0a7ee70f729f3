#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Documentation of the action ascend.pd_serving.summary."""

from __future__ import annotations

DOCUMENTATION = r"""
module: summary
author: the ascend.pd_serving contributors (@ascend-pd-serving)
version_added: 0.1.0
short_description: Print what a run has achieved
description:
  - Prints the instances with their state, the users' door, what was verified, what could not be judged, and a line to try.
  - Runs on the controller and contacts no host. Use it with C(run_once).
options:
  verified:
    description: Result of M(ascend.pd_serving.completion_check), if it ran.
    type: dict
    default: {}
  stopped:
    description: Say instead what has been stopped on the hosts of the play, and which instances were left in parts.
    type: bool
    default: false
attributes:
  check_mode:
    description: Says that nothing was judged.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
"""

EXAMPLES = r"""
- name: Tell what serves where
  ascend.pd_serving.summary:
  run_once: true
"""

RETURN = r"""#"""

#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Documentation of the action ascend.pd_serving.gate."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gate
author: the ascend.pd_serving contributors (@ascend-pd-serving)
version_added: 0.1.0
short_description: Wait until the planned ranks of a host are ready
description:
  - Polls the units of the host and prints progress per instance, ranks ready of all, elapsed time and the last log line.
  - Fails at once, with the end of the log, when a process of an instance is gone on any of its hosts.
  - Instances that also run on hosts outside C(--limit) are judged as far as this host goes; what could not be judged is
    returned, not passed over.
options:
  roles:
    description: Roles to wait for.
    type: list
    elements: str
    required: true
  timeout:
    description: Seconds after which waiting is given up. Large models load for 10 to 40 minutes.
    type: int
    default: 3600
  poll:
    description: Seconds that one look on the host may take before progress is shown again.
    type: int
    default: 10
  partial_wait:
    description: Seconds to wait for ranks whose group has hosts outside C(--limit).
    type: int
    default: 30
attributes:
  check_mode:
    description: Skipped, for nothing was started.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
"""

EXAMPLES = r"""
- name: Wait for the ranks of both roles
  ascend.pd_serving.gate:
    roles: [prefill, decode]
"""

RETURN = r"""
ready:
  description: Ready ranks of this host, by instance.
  type: dict
  returned: success
seconds:
  description: How long this host waited.
  type: float
  returned: success
not_judged:
  description: What this run could not judge, and why.
  type: list
  elements: str
  returned: success
"""

#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: hccn_ping
short_description: Ping chips of other hosts from the chips of a host
version_added: 0.1.0
author: the ascend.pd_serving contributors (@ascend-pd-serving)
description:
  - Sends the pings that it is given, one after the other in their order, through C(hccn_tool), and returns losses,
    latency and plane values as numbers.
  - Whom to ping is for the caller to say. It takes the address of the other chip's vNIC with V(hccs) and the one of its
    RoCE port with V(roce); the two dies of one A3 card do not reach one another over RoCE.
  - Judges nothing, never fails because of what it finds, and changes nothing. The exit code of the tool counts for
    nothing; what cannot be read is V(unknown).
options:
  pings:
    description: The pings, in the order in which they are sent.
    type: list
    elements: dict
    required: true
    suboptions:
      chip:
        description: Physical id of the chip that sends.
        type: int
        required: true
      target:
        description: IPv4 address of the chip that answers.
        type: str
        required: true
      mode:
        description: V(hccs) for the vNIC of an A3 chip, V(roce) for the RoCE port of an A2 or A3 chip.
        type: str
        choices: [hccs, roce]
        required: true
  count:
    description: Packets per ping with V(hccs). The tool's own default is 3, and always used with V(roce).
    type: int
    default: 3
  interval:
    description: Milliseconds between packets with V(hccs). The tool's own default when it is not given.
    type: int
  root:
    description: Put before every path of the host; for rehearsals.
    type: str
    default: ''
  environment:
    description:
      - Laid over the environment that the tool runs with.
      - With a C(PATH) in it the tool is looked for there first, otherwise in its usual place first.
    type: dict
    default: {}
  timeout:
    description: Seconds after which a ping is killed.
    type: float
    default: 20
  budget:
    description: Seconds for all pings. Those that are left when they are spent are returned as left out.
    type: float
    default: 300
extends_documentation_fragment:
  - ascend.pd_serving.reads
  - ascend.pd_serving.reads.hosts
"""

EXAMPLES = r"""
- name: Ping two chips of another A3 host
  ascend.pd_serving.hccn_ping:
    pings:
      - {chip: 0, target: 192.0.2.199, mode: hccs}
      - {chip: 1, target: 192.0.2.198, mode: hccs}
    budget: 60
  register: pinged
"""

RETURN = r"""
pings:
  description: One entry per ping that was sent, in their order.
  returned: always
  type: list
  elements: dict
  contains:
    chip:
      description: As given.
      type: int
    target:
      description: As given.
      type: str
    mode:
      description: As given.
      type: str
    state:
      description: >-
        V(ok) when the numbers below are known, whatever they are; otherwise V(unsupported), V(no_such_device), V(busy),
        V(timeout), V(denied), V(conf_unreadable), V(tool_missing), V(failed), V(not_configured) or V(unknown).
      type: str
    sent:
      description: Packets sent. Like all below only with the state V(ok).
      type: int
    received:
      description: Packets that came back.
      type: int
    loss_percent:
      description: Share of packets lost.
      type: float
    l1_plane:
      description: Result of the plane check, a number per packet, 0 when it is good. Empty with V(roce).
      type: list
      elements: int
    max_us:
      description: Longest time in microseconds; null when no packet came back or the tool does not say.
      type: float
    min_us:
      description: Shortest time in microseconds, or null.
      type: float
    average_us:
      description: Average time in microseconds, or null.
      type: float
    p95_us:
      description: Time in microseconds that 95 of 100 packets keep to, or null; always null with V(roce).
      type: float
    problems:
      description: Sentences by which the tool has told why packets were lost.
      type: list
      elements: str
    text:
      description: The first 300 characters of the output; only when the state is not V(ok).
      type: str
    exit_code:
      description: Exit code of the tool when it is not 0; for a person.
      type: int
  sample:
    - chip: 0
      target: 192.0.2.199
      mode: hccs
      state: ok
      sent: 3
      received: 3
      loss_percent: 0.0
      l1_plane: [0, 0, 0]
      max_us: 12.345
      min_us: 9.87
      average_us: 10.709
      p95_us: 12.345
      problems: []
left_out:
  description: Pings (C(chip), C(target), C(mode)) for which the budget was spent, in their order.
  returned: always
  type: list
  elements: dict
  sample: []
tool:
  description: >-
    C(path) of C(hccn_tool) (null where there is none), its C(state) (V(ok), V(tool_missing), or V(denied),
    V(failed), V(timeout) when no call got anywhere) and C(text) when it is not V(ok).
  returned: always
  type: dict
  sample: {path: /usr/local/Ascend/driver/tools/hccn_tool, state: ok}
calls:
  description: C(count) of processes started, C(seconds) that they took, C(elapsed) seconds in all, C(busy_retries).
  returned: always
  type: dict
  sample: {count: 2, seconds: 0.1, elapsed: 0.11, busy_retries: 0}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ascend.pd_serving.plugins.module_utils import part_options
from ansible_collections.ascend.pd_serving.plugins.module_utils.npu import pings


def main() -> None:
    module = AnsibleModule(argument_spec=dict(part_options.HCCN_PING), supports_check_mode=True)
    try:
        result = pings.answer(module.params)
    except pings.FAULTS as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()

#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: port_probe
short_description: Try whether hosts reach one another on planned ports
version_added: 0.1.0
author: the ascend.pd_serving contributors (@ascend-pd-serving)
description:
  - With O(state=listen) on every host first, then O(state=probe) on every host, then O(state=done), it tells which
    connections a firewall between hosts lets through.
  - A listener is a process of its own, which goes on when the module has ended. It takes connections and drops them, and
    nothing is sent either way. It has no file on the host and ends by itself.
  - A port on which somebody listens already, such as this cluster when it runs, is left alone; who listens there is
    what is tried then.
  - Fails only when it cannot do its work, never because of what it finds.
options:
  state:
    description:
      - V(listen) starts a listener on those O(endpoints) on which nobody listens.
      - V(probe) connects to O(probes).
      - V(done) ends the listeners of this O(run) at once. One that another run uses, too, goes on for that one.
    type: str
    choices: [listen, probe, done]
    required: true
  cluster:
    description: Name of the cluster. Required with O(state=listen) and O(state=done).
    type: str
  root:
    description: Tells simulated hosts on one machine apart; for rehearsals.
    type: str
    default: ''
  run:
    description: Text that no two runs share, so that none ends a listener that the other one still needs.
    type: str
    default: ''
  endpoints:
    description: Where to listen, for O(state=listen). At most 256.
    type: list
    elements: dict
    default: []
    suboptions:
      address:
        description: IP address of this host.
        type: str
        required: true
      port:
        description: TCP port.
        type: int
        required: true
  lifetime:
    description: Seconds after which a listener ends that nobody has ended, 1 to 600.
    type: int
    default: 120
  probes:
    description: Where to connect to, for O(state=probe). At most 16384.
    type: list
    elements: dict
    default: []
    suboptions:
      to:
        description: Name of the host that listens there, for the result.
        type: str
        required: true
      address:
        description: IP address.
        type: str
        required: true
      port:
        description: TCP port.
        type: int
        required: true
  timeout:
    description:
      - Seconds for each connection, 0.1 to 60. The kernel sends its first packet again after one second, so that with
        more than that one lost packet does no harm.
    type: float
    default: 3.0
  concurrency:
    description: Connections that are tried at the same time, 1 to 512.
    type: int
    default: 128
  budget:
    description: Seconds for all connections, 0.1 to 600. What could not be tried in that time is V(unknown).
    type: float
    default: 60.0
notes:
  - A listener leaves the login session, but a host whose C(logind.conf) says C(KillUserProcesses=yes) ends it with the
    session all the same, unless the user is root.
  - Both sides end connections by a reset, so that no port is left in the state TIME_WAIT.
extends_documentation_fragment:
  - ascend.pd_serving.reads
  - ascend.pd_serving.reads.hosts
"""

EXAMPLES = r"""
- name: Listen on the planned ports
  ascend.pd_serving.port_probe:
    state: listen
    cluster: demo
    endpoints:
      - {address: 192.0.2.21, port: 7100}
      - {address: 192.0.2.21, port: 36000}
  register: listening

- name: Connect to the other hosts
  ascend.pd_serving.port_probe:
    state: probe
    probes:
      - {to: decode-1, address: 192.0.2.22, port: 7100}
  register: probed

- name: End the listener
  ascend.pd_serving.port_probe:
    state: done
    cluster: demo
"""

RETURN = r"""
bound:
  description: Endpoints on which a listener was started.
  returned: when O(state=listen)
  type: list
  elements: dict
  sample: [{address: 192.0.2.21, port: 36000}]
live:
  description: Endpoints on which somebody listens already.
  returned: when O(state=listen)
  type: list
  elements: dict
  sample: [{address: 192.0.2.21, port: 7100}]
not_bound:
  description: Endpoints on which nobody listens and none could be made to, with the reason. To try these tells nothing.
  returned: when O(state=listen)
  type: list
  elements: dict
  sample: [{address: 192.0.2.99, port: 7100, why: 192.0.2.99 is no address of this host}]
listeners:
  description: Names of the listeners that wait for this run's O(state=done), those of earlier runs among them.
  returned: when O(state=listen)
  type: list
  elements: str
  sample: [pd_serving.listen.2a97516c354b6884.6f1d02ab]
python:
  description: Path of the Python that this ran with; empty where it is not known.
  returned: when O(state=listen)
  type: str
  sample: /usr/bin/python3
probes:
  description: One entry for each of O(probes), in the same order.
  returned: when O(state=probe)
  type: list
  elements: dict
  contains:
    to:
      description: Name of the host, as given.
      type: str
    address:
      description: The IP address.
      type: str
    port:
      description: The TCP port.
      type: int
    state:
      description:
        - V(open), the connection was made. V(refused), by a reset. V(timeout), no answer at all, as from a firewall that
          drops. V(unreachable), there is no route, or a firewall says so. V(unknown), it could not be tried.
      type: str
  sample: [{to: decode-1, address: 192.0.2.22, port: 7100, state: open}]
ended:
  description: Number of listeners that were told that this run is done.
  returned: when O(state=done)
  type: int
  sample: 1
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ascend.pd_serving.plugins.module_utils import part_options, port_probe


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(part_options.PORT_PROBE),
        required_if=part_options.PORT_PROBE_REQUIRED_IF,
        supports_check_mode=True,
    )
    try:
        result = port_probe.answer(module.params)
    except port_probe.FAULTS as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()

#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: npu_facts
short_description: Gather what the Ascend tools of a host say about its chips
version_added: 0.1.0
author: the ascend.pd_serving contributors (@ascend-pd-serving)
description:
  - Asks C(hccn_tool) and C(npu-smi) about every chip in one call, and reads C(/etc/hccn.conf), the versions of driver
    and firmware, and C(/etc/ascend_install.info).
  - Judges nothing and never fails because of what it finds. Every query has a state of its own; what cannot be read, or
    only in part, is V(unknown) and never V(ok).
  - Calls of C(hccn_tool) take turns on a host, also with those of other runs, because the tool refuses a second call
    at the same time. Each has a timeout, a busy tool is asked again a few times, and all calls have a budget.
  - Changes nothing; only queries that are listed in the module can be asked at all.
options:
  hardware:
    description: Generation of the chips, which decides what can be asked.
    type: str
    choices: [a2, a3, a5]
    required: true
  chips:
    description: Physical ids of the chips to be asked about. Without it all that have a node C(/dev/davinci<id>).
    type: list
    elements: int
  queries:
    description:
      - What to ask of every chip.
      - By default with O(hardware=a2) V(lldp), V(link), V(net_health), V(netdetect), V(gateway), V(ip), V(tls);
        with O(hardware=a3) also V(vnic) and V(spod); with O(hardware=a5) V(dev_info), V(link), V(tls), V(spod).
      - With O(hardware=a5) also V(netdetect), V(gateway), V(ip) and V(vnic) can be asked, which its default fabric does
        not need.
    type: list
    elements: str
    choices: [dev_info, gateway, ip, link, lldp, net_health, netdetect, spod, tls, vnic]
  cluster:
    description: Name of a cluster. A process on a chip is then said to be its own, or not.
    type: str
    default: ''
  base_dir:
    description: Folder of all clusters. Used with O(cluster).
    type: str
    default: /opt/pd_serving
  root:
    description: Put before every path of the host; for rehearsals.
    type: str
    default: ''
  environment:
    description:
      - Laid over the environment that the tools run with.
      - With a C(PATH) in it the tools are looked for there first, otherwise in their usual places first.
    type: dict
    default: {}
  timeout:
    description: Seconds after which a call is killed.
    type: float
    default: 10
  budget:
    description: Seconds for all calls. What is left when they are spent has the state V(timeout) and says so.
    type: float
    default: 300
extends_documentation_fragment:
  - ascend.pd_serving.reads
  - ascend.pd_serving.reads.hosts
"""

EXAMPLES = r"""
- name: Ask about all chips of an A3 host
  ascend.pd_serving.npu_facts:
    hardware: a3
  register: looked

- name: Ask only for the addresses and TLS of two chips of an A2 host
  ascend.pd_serving.npu_facts:
    hardware: a2
    chips: [4, 7]
    queries: [ip, tls]
    timeout: 5
    budget: 60
"""

RETURN = r"""
npu:
  description: What was found.
  returned: always
  type: dict
  contains:
    hardware:
      description: The generation asked for.
      type: str
    found:
      description: Physical ids that have a device node.
      type: list
      elements: int
    tools:
      description: >-
        C(hccn_tool) and C(npu_smi), each with C(path) (null where there is none), C(state) (V(ok), V(tool_missing), or
        V(denied), V(failed), V(timeout) when no call got anywhere) and C(text) when it is not V(ok).
      type: dict
    calls:
      description: >-
        C(count) of processes started, C(seconds) that they took, C(elapsed) seconds in all, C(busy_retries).
      type: dict
    hccn_conf:
      description: The file C(/etc/hccn.conf).
      type: dict
      contains:
        state:
          description: One of V(ok), V(missing), V(is_directory), V(unreadable), V(malformed), V(empty).
          type: str
        chips:
          description: >-
            Physical id, as text, to what the file says of it (C(address), C(netmask), C(netdetect), C(gateway) and
            whatever else is there). What could be read when the file is malformed.
          type: dict
        lines_not_understood:
          description: What is wrong with a malformed file, line by line.
          type: list
          elements: str
        text:
          description: Why the file is not V(ok).
          type: str
    npu_smi:
      description: The answer to C(npu-smi info).
      type: dict
      contains:
        state:
          description: As of a query. V(unknown) also for a table without its end, which could lack chips.
          type: str
        text:
          description: The beginning of the output when the state is not V(ok), otherwise empty.
          type: str
        error:
          description: >-
            With the state V(failed) V(dcmi_init) (-8005), V(device_used) (-8020, a card is in another container), or
            V(dcmi) with any other number; null otherwise.
          type: str
        code:
          description: The number of that error, or null.
          type: int
        version:
          description: Version of the driver, or null.
          type: str
        chips:
          description: >-
            Physical id, as text, to C(card), C(chip), C(name), C(health), C(bus_id), C(power_w), C(temperature_c),
            C(utilization_percent), C(hbm_used_mb), C(hbm_total_mb) (numbers are null where the tool shows none) and
            C(processes), a list of C(pid), C(name) (may be empty), C(memory_mb), C(pid_in_container) (null
            outside of one) and C(own) (whether it is a process of O(cluster); null without one).
          type: dict
    mapping:
      description: >-
        The answer to C(npu-smi info -m), a query whose C(chips) are a list of C(card), C(chip), C(logical), C(physical)
        and C(name); C(ignored) counts the rows of controllers.
      type: dict
    driver:
      description: What the files of the installation say.
      type: dict
      contains:
        driver:
          description: Version of the driver, or null.
          type: str
        firmware:
          description: Version of the firmware, or null.
          type: str
        driver_package:
          description: Version of the package that the driver came in, or null.
          type: str
        firmware_package:
          description: Version of the package that the firmware came in, or null.
          type: str
        compatible_firmware:
          description: The range of firmware versions that the driver names, as it stands in the file, or null.
          type: str
        compatible_driver:
          description: The range of driver versions that the firmware names, as it stands in the file, or null.
          type: str
        install:
          description: C(/etc/ascend_install.info).
          type: dict
        files:
          description: >-
            C(driver), C(firmware), C(install), each V(ok), V(missing), V(is_directory), V(unreadable) or V(malformed).
          type: dict
    files:
      description: >-
        With O(hardware=a5) the paths that one or the other fabric needs, each V(file), V(directory), V(dangling)
        (a link to nothing) or V(missing).
      type: dict
    chips:
      description:
        - Physical id, as text, to one answer per query asked.
        - >-
          An answer has C(state), one of V(ok), V(not_configured), V(unsupported), V(no_such_device), V(busy),
          V(timeout), V(denied), V(conf_unreadable), V(tool_missing), V(failed), V(unknown).
        - >-
          When it is not V(ok), C(text) holds the first 300 characters of the output, or why nothing was asked.
          C(exit_code) is there when it was not 0, for a person.
        - C(lldp) has C(ifname) and C(system_name), either may be null; V(not_configured) when no neighbour is heard.
        - C(link) has C(link), V(UP) or V(DOWN).
        - >-
          C(net_health) has C(net_health), V(Success), V(Socket fail), V(Receive timeout), V(Unreachable),
          V(Time exceeded), V(Fault), V(Init), V(Thread error), V(Detect ip set) or V(Unknown).
        - C(netdetect) has C(netdetect), an address.
        - C(gateway) has C(gateway) and C(iface).
        - C(ip) has C(ipaddr) and C(netmask).
        - >-
          C(vnic) has C(link) (of the vNIC), C(ipaddr) and C(netmask); V(not_configured) with C(link) when it
          shows no address.
        - >-
          An address that no chip can have (loopback, multicast, a subnet's first or last) is V(unknown), with C(ipaddr)
          and C(netmask).
        - With V(not_configured) the field of an address is there and null.
        - >-
          C(tls) has C(tls_switch) (0 or 1), C(preconfigured) (0, 1 or null), C(alarm_days) (or null), C(certificates) (a
          count, null when nothing is said of any) and C(cert_expiration), the worst of V(normal), V(near expiration), V(has expired), or null.
        - >-
          C(spod) has C(sdid), C(super_pod_size), C(super_pod_id), C(server_index), C(chassis_id), C(super_pod_type); null
          where the generation has none. 0 is an id like any other.
        - >-
          C(dev_info) (A5) has C(ports), a list of C(udie), C(port), C(speed_gbps), C(type), C(link), C(media), and
          C(eids), UDMA device to its EIDs.
        - >-
          C(link) of A5 has C(link), V(UP), V(DOWN), V(NA) or V(PARTIAL LINK) over all ports, and C(ports), a list of
          C(udie), C(port) and C(link). When a port cannot be read, the answer is that port's, with C(udie) and C(port).
      type: dict
  sample:
    hardware: a3
    found: [0, 1]
    tools:
      hccn_tool: {path: /usr/local/Ascend/driver/tools/hccn_tool, state: ok}
      npu_smi: {path: /usr/local/bin/npu-smi, state: ok}
    calls: {count: 20, seconds: 1.02, elapsed: 1.05, busy_retries: 0}
    hccn_conf:
      state: ok
      chips: {'0': {address: 192.0.2.80, netmask: 255.255.255.0}}
      lines_not_understood: []
    npu_smi:
      state: ok
      text: ''
      error: null
      code: null
      version: 25.2.0
      chips:
        '0':
          card: 0
          chip: 0
          name: Ascend910
          health: OK
          bus_id: 0000:9D:00.0
          power_w: 174.3
          temperature_c: 37
          utilization_percent: 0
          hbm_used_mb: 3440
          hbm_total_mb: 65536
          processes:
            - {pid: 4711, name: python3, memory_mb: 54775, pid_in_container: null, own: null}
    driver:
      driver: 25.2.0
      firmware: 7.7.0.6.236
      install: {Driver_Install_Path_Param: /usr/local/Ascend}
    chips:
      '0':
        link: {state: ok, link: UP}
        gateway:
          state: not_configured
          gateway: null
          text: Get gateway failed, because no gateway was preset there!
          exit_code: 13
        vnic: {state: ok, link: UP, ipaddr: 192.0.2.199, netmask: 255.255.255.0}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ascend.pd_serving.plugins.module_utils import part_options
from ansible_collections.ascend.pd_serving.plugins.module_utils.npu import facts


def main() -> None:
    module = AnsibleModule(argument_spec=dict(part_options.NPU_FACTS), supports_check_mode=True)
    try:
        result = facts.answer(module.params)
    except facts.FAULTS as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, npu=result)


if __name__ == "__main__":
    main()

#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: host_check
short_description: Check that a host has what a plan needs
version_added: 0.1.0
author: the ascend.pd_serving contributors (@ascend-pd-serving)
description:
  - Looks for device nodes, files, folders, commands and free ports, and returns everything that is missing at once.
  - With O(engine=docker) also for what containers need, the daemon, the image, chips and names that no other
    container has. It asks the daemon itself, and needs neither the docker command nor any library for that.
  - With O(facts=true) also tells what the host is, without judging it, so that hosts can be compared.
  - Never fails because of what it finds, and changes nothing.
options:
  chips:
    description: Physical ids of the chips that are needed, C(/dev/davinci<id>).
    type: list
    elements: int
    default: []
  device_nodes:
    description: Names of the other device nodes below C(/dev).
    type: list
    elements: str
    default: []
  ports:
    description: Port ranges that must be free, but for what running units of this cluster hold.
    type: list
    elements: dict
    default: []
    suboptions:
      first:
        description: First port.
        type: int
        required: true
      last:
        description: Last port.
        type: int
        required: true
      owner:
        description: What takes the ports, for the message.
        type: str
        default: ''
      variable:
        description: Variable that places them.
        type: str
        default: ''
      address:
        description: Address they are bound on; empty for all addresses.
        type: str
        default: ''
  paths:
    description: Files and folders that must exist.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Path on the host.
        type: str
        required: true
      type:
        description: What it must be.
        type: str
        choices: [file, directory, any]
        default: any
      variable:
        description: Variable that names it.
        type: str
        default: ''
      why:
        description: What needs it, for the message.
        type: str
        default: ''
  executables:
    description: Commands that must be found.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: A name to be found in C(PATH), or an absolute path.
        type: str
        required: true
      variable:
        description: Variable that names it.
        type: str
        default: ''
      why:
        description: What needs it, for the message.
        type: str
        default: ''
  environment:
    description: Laid over the environment before C(PATH) is searched.
    type: dict
    default: {}
  engine:
    description: Container engine that the units need.
    type: str
    choices: [none, docker]
    default: none
  containers:
    description:
      - Names of the units, and so of the containers, that this cluster has on this host. What else of it holds a port is in
        the way.
      - A container is this cluster's own when its label C(pd_serving.cluster) says so.
    type: list
    elements: str
    default: []
  image:
    description: Image that the containers are made of, by tag or digest. Used with O(engine=docker).
    type: str
    default: ''
  image_source:
    description:
      - Archive on the host that the image is loaded from when it is missing, as C(docker save) writes it. It is then
        looked at, and whether the image fits onto the disk.
      - Empty when the image would be pulled; whether that works is not checked.
    type: str
    default: ''
  reserved_ports:
    description: Ports that the kernel shall keep out of its ephemeral range; left out when nothing is asked.
    type: str
  hugepages:
    description: Number of hugepages that the kernel shall have; left out when nothing is asked.
    type: int
  sysctl_file:
    description: File that keeps both.
    type: path
    default: /etc/sysctl.d/90-pd_serving.conf
  mooncake_state:
    description: Folder in which role mooncake keeps what it has found; left out when it is not to look.
    type: path
  facts:
    description: Return RV(facts) as well.
    type: bool
    default: false
  models:
    description: Folders of models, as absolute paths on the host, to be told of in RV(facts). Used with O(facts=true).
    type: list
    elements: str
    default: []
  disks:
    description:
      - Absolute paths on the host whose room is to be told in RV(facts); one that does not exist yet stands for its
        nearest parent that does. Used with O(facts=true).
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - ascend.pd_serving.site
  - ascend.pd_serving.reads
  - ascend.pd_serving.reads.hosts
"""

EXAMPLES = r"""
- name: Look at a decode host
  ascend.pd_serving.host_check:
    cluster: demo
    chips: [0, 1, 2, 3]
    device_nodes: [davinci_manager, devmm_svm, hisi_hdc]
    ports:
      - {first: 7100, last: 7115, owner: the API of decode, variable: pd_api_port, address: 192.0.2.21}
    paths:
      - {path: /models/demo, type: directory, variable: pd_model_path, why: the weights}
    executables:
      - {name: npu-smi, variable: pd_hardware, why: the driver}
    engine: docker
    containers: [pd-demo-decode]
    image: quay.io/ascend/vllm-ascend:v0.23.0-a3
    image_source: /srv/images/vllm-ascend.tar
  register: looked

- name: Look at it and say what it is
  ascend.pd_serving.host_check:
    cluster: demo
    facts: true
    models: [/models/demo]
    disks: [/opt/pd_serving, /var/lib/docker]
  register: looked
"""

RETURN = r"""
findings:
  description: Everything that is wrong; empty when nothing is.
  returned: always
  type: list
  elements: dict
  contains:
    check:
      description:
        - One of V(chip), V(device), V(path), V(executable), V(port).
        - With O(engine=docker) also V(requests) (the Python library), V(docker) (the daemon), V(container) (one of
          somebody else), V(image), V(space).
      type: str
    severity:
      description: V(error), or V(warning) for what may be right, or the next start puts right by itself.
      type: str
    variable:
      description: Variable that the value comes from; may be empty.
      type: str
    value:
      description: The chip, name, path or port; a list of chips where another container holds them; or null.
      type: raw
    message:
      description: What is wrong, and who is in the way.
      type: str
    fix:
      description: What to do.
      type: str
  sample:
    - check: port
      severity: error
      variable: pd_api_port
      value: 7100
      message: 'port 7100-7115 of the API of decode: 0.0.0.0:7100 is taken by pid 4711 (nginx)'
      fix: end that process, or set pd_api_port to other ports
prepare:
  description:
    - What of a host for containers is not yet as asked for. V(requests), the Python library is missing; V(kernel),
      O(reserved_ports) or O(hugepages) do not hold or are not kept; V(image), O(image) is not there; V(mooncake), its
      Mooncake has not been looked at, or does not load.
    - Empty with O(engine=none).
  returned: always
  type: list
  elements: str
  sample: [kernel, image]
docker:
  description: The docker daemon; null when it was not looked for or cannot be asked.
  returned: always
  type: dict
  contains:
    version:
      description: Its version.
      type: str
    api_version:
      description: Version of its interface.
      type: str
  sample: {version: 28.2.2, api_version: '1.50'}
facts:
  description:
    - What the host is. A key that could not be read is missing, and a warning says why.
    - RV(findings) are a part of what preflight judges, and are not repeated here.
  returned: when O(facts=true)
  type: dict
  contains:
    kernel:
      description: The kernel's release.
      type: str
    memory_total_mb:
      description: Memory, in MiB.
      type: int
    memory_available_mb:
      description: Memory that could be had without swapping, in MiB.
      type: int
    hugepages_total:
      description: Huge pages of the usual size.
      type: int
    hugepages_free:
      description: Those that nobody uses.
      type: int
    hugepage_kb:
      description: Their size, in KiB.
      type: int
    clock:
      description: C(host) is the host's clock, in seconds since 1970, read at the end.
      type: dict
    disks:
      description: For each of O(disks) the MiB that are free; null where that cannot be read.
      type: dict
    nics:
      description:
        - Network cards by name. C(addresses) with prefix length, IPv4 and IPv6; C(mtu); C(state), V(up), V(down) or
          V(unknown), the last one also for a card such as C(lo) whose driver does not tell.
        - The kernel is asked over netlink, so that the command C(ip) is not needed.
      type: dict
    docker:
      description:
        - C(version) of the daemon and, when O(image) was asked for, C(image) with C(present) and C(digest), the image's
          id. Null with O(engine=none) and where the daemon cannot be asked.
      type: dict
    models:
      description:
        - For each of O(models) its C(state), V(ok), V(missing) or V(unreadable). When it is V(ok) also C(config_digest)
          and C(index_digest), the SHA-256 of C(config.json) and of the index of the weights, or null where there is no
          such file, and C(count) and C(bytes), number and size of the files C(*.safetensors) and C(*.bin) in it.
        - Weights are never read.
      type: dict
    own_pids:
      description:
        - Processes of this cluster, as the host counts them, in containers and outside, with all that descends from
          them and what a launcher that was killed has left behind.
      type: list
      elements: int
  sample:
    kernel: 5.10.0-216.0.0.115.oe2203sp4.aarch64
    memory_total_mb: 1547520
    memory_available_mb: 1498231
    hugepages_total: 0
    hugepages_free: 0
    hugepage_kb: 2048
    clock: {host: 1786000000.25}
    disks: {/opt/pd_serving: 812345}
    nics: {eth0: {addresses: [192.0.2.21/24], mtu: 1500, state: up}}
    docker: null
    models:
      /models/demo:
        state: ok
        config_digest: 0f1d0ed5ed4f2ee0ebd1cbd05a20e1b1d1e7f0a9b2f3a2f9fbbfca4a1f0f8b0c
        index_digest: null
        count: 163
        bytes: 688586727753
    own_pids: [4711, 4712]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ascend.pd_serving.plugins.module_utils import host_look, part_options


def main() -> None:
    module = AnsibleModule(argument_spec=dict(part_options.HOST_CHECK), supports_check_mode=True)
    try:
        result = host_look.answer(module.params)
    except host_look.FAULTS as error:
        module.fail_json(msg=str(error))
    for warning in result.pop("warnings"):
        module.warn(warning)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()

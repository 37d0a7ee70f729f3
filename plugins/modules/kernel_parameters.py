#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_parameters
author: the ascend.pd_serving contributors (@ascend-pd-serving)
version_added: 0.1.0
short_description: Reserve ports and set hugepages, keeping what others have reserved
description:
  - Adds ports to net.ipv4.ip_local_reserved_ports. The kernel replaces its whole list by the value written, so the ports
    that are reserved already, by this or any other cluster, stay in it.
  - Writes the same value to a file below /etc/sysctl.d, so that it holds after a reboot.
options:
  reserved_ports:
    description: Ports to reserve, as the kernel writes them, for instance V(7100-7115,12321).
    type: str
  hugepages:
    description: Value of vm.nr_hugepages.
    type: int
  file:
    description: File that keeps the values.
    type: path
    default: /etc/sysctl.d/90-pd_serving.conf
attributes:
  check_mode:
    description: Reports what would change.
    support: full
  diff_mode:
    description: Shows the file and the running values.
    support: full
"""

EXAMPLES = r"""
- name: Keep outgoing connections off the planned ports
  ascend.pd_serving.kernel_parameters:
    reserved_ports: 7100-7115,12321,36000-36015,60000-60031
"""

RETURN = r"""
values:
  description: The values that hold now, by parameter.
  type: dict
  returned: success
  sample: {"net.ipv4.ip_local_reserved_ports": "7100-7115,12321"}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ascend.pd_serving.plugins.module_utils import kernel


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "reserved_ports": {"type": "str"},
            "hugepages": {"type": "int"},
            "file": {"type": "path", "default": "/etc/sysctl.d/90-pd_serving.conf"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        change = kernel.plan(params["file"], params["reserved_ports"], params["hugepages"])
        if change.needed and not module.check_mode:
            kernel.apply(change)
    except (kernel.KernelError, OSError) as problem:
        module.fail_json(msg=str(problem))
    module.exit_json(
        changed=change.needed,
        values=change.values,
        diff={
            "before": change.before,
            "after": change.after,
            "before_header": change.file,
            "after_header": change.file,
        },
    )


if __name__ == "__main__":
    main()

#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: aisbench_setup
short_description: Install AISBench into an environment of its own
version_added: 0.1.0
author: the ascend.pd_serving contributors (@ascend-pd-serving)
description:
  - Makes a virtual environment, installs AISBench's published package into it, and starts its command once, since it
    also installs where its own dependencies do not fit together.
  - Does nothing when the environment holds what was asked for.
options:
  venv:
    description: Folder of the environment.
    type: path
    required: true
  package:
    description: What pip installs; a requirement, or a file.
    type: str
    required: true
  constraints:
    description: Limits for the packages that it brings, as in pip's constraint files.
    type: list
    elements: str
    default: []
  pip_arguments:
    description: More arguments for C(pip install), for instance an index of your own.
    type: list
    elements: str
    default: []
  python:
    description: Interpreter to make the environment with; 3.10 or newer. By default one that is found.
    type: path
attributes:
  check_mode:
    support: full
    description: Says whether it would install.
  diff_mode:
    support: none
    description: There is nothing to compare.
  platform:
    support: full
    platforms: linux
    description: Where the module works.
"""

EXAMPLES = r"""
- name: Install AISBench
  ascend.pd_serving.aisbench_setup:
    venv: /var/lib/pd_serving/benchmark/aisbench
    package: ais-bench-benchmark
    constraints: ["pyarrow<21", "setuptools<81"]
"""

RETURN = r"""
version:
  description: Version of AISBench that is installed.
  returned: unless check mode would install it
  type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ascend.pd_serving.plugins.module_utils import aisbench


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "venv": {"type": "path", "required": True},
            "package": {"type": "str", "required": True},
            "constraints": {"type": "list", "elements": "str", "default": []},
            "pip_arguments": {"type": "list", "elements": "str", "default": []},
            "python": {"type": "path"},
        },
        supports_check_mode=True,
    )
    params = module.params
    environment = aisbench.Environment(
        params["venv"],
        params["package"],
        tuple(params["constraints"]),
        tuple(params["pip_arguments"]),
        params["python"],
    )
    try:
        changed = not environment.is_there()
        if changed and module.check_mode:
            environment.find_python()
            module.exit_json(changed=True)
        if changed:
            environment.make()
        module.exit_json(changed=changed, version=environment.version())
    except (aisbench.AisbenchError, OSError) as problem:
        module.fail_json(msg=str(problem))


if __name__ == "__main__":
    main()

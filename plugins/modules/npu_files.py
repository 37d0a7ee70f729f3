#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: npu_files
short_description: Write hccn.conf and the endpoint files of Host RoCE
version_added: 0.1.0
author: the ascend.pd_serving contributors (@ascend-pd-serving)
description:
  - Writes the files that tell chips their network addresses. All faults of all files are reported together, before the
    first file is written.
  - A file that says something else is never replaced unless O(overwrite=true); the failure shows how it differs.
  - An endpoint file is only written when its C(comm_id) is an address that the host really has.
options:
  root:
    description: Put before every path of the host; for rehearsals.
    type: str
    default: ''
  endpoint_files:
    description: Endpoint files, as the host's slice of the plan has them.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Path on the host; the name is C(ub_endpoint_npu_<physical id>.json).
        type: str
        required: true
      content:
        description: The whole content, JSON.
        type: str
        required: true
  hccn_conf:
    description:
      - Values of C(hccn.conf) by physical id, each with C(address) and C(netmask), and perhaps C(gateway),
        C(netdetect), C(send_arp_status). Empty when the file is not asked for.
      - What else the file says stays in it.
    type: dict
    default: {}
  hccn_conf_path:
    description: Where that file is.
    type: str
    default: /etc/hccn.conf
  chips:
    description: Physical ids of the chips in use, for the proposal.
    type: list
    elements: int
    default: []
  node_ip:
    description: The host's own address, which is never proposed for a chip.
    type: str
    default: ''
  overwrite:
    description: Replace files that say something else, after a copy of each was made beside it.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Reports what would be written, and refuses what would be refused.
  diff_mode:
    support: full
    description: Shows the files.
  platform:
    support: full
    platforms: linux
    description: Where the module works.
"""

EXAMPLES = r"""
- name: Write the endpoint files of this host
  ascend.pd_serving.npu_files:
    endpoint_files: "{{ lookup('ascend.pd_serving.host_plan').endpoint_files }}"

- name: Lay down hccn.conf
  ascend.pd_serving.npu_files:
    hccn_conf:
      0: {address: 192.0.2.80, netmask: 255.255.255.0, gateway: 192.0.2.1}
      1: {address: 192.0.2.81, netmask: 255.255.255.0, gateway: 192.0.2.1}
"""

RETURN = r"""
files:
  description: What was done, by path; one of V(written), V(replaced), V(unchanged).
  returned: success
  type: dict
  sample: {/etc/hixlep/ub_endpoint_npu_0.json: written}
backups:
  description: Copies of what was replaced.
  returned: success
  type: list
  elements: str
  sample: [/etc/hccn.conf.4711.2026-01-01@12:00:00~]
proposal:
  description:
    - Physical id to address, both in ascending order over the cards with RDMA. A proposal to be confirmed on the host.
    - Empty when the host has not as many such addresses as chips in use.
  returned: always
  type: dict
  sample: {'0': 192.0.2.80, '1': 192.0.2.81}
"""

import os
import tempfile
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ascend.pd_serving.plugins.module_utils import npu_files


def wanted_files(params: dict[str, t.Any], here: set[str] | None) -> list[npu_files.Wanted]:
    """All files as they shall be. Raises NpuFileError with everything that is wrong with them."""
    root = params["root"]
    files = [npu_files.Wanted(root + entry["path"], entry["content"]) for entry in params["endpoint_files"]]
    faults = npu_files.endpoint_faults(files, here)
    if params["hccn_conf"]:
        chips = {str(chip): values for chip, values in params["hccn_conf"].items()}
        wrong = [f"hccn_conf: {fault}" for fault in npu_files.hccn_faults(chips)]
        faults += wrong
        if not wrong:
            path = root + params["hccn_conf_path"]
            try:
                files.append(npu_files.Wanted(path, npu_files.hccn_content(chips, npu_files.read(path) or "")))
            except npu_files.NpuFileError as problem:
                faults.append(str(problem))
    if faults:
        raise npu_files.NpuFileError("\n".join(faults))
    return files


def compare(files: list[npu_files.Wanted], overwrite: bool) -> tuple[dict[str, str], list[dict[str, str]]]:
    """({path: what to do}, diffs). Raises NpuFileError with every file that would be replaced and must not be."""
    actions: dict[str, str] = {}
    diffs, faults = [], []
    for file in files:
        try:
            before = npu_files.read(file.path)
        except npu_files.NpuFileError as problem:
            faults.append(str(problem))
            continue
        if before is not None and (before == file.content or npu_files.same_json(before, file.content)):
            actions[file.path] = "unchanged"
            continue
        # An empty file says nothing that could be lost.
        before = before if before and before.strip() else None
        actions[file.path] = "written" if before is None else "replaced"
        diffs.append(
            {"before": before or "", "after": file.content, "before_header": file.path, "after_header": file.path}
        )
        if before is not None and not overwrite:
            faults.append(
                f"{file.path} is there and says something else:\n{npu_files.difference(file.path, before, file.content)}"
            )
    if faults:
        raise npu_files.NpuFileError("\n".join(faults))
    return actions, diffs


def write(module: AnsibleModule, file: npu_files.Wanted) -> None:
    """Put the file there as a whole; readable by all, since containers of other users read it too."""
    folder = os.path.dirname(file.path)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=folder)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(file.content)
    os.chmod(temporary, 0o644)
    module.atomic_move(temporary, file.path)


def refusal(faults: str, overwrite: bool, proposed: dict[int, str]) -> str:
    """All faults, what to do, and the proposal as it would stand in the inventory."""
    lines = ["no file was written.", faults, "Fix: correct pd_roce_addresses (endpoint files) or hccn_conf."]
    if "says something else" in faults and not overwrite:
        lines.append("Or look at the difference, and replace it with -e hccn_overwrite=true (a copy is kept).")
    if proposed:
        lines += [
            "A proposal, chips and the addresses of cards with RDMA both in ascending order. Confirm it on the host:",
            "pd_roce_addresses:",
            *(f"  {chip}: {address}" for chip, address in proposed.items()),
        ]
    return "\n".join(lines)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "str", "default": ""},
            "endpoint_files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {"path": {"type": "str", "required": True}, "content": {"type": "str", "required": True}},
            },
            "hccn_conf": {"type": "dict", "default": {}},
            "hccn_conf_path": {"type": "str", "default": "/etc/hccn.conf"},
            "chips": {"type": "list", "elements": "int", "default": []},
            "node_ip": {"type": "str", "default": ""},
            "overwrite": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    proposed: dict[int, str] = {}
    try:
        here, candidates = npu_files.addresses_here(params["root"])
        candidates = [address for address in candidates if address != params["node_ip"]]
        if params["chips"] and len(candidates) == len(set(params["chips"])):
            proposed = npu_files.proposal(set(params["chips"]), candidates)
        files = wanted_files(params, here)
        actions, diffs = compare(files, params["overwrite"])
        backups = []
        for file in files:
            if actions[file.path] == "unchanged" or module.check_mode:
                continue
            if actions[file.path] == "replaced":
                backups.append(module.backup_local(file.path))
            write(module, file)
    except (npu_files.NpuFileError, OSError) as problem:
        module.fail_json(msg=refusal(str(problem), params["overwrite"], proposed), proposal=proposed)
    changed = any(action != "unchanged" for action in actions.values())
    module.exit_json(changed=changed, files=actions, backups=backups, proposal=proposed, diff=diffs)


if __name__ == "__main__":
    main()

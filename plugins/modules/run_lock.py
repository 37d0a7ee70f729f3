#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: run_lock
short_description: Let only one run at a time change a cluster
version_added: 0.1.0
author: the ascend.pd_serving contributors (@ascend-pd-serving)
description:
  - Takes and gives back the lock of a cluster on a host, the file C(<base_dir>/<cluster>/run.lock). A run takes it on
    every host that it changes, so that runs with different limits meet where they overlap.
  - Fails when another run has the lock, and says who, since when, doing what, and how to go on all the same.
  - A lock is stale, and is taken over with a warning, when it is too old, or when the run that has it was started on
    this controller and has ended.
  - A lock is no configuration of a host, so nothing of this ever counts as a change.
options:
  state:
    description:
      - V(taken) takes the lock. The run that has it already renews it, so that it does not become stale.
      - V(released) gives it back. A lock that another run has taken over in the meantime is left alone, with a warning.
    type: str
    choices: [taken, released]
    default: taken
  verb:
    description: What the run does, for the message that others get; for instance the playbook's name.
    type: str
    default: ''
  owner:
    description:
      - Whose run it is, for the message that others get.
      - Without it the user and host on the controller, and the process id of the run.
    type: str
    default: ''
  run_id:
    description:
      - Text that no two runs share. Only the run that took a lock renews it and gives it back.
      - Without it one that names the controller's process, by which runs of this controller that have ended are known.
    type: str
    default: ''
  ended_run:
    description: The C(run_id) of a run that is known to have ended; only its lock is taken over whatever its age.
    type: str
    default: ''
  max_age_seconds:
    description: Age from which a lock is stale. Longer than any run may go on without renewing its lock.
    type: int
    default: 7200
  force:
    description: Take over the lock whoever has it, with a warning.
    type: bool
    default: false
extends_documentation_fragment:
  - ascend.pd_serving.site
attributes:
  check_mode:
    support: full
    description: Takes nothing, gives nothing back, and only warns when another run has the lock.
  diff_mode:
    support: none
    description: There is nothing to compare.
  platform:
    support: full
    platforms: linux
    description: Where the module works.
"""

EXAMPLES = r"""
- name: Keep other runs away from the cluster
  ascend.pd_serving.run_lock:
    cluster: demo
    verb: site
    force: "{{ lock_force | default(false) }}"

- name: Let other runs change the cluster again
  ascend.pd_serving.run_lock:
    state: released
    cluster: demo
"""

RETURN = r"""
action:
  description:
    - V(taken), V(renewed), V(taken_over) or V(refused).
    - V(released), V(absent) (there was no lock) or V(not_ours) (another run has it by now).
    - In check mode what it would have been.
  returned: always
  type: str
note:
  description: What a person should know about it; also given as a warning. Empty when all is as usual.
  returned: success
  type: str
holder:
  description: The run that has the lock now; null when none has.
  returned: always
  type: dict
  contains:
    owner:
      description: Whose run it is.
      type: str
    run_id:
      description: Its id.
      type: str
    verb:
      description: What it does.
      type: str
    since:
      description: When it took the lock, in seconds since 1970.
      type: float
    age_seconds:
      description: How long ago it took or renewed it.
      type: float
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ascend.pd_serving.plugins.module_utils import run_lock


def main() -> None:
    module = AnsibleModule(argument_spec=dict(run_lock.OPTIONS), supports_check_mode=True)
    told = run_lock.answer({**module.params, "check_mode": module.check_mode})
    if told.get("failed"):
        module.fail_json(**told)
    if told["note"]:
        module.warn(told["note"])
    module.exit_json(**told)


if __name__ == "__main__":
    main()

#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: launch_info
short_description: Tell what the units of a cluster on a host are doing
version_added: 0.1.0
author: the ascend.pd_serving contributors (@ascend-pd-serving)
description:
  - Reads the state of the launchers on this host and asks the health page of every rank.
  - With O(wait_seconds) it waits on the host until every rank is ready, so that a gate over many hosts needs one task.
  - Works for units in containers too, as long as their folders are mounted from this host.
  - Changes nothing, and uses no proxy whatever the environment says.
options:
  units:
    description:
      - Units to tell about. Others that are found on the host are reported with RV(units.unknown) set.
      - Without this option all units that are found are reported, and none is unknown.
    type: list
    elements: dict
    suboptions:
      name:
        description: Name of the unit.
        type: str
        required: true
      spec:
        description:
          - Launch spec to compare with the one that runs, for RV(units.current), and to judge, for RV(units.problem).
        type: dict
      files:
        description: Not looked at; allowed so that what M(ascend.pd_serving.launch) is given can be given here.
        type: list
        elements: dict
        default: []
  environment:
    description:
      - What O(ascend.pd_serving.launch#module:environment) would be given. With it a spec is also refused when one of
        its commands is not found; without it, and in check mode, commands are not looked for.
    type: dict
  wait_seconds:
    description:
      - Wait up to this long until every process of the units is ready.
      - Ends at once when a unit has ended, or when a process answered its health page wrongly several times in a row.
    type: float
    default: 0
  tail_lines:
    description: Lines to return from the log of every process; of one that ended it is at least 20.
    type: int
    default: 1
  log_pattern:
    description:
      - Regular expression (Python's). Lines of the logs that match are counted and returned.
    type: str
  log_marks:
    description:
      - Where to begin looking for O(log_pattern), by unit and process, as RV(units.processes.log_mark) of an earlier
        call. Without it the whole log is searched.
    type: dict
    default: {}
extends_documentation_fragment:
  - ascend.pd_serving.site
  - ascend.pd_serving.site.logs
  - ascend.pd_serving.reads
  - ascend.pd_serving.reads.hosts
seealso:
  - module: ascend.pd_serving.launch
"""

EXAMPLES = r"""
- name: Wait up to half a minute for the ranks of this host
  ascend.pd_serving.launch_info:
    cluster: demo
    units:
      - name: pd-demo-decode
    wait_seconds: 30
  register: ranks

- name: Look for failed transfers
  ascend.pd_serving.launch_info:
    cluster: demo
    log_pattern: Mooncake transfer failed
"""

RETURN = r"""
verdict:
  description:
    - V(ready) when every process of every unit runs and is ready, V(ended) when a unit does not run, V(unhealthy) when
      a process answers its health page wrongly, else V(waiting).
  returned: always
  type: str
waited_seconds:
  description: How long the module has waited.
  returned: always
  type: float
now:
  description: The host's time at the end, in seconds since 1970; for comparing with RV(units.since).
  returned: always
  type: float
units:
  description: The units, by name.
  returned: always
  type: dict
  contains:
    deployed:
      description: Whether there is a launch spec on the host.
      type: bool
    running:
      description: Whether a launcher lives and has not begun to end its processes.
      type: bool
    current:
      description: Whether it runs (or would be started) with the spec that was given; false when none was given.
      type: bool
    problem:
      description: Why the launcher would refuse the spec that was given; null when it would not, or none was given.
      type: str
    pid:
      description: Process id of the launcher, as it sees itself.
      type: int
    contained:
      description: Whether the launcher lives in a container, where process ids are other ones than the host's.
      type: bool
    since:
      description: When the launcher started, in seconds since 1970.
      type: float
    phase:
      description: One of V(running), V(stopping), V(ended), V(lost) (the launcher was killed), V(none).
      type: str
    reason:
      description: Why the unit ended or is ending; null while it runs.
      type: str
    end:
      description: C(at), C(code) and C(reason) of the end; null unless it ended.
      type: dict
    ready:
      description: How many processes are ready.
      type: int
    unknown:
      description: Whether this unit is on the host without having been asked for.
      type: bool
    processes:
      description: The processes of the unit, in the order of its spec.
      type: list
      elements: dict
      contains:
        name:
          description: Name in the spec.
          type: str
        label:
          description: What messages call it.
          type: str
        pid:
          description: Process id, as the launcher sees it; null when it does not run.
          type: int
        running:
          description: Whether it runs.
          type: bool
        code:
          description: Exit code, 128 + n for signal n; null while it runs.
          type: int
        ended_at:
          description: When it ended, in seconds since 1970.
          type: float
        log:
          description: Path of its log.
          type: str
        health_url:
          description: Its health page; null for a headless engine.
          type: str
        health:
          description: One of V(ready), V(loading), V(unhealthy), V(none) (it does not run).
          type: str
        answer:
          description: What the health page answered.
          type: str
        last_line:
          description: Last line of its log since it was started.
          type: str
        tail:
          description: Last lines of its log, when it ended or O(tail_lines) asked for more than one.
          type: list
          elements: str
        log_mark:
          description: How far its log has been written, for O(log_marks).
          type: str
        matches:
          description: C(count) and first C(lines) that match O(log_pattern), when that was given.
          type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ascend.pd_serving.plugins.module_utils import part_options, unit_report


def main() -> None:
    module = AnsibleModule(argument_spec=dict(part_options.LAUNCH_INFO), supports_check_mode=True)
    # What is planned need not be there in check mode.
    params = {**module.params, "environment": None if module.check_mode else module.params["environment"]}
    module.no_log_values.update(unit_report.secrets(params))
    try:
        answer = unit_report.answer(params)
    except unit_report.FAULTS as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **answer)


if __name__ == "__main__":
    main()

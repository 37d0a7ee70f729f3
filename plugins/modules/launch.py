#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: launch
short_description: Start and stop the supervised processes of a cluster on a host
version_added: 0.1.0
author: the ascend.pd_serving contributors (@ascend-pd-serving)
description:
  - Brings the units of one cluster on this host into the wanted state. A unit is one placement of an instance (all its
    ranks), or the proxy; one launcher supervises it.
  - A unit that runs with the wanted launch spec is not touched.
  - Every spec is checked before anything is stopped, so a unit stays up when its new spec is refused.
  - All units that have to stop do so before the first one is started.
  - Starts and stops without a container engine (C(pd_runtime=process)). A unit in a container is written by this
    module, and started and stopped with its container.
options:
  state:
    description:
      - V(started) makes every unit of O(units) run with its spec; other units on the host are left alone.
      - V(written) writes what every unit of O(units) is started from, and starts nothing. A unit that runs is not
        touched at all, whatever it runs with, unless it is named in O(restart). The commands of a spec are not looked
        for, because they are in the container.
      - V(stopped) ends the units of O(units), or all units of the cluster on this host when O(units) is empty, and
        fails unless nothing of them is left. Files and logs stay. A unit that runs in a container is refused before
        anything is stopped.
    type: str
    choices: [started, stopped, written]
    default: started
  units:
    description: The units this is about.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the unit, for instance V(pd-demo-decode).
        type: str
        required: true
      spec:
        description:
          - The launch spec, written as C(launch.json) into the unit's folder. Required unless O(state=stopped).
          - The settings of its container can be in it as C(container); a change of them is then a change of the spec.
        type: dict
      files:
        description:
          - Files for people, beside the spec. A change of one is written, but starts nothing anew.
        type: list
        elements: dict
        default: []
        suboptions:
          path:
            description: Path below the unit's folder.
            type: str
            required: true
          content:
            description: The whole content.
            type: str
            required: true
          mode:
            description: Permissions, in octal.
            type: str
            default: '0600'
  restart:
    description:
      - Names of units in O(units) to start anew even when they run with their spec.
      - With O(state=written), names of units to write even when they run, because they will be stopped and started.
        Check mode needs it most, where nothing has stopped them.
    type: list
    elements: str
    default: []
  environment:
    description:
      - Laid over the environment that the launcher is started with. A change of it alone starts nothing anew.
    type: dict
    default: {}
  stop_timeout:
    description:
      - Seconds that a launcher has for an ordered stop before it and all it started are killed.
      - By default the C(stop_grace_seconds) of the spec that runs, and 15 seconds more.
    type: float
extends_documentation_fragment:
  - ascend.pd_serving.site
  - ascend.pd_serving.site.logs
attributes:
  check_mode:
    support: full
    description: Says what would be done, and refuses what would be refused, without changing anything.
  diff_mode:
    support: full
    description: Shows how a launch spec changes, with values that look like secrets masked.
  platform:
    support: full
    platforms: linux
    description: Where the module works.
seealso:
  - module: ascend.pd_serving.launch_info
"""

EXAMPLES = r"""
- name: Start the ranks of a placement
  ascend.pd_serving.launch:
    cluster: demo
    units:
      - name: pd-demo-decode
        spec:
          schema: 1
          unit: pd-demo-decode
          processes:
            - name: rank0
              label: rank 0
              argv: [vllm, serve, /models/demo, --port, '7100']
              env: {ASCEND_RT_VISIBLE_DEVICES: '0,1'}
              health_url: http://192.0.2.21:7100/health

- name: Write what a container is started from
  ascend.pd_serving.launch:
    state: written
    cluster: demo
    units:
      - name: pd-demo-decode
        spec: "{{ spec }}"

- name: Stop whatever this cluster runs here
  ascend.pd_serving.launch:
    cluster: demo
    state: stopped
"""

RETURN = r"""
units:
  description: What was done, by unit.
  returned: always
  type: dict
  contains:
    action:
      description:
        - One of V(started), V(restarted), V(stopped), V(written), V(unchanged), V(kept), V(absent).
        - V(stopped) is also a unit that had ended by itself or was never started; its state then says that it is down by order.
        - V(kept) is a unit that runs with another spec than the one that should have been written.
      type: str
    reason:
      description: Why.
      type: str
    pid:
      description: Process id of the launcher that runs now, as it sees itself; null when none does.
      type: int
    files:
      description:
        - Extra files that were written.
        - With O(state=written) all files that were written, and the log folder when it was made.
      type: list
      elements: str
    mounts:
      description: The mounts of its container, from where this host has what is mounted. With O(state=written).
      type: list
      elements: str
  sample:
    pd-demo-decode: {action: restarted, reason: the launch spec changed, pid: 4711, files: []}
"""

import os
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ascend.pd_serving.plugins.module_utils import launcher, units


def launcher_source() -> str:
    """The text of the launcher as this module carries it: there is one copy, also in what Ansible sends to a host."""
    get_source = getattr(launcher.__spec__.loader, "get_source", None)
    source = get_source(launcher.__name__) if get_source is not None else None
    if not isinstance(source, str):
        raise units.UnitError("the source of the launcher cannot be read")
    return source


CHANGES = ("started", "restarted", "stopped", "written")


class Launch:
    """One run of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        params = module.params
        self.site = units.site_of(params)
        self.environ = units.launch_environment(params["environment"])
        self.results: dict[str, dict[str, t.Any]] = {}
        self.diffs: list[dict[str, str]] = []
        self.changed = False

    def run(self) -> dict[str, t.Any]:
        """Do it; returns the result of the module."""
        names = [unit["name"] for unit in self.module.params["units"]]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise units.UnitError(f"units names {twice[0]} more than once")
        state = self.module.params["state"]
        if state == "stopped":
            self.stop(names or self.site.found())
        elif state == "written":
            self.write()
        else:
            self.start()
        return self.result()

    def result(self) -> dict[str, t.Any]:
        """What has been done so far."""
        return {"changed": self.changed, "units": self.results, "diff": self.diffs}

    # -- stopped -------------------------------------------------------------------------------------------------------

    def stop(self, names: t.Sequence[str]) -> None:
        """End units; files and logs stay."""
        present = [units.observe(self.site, name) for name in names]
        self.refuse_containers(present, "is not stopped")
        for observed in present:
            alive = observed.held or bool(units.living_members(observed.state).own)
            if alive:
                self.note(observed.name, "stopped", "was running" if observed.running else "had left processes behind")
            elif units.down_unasked(observed):
                # Nothing is left to end; from here on it is down because that is wanted.
                self.note(observed.name, "stopped", units.why_down(observed))
            elif observed.deployed:
                self.note(observed.name, "unchanged", "was not running")
            else:
                self.note(observed.name, "absent", "is not deployed here")
        if not self.module.check_mode:
            troubles = units.stop(present, self.module.params["stop_timeout"])
            for name in names:
                if name not in troubles:
                    units.note_stopped(self.site, name)
            self.fail_on(troubles, "is not stopped")

    # -- started -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Judge everything, stop what has to stop, write, start, and see that it stays up."""
        wanted = self.read_all_wanted()
        observed = {one.name: units.observe(self.site, one.name) for one in wanted}
        self.refuse_containers(observed.values(), "is not started")
        decisions = {one.name: self.decide(one, observed[one.name]) for one in wanted}
        if self.module.check_mode:
            return
        to_start = [one for one in wanted if decisions[one.name].starts]
        source = launcher_source()
        stopping = [observed[one.name] for one in to_start]
        self.fail_on(units.stop(stopping, self.module.params["stop_timeout"]), "could not be stopped")
        starts = []
        for one in wanted:
            if decisions[one.name].starts:
                units.write_unit(self.site, one, source)
                starts.append(units.Start(self.site, one, self.environ))
                self.results[one.name]["pid"] = starts[-1].pid
            elif self.results[one.name]["files"]:
                units.write_files(self.site.unit_dir(one.name), one.files)
        troubles = units.wait_until_up(starts)
        for name in troubles:
            self.results[name]["pid"] = None
        self.fail_on(troubles, "did not come up")

    # -- written -------------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Judge everything, then write what is started by others."""
        source = launcher_source()
        for one in self.read_all_wanted():
            if self.decide_writing(one, source) and not self.module.check_mode:
                units.write_unit(self.site, one, source)

    def decide_writing(self, wanted: units.Wanted, source: str) -> bool:
        """Decide about one unit and note what a user sees of it; whether it is to be written."""
        observed = units.observe(self.site, wanted.name)
        outdated = units.outdated_unit(self.site, wanted, source)
        decision = units.decide_writing(observed, wanted.sha256, wanted.name in self.module.params["restart"], outdated)
        writes = decision.action == "written"
        pid = observed.state["pid"] if observed.running and observed.state is not None else None
        self.note(wanted.name, decision.action, decision.reason, pid, outdated if writes else ())
        self.results[wanted.name]["mounts"] = units.mounts_here(self.site, wanted.spec)
        if writes:
            self.show_difference(wanted, observed)
        return writes

    # -- both ----------------------------------------------------------------------------------------------------------

    def read_all_wanted(self) -> list[units.Wanted]:
        """The option units, when all of it is possible; else fails while everything still runs as it did."""
        wanted = [self.read_wanted(unit) for unit in self.module.params["units"]]
        unknown = sorted(set(self.module.params["restart"]) - {one.name for one in wanted})
        if unknown:
            raise units.UnitError(f"restart names {unknown[0]}, which is not among units")
        self.refuse_impossible(wanted)
        return wanted

    def read_wanted(self, unit: t.Mapping[str, t.Any]) -> units.Wanted:
        """One entry of the option units."""
        if unit["spec"] is None:
            raise units.UnitError(f"{unit['name']}: state {self.module.params['state']} needs a spec")
        files = tuple(units.build_file(file["path"], file["content"], file["mode"]) for file in unit["files"])
        return units.Wanted(units.check_name(unit["name"], "unit"), unit["spec"], files)

    def refuse_impossible(self, wanted: t.Sequence[units.Wanted]) -> None:
        """Fail on what the launcher would refuse, while everything still runs as it did."""
        troubles = {}
        for one in wanted:
            try:
                self.check(one)
            except launcher.SpecError as error:
                troubles[one.name] = str(error)
        self.fail_on(troubles, "is refused")

    def check(self, wanted: units.Wanted) -> None:
        """Check one unit as its launcher will."""
        units.check(self.site, wanted.name, wanted.spec, None)
        if self.module.params["state"] == "written":
            return
        try:
            units.check(self.site, wanted.name, wanted.spec, self.environ)
        except launcher.SpecError as error:
            if not self.module.check_mode:
                raise
            self.module.warn(f"{wanted.name}: {error}; an earlier task may have installed it, had this been no check")

    def decide(self, wanted: units.Wanted, observed: units.Observed) -> units.Decision:
        """Decide about one unit and note what a user sees of it."""
        decision = units.decide(observed, wanted.sha256, wanted.name in self.module.params["restart"])
        files = units.outdated_files(observed.directory, wanted.files)
        pid = observed.state["pid"] if observed.state is not None and not decision.starts else None
        self.note(wanted.name, decision.action, decision.reason, pid, files)
        self.show_difference(wanted, observed)
        return decision

    def refuse_containers(self, observed: t.Iterable[units.Observed], what: str) -> None:
        """Fail on units that only their containers can end, before anything is stopped.

        Not in check mode: an earlier task would have stopped the container.
        """
        if not self.module.check_mode:
            self.fail_on({one.name: units.IN_CONTAINER for one in observed if units.runs_elsewhere(one)}, what)

    def show_difference(self, wanted: units.Wanted, observed: units.Observed) -> None:
        """Add to the diff how a launch spec changes."""
        before, after = units.pretty(observed.spec), units.pretty(wanted.spec)
        if before != after:
            path = os.path.join(observed.directory, launcher.SPEC_FILE)
            self.diffs.append({"before_header": path, "after_header": path, "before": before, "after": after})

    def note(self, name: str, action: str, reason: str, pid: int | None = None, files: t.Sequence[str] = ()) -> None:
        """Put one unit into the result."""
        self.results[name] = {"action": action, "reason": reason, "pid": pid, "files": list(files)}
        self.changed = self.changed or action in CHANGES or bool(files)

    def fail_on(self, troubles: t.Mapping[str, str], what: str) -> None:
        """End the module when any unit is in trouble, with one sentence for each."""
        if troubles:
            message = "\n".join(f"{name} {what}: {trouble}" for name, trouble in troubles.items())
            self.module.fail_json(msg=message, **self.result())


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["started", "stopped", "written"], "default": "started"},
            **units.SITE_OPTIONS,
            **units.LOG_OPTIONS,
            "units": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "spec": {"type": "dict"},
                    "files": {
                        "type": "list",
                        "elements": "dict",
                        "default": [],
                        "options": {
                            "path": {"type": "str", "required": True},
                            "content": {"type": "str", "required": True},
                            "mode": {"type": "str", "default": "0600"},
                        },
                    },
                },
            },
            "restart": {"type": "list", "elements": "str", "default": []},
            "environment": {"type": "dict", "default": {}},
            "stop_timeout": {"type": "float"},
        },
        supports_check_mode=True,
    )
    units.hide_secrets(module.no_log_values, [unit["spec"] for unit in module.params["units"]])
    try:
        result = Launch(module).run()
    except (units.UnitError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()

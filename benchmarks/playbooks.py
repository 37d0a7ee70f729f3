# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Wall time of plan.yml over a large fleet; tasks and wall time of site.yml on the rehearsed inventories/2p1d."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import sys
import tempfile
import time
import typing as t

import ansible_runner
import yaml

from tests.integration.conftest import CONTROLLER_ACTIONS

from . import fleet

PROJECT = pathlib.Path(__file__).resolve().parent.parent


class Run(t.NamedTuple):
    status: str
    seconds: float
    changed: int
    tasks: dict[str, int]
    on_host: dict[str, int]


def run(playbook: str, inventory: str, extra: dict[str, t.Any]) -> Run:
    """Run a playbook through ansible-runner and count finished tasks per host."""
    with tempfile.TemporaryDirectory() as private:
        began = time.monotonic()
        runner = ansible_runner.run(
            private_data_dir=private,
            project_dir=str(PROJECT),
            playbook=playbook,
            inventory=inventory,
            extravars=extra,
            envvars={"ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"},
            quiet=True,
        )
        seconds = time.monotonic() - began
        tasks: collections.Counter[str] = collections.Counter()
        on_host: collections.Counter[str] = collections.Counter()
        changed = 0
        for event in runner.events:
            if event["event"] not in ("runner_on_ok", "runner_on_failed", "runner_on_skipped"):
                continue
            data = event["event_data"]
            tasks[data["host"]] += 1
            if event["event"] != "runner_on_skipped" and data["resolved_action"] not in CONTROLLER_ACTIONS:
                on_host[data["host"]] += 1
            changed += bool(data.get("res", {}).get("changed"))
        return Run(runner.status, seconds, changed, dict(tasks), dict(on_host))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        hosts = pathlib.Path(folder) / "hosts.yml"
        hosts.write_text(json.dumps(fleet.inventory(1024)), encoding="utf-8")
        plan = run("plan.yml", str(hosts), {"plan_out": f"{folder}/plan.json", "plan_show": False})
        print(f"plan.yml over 1024 hosts: {plan.seconds:.1f} s wall ({plan.status})")

        inventory = str(PROJECT / "inventories" / "2p1d")
        extra = {"pd_rehearsal": True, "pd_rehearsal_dir": f"{folder}/state"}
        first = run("site.yml", inventory, extra)
        again = run("site.yml", inventory, extra)
        run("stop.yml", inventory, extra)
        print(f"site.yml, inventories/2p1d rehearsed: first {first.seconds:.1f} s ({first.status}), ", end="")
        print(f"no-change {again.seconds:.1f} s ({again.status}), changed={again.changed}")
        print(
            f"  tasks per host at most {max(first.tasks.values())}, on the managed host {max(first.on_host.values())}"
        )

        wide = _wide(yaml.safe_load((PROJECT / "inventories" / "one_host" / "hosts.yml").read_text(encoding="utf-8")))
        for label, entry in (("6 ranks on one host", wide[0]), ("2 ranks on one host", wide[1])):
            hosts.write_text(json.dumps(entry), encoding="utf-8")
            result = run("site.yml", str(hosts), {"pd_rehearsal": True, "pd_rehearsal_dir": f"{folder}/{label[0]}"})
            run("stop.yml", str(hosts), {"pd_rehearsal": True, "pd_rehearsal_dir": f"{folder}/{label[0]}"})
            print(
                f"  {label}: {max(result.tasks.values())} tasks, {max(result.on_host.values())} on the managed host "
                f"({result.status})"
            )


def _wide(inventory: dict[str, t.Any]) -> tuple[dict[str, t.Any], dict[str, t.Any]]:
    """The same host with many ranks and with one rank per role."""
    few = json.loads(json.dumps(inventory))
    for entry in few["all"]["vars"]["pd_instances"].values():
        entry["pd_dp_size"] = 1
    return inventory, few


if __name__ == "__main__":
    main()

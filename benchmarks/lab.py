# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Wall time of site.yml over SSH, in the lab: `make benchmark-lab`. Prints numbers and ratios and asserts nothing.

1. A run that changes nothing against a playbook that executes as many `ansible.builtin.ping` on the same hosts. The
   simulated engines answer at once there: what is measured is this product, not a model.
2. A first start with simulated load times, from the begin of the play Engines to the end of the play Gate.
"""

from __future__ import annotations

import datetime
import pathlib
import statistics
import sys
import tempfile
import typing as t

import pytest
import yaml

from tests.lab.conftest import IN_LAB, Cluster, Lab, Run, inventory

ROUNDS = 3
AT_ONCE = {"SIM_PREFILL_DELAY": "0", "SIM_TOKEN_DELAY": "0"}
LOADING = {"prefill": 20, "decode": 30}


def pings(counts: dict[str, int]) -> list[dict[str, t.Any]]:
    """Plays that ping each host as often as it is counted."""
    plays, done = [], 0
    for count in sorted(set(counts.values())):
        hosts = [host for host, own in counts.items() if own >= count]
        tasks = [{"name": f"Ping {number}", "ansible.builtin.ping": {}} for number in range(done + 1, count + 1)]
        plays.append({"name": "Ping", "hosts": ":".join(hosts), "gather_facts": False, "tasks": tasks})
        done = count
    return plays


def no_change(cluster: Cluster) -> None:
    first = cluster.site()
    again = cluster.site()
    counts = {host: len(tasks) for host, tasks in again.on_hosts().items()}
    playbook = cluster.folder / "pings.yml"
    playbook.write_text(yaml.safe_dump(pings(counts), sort_keys=False), encoding="utf-8")
    site, ping = [], []
    for _round in range(ROUNDS):
        site.append(cluster.site().seconds)
        ping.append(cluster.run(str(playbook)).seconds)
    print(f"site.yml: first run {first.seconds:.1f} s; a run without change, tasks on the managed hosts: {counts}")
    print(f"  without change   {listed(site)}")
    print(f"  as many pings    {listed(ping)}")
    print(
        f"  ratio {statistics.median(site) / statistics.median(ping):.2f} of the medians, {min(site) / min(ping):.2f} of the best"
    )


def listed(seconds: list[float]) -> str:
    return " ".join(f"{value:.1f}" for value in seconds) + " s"


def loading(cluster: Cluster, hosts: dict[str, t.Any]) -> None:
    """Roles load at the same time when the gate waits for both."""
    cluster.run("stop.yml")
    for role, seconds in LOADING.items():
        hosts["all"]["children"][role]["vars"]["pd_engine_env"] = {"SIM_STARTUP": str(seconds)}
    cluster.write(hosts)
    run = cluster.site()
    gate = play_began(run, "Proxy") - play_began(run, "Engines")
    listed_roles = ", ".join(f"{role} {seconds} s" for role, seconds in LOADING.items())
    print(f"site.yml, loading {listed_roles}: gate to gate {gate:.1f} s, whole run {run.seconds:.1f} s")


def play_began(run: Run, name: str) -> float:
    (created,) = (
        event["created"]
        for event in run.events
        if event["event"] == "playbook_on_play_start" and event["event_data"]["play"] == name
    )
    return datetime.datetime.fromisoformat(created).timestamp()


def main() -> int:
    if not IN_LAB:
        print("This runs in the lab: make benchmark-lab", file=sys.stderr)
        return 2
    lab = Lab()
    try:
        lab.up()
    except pytest.exit.Exception as problem:
        print(problem, file=sys.stderr)
        return 2
    try:
        with tempfile.TemporaryDirectory() as folder:
            hosts = inventory(lab, pd_engine_env_common=AT_ONCE)
            cluster = Cluster(lab, pathlib.Path(folder), hosts)
            no_change(cluster)
            loading(cluster, hosts)
    finally:
        lab.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())

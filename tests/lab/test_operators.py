# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Two operators at once, and what a run leaves behind that was broken off."""

from __future__ import annotations

import json
import os
import signal
import typing as t

from .conftest import Deployed, Lab, Run, task_started

LOCK = "/opt/pd_serving/pd/run.lock"
EVERYONE = ("p1", "d1", "d2")


def test_the_second_of_two_operators_is_refused_and_the_first_restarts_decode_only(
    lab: Lab, deployed: Deployed
) -> None:
    cluster = deployed.cluster
    before = lab.ids(*EVERYONE)
    refused: list[Run] = []

    def second_operator(event: dict[str, t.Any]) -> None:
        if refused or not task_started(event, "Wait for the ranks", "Gate"):
            return
        os.kill(event["pid"], signal.SIGSTOP)  # so that the first goes on for as long as the second needs
        try:
            refused.append(cluster.run("site.yml"))
        finally:
            os.kill(event["pid"], signal.SIGCONT)

    first = cluster.site(watch=second_operator, pd_instances={"decode": {"pd_engine_args": {"max-num-seqs": 17}}})
    after = lab.ids(*EVERYONE)
    assert {name for name in before if before[name] != after[name]} == {"d1/pd-pd-decode", "d2/pd-pd-decode"}
    assert set(first.changed()) == {"d1", "d2"}
    assert lab.complete(deployed.url)

    (second,) = refused
    assert second.rc != 0 and second.changed() == {}
    (message,) = second.failures().values()
    for expected in ("another run is changing cluster pd", "(site)", "pid ", "_force=true"):
        assert expected in message


def test_the_lock_of_a_run_that_was_killed_is_taken_over(lab: Lab, deployed: Deployed) -> None:
    """Killed when decode is half started again: back to the option that was there."""
    killed: list[int] = []

    def kill(event: dict[str, t.Any]) -> None:
        if not killed and task_started(event, "Write what the containers read", "Engines"):
            killed.append(event["pid"])
            os.kill(event["pid"], signal.SIGKILL)

    assert deployed.cluster.run("site.yml", watch=kill).rc != 0 and killed
    assert lab.sh("p1", f"cat {LOCK}")
    run = deployed.cluster.site()
    assert "took over the lock of a run that has ended" in run.warnings()
    assert lab.complete(deployed.url)
    assert lab.sh("p1", f"test ! -e {LOCK} && echo gone").strip() == "gone"


def test_the_lock_of_another_controller_holds_until_it_is_old(lab: Lab, deployed: Deployed) -> None:
    holder = {"owner": "eve@elsewhere (pid 7)", "run_id": "0123456789abcdef.7.7", "verb": "stop", "since": 1.0}
    lab.sh("d1", f"echo '{json.dumps(holder)}' > {LOCK}")
    refused = deployed.cluster.run("site.yml")
    (message,) = refused.failures().values()
    assert "eve@elsewhere (pid 7) (stop)" in message and refused.changed() == {}
    assert lab.sh("p1", f"test ! -e {LOCK} && echo gone").strip() == "gone", "what it took it gave back"
    lab.sh("d1", f"touch -d '3 hours ago' {LOCK}")
    run = deployed.cluster.site()
    assert "took over a stale lock" in run.warnings() and run.changed() == {}

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Who has the lock of a cluster, also when many ask at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.ascend.pd_serving.plugins.module_utils import run_lock, units

NOW = 1_700_000_000.0
TWO_HOURS = 7200.0


def run(run_id: str, at: float = NOW, verb: str = "site") -> run_lock.Holder:
    return run_lock.Holder(f"{run_id}@ctl", run_id, verb, at, at)


@pytest.fixture
def site(tmp_path: Path) -> units.Site:
    return units.Site("demo", str(tmp_path))


def held_since(site: units.Site, since: float) -> Path:
    """As if the lock had been taken then."""
    path = Path(run_lock.lock_path(site))
    os.utime(path, (since, since))
    return path


def take(site: units.Site, run_id: str, at: float = NOW, **more: Any) -> run_lock.Outcome:
    outcome = run_lock.take(site, run(run_id, at), TWO_HOURS, **more)
    if outcome.action in ("taken", "taken_over") and more.get("write", True):
        held_since(site, at)
    return outcome


def test_the_life_of_a_lock(site: units.Site) -> None:
    assert run_lock.release(site, "a", NOW).action == "absent"
    assert take(site, "a") == run_lock.Outcome("taken", run("a"))
    path = Path(run_lock.lock_path(site))
    assert json.loads(path.read_text()) == {"owner": "a@ctl", "run_id": "a", "since": NOW, "verb": "site"}
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert os.listdir(path.parent) == ["run.lock"]

    again = take(site, "a", NOW + 60)
    assert again.action == "renewed" and again.holder is not None
    assert (again.holder.since, again.holder.renewed) == (NOW, NOW + 60)
    assert run_lock.read(site) == again.holder

    refused = take(site, "b", NOW + 90)
    assert refused.refused and refused.holder == again.holder
    not_ours = run_lock.release(site, "b", NOW + 90)
    assert not_ours.action == "not_ours"
    assert not_ours.note == (
        "left the lock alone: by now another run has it: a@ctl (site), since 2023-11-14 22:13:20 UTC, 1 min 30 s ago"
    )
    assert run_lock.release(site, "a", NOW).action == "released"
    assert run_lock.read(site) is None
    assert run_lock.release(site, "a", NOW).action == "absent"
    assert take(site, "b").action == "taken"


def test_the_refusal_says_who_since_when_and_how_to_go_on(site: units.Site) -> None:
    take(site, "a")
    refused = take(site, "b", NOW + 720)
    assert refused.holder is not None
    assert run_lock.refusal(site, refused.holder, NOW + 720, TWO_HOURS) == (
        "another run is changing cluster demo: a@ctl (site), since 2023-11-14 22:13:20 UTC, 12 min ago. Wait until it "
        f"has ended. If it has ended already without giving the lock back: remove {run_lock.lock_path(site)} on this "
        "host, or run again with -e lock_force=true. Without a sign of life the lock counts as stale in "
        "1 h 48 min."
    )


@pytest.mark.parametrize(
    ("at", "more", "action", "note"),
    [
        (NOW + TWO_HOURS, {}, "refused", ""),
        (NOW + TWO_HOURS + 1, {}, "taken_over", "took over a stale lock (older than 2 h) from a@ctl (site), since "),
        (NOW - 3600, {}, "refused", ""),  # a clock that was set back
        (NOW + 1, {"force": True}, "taken_over", "took over the lock by force from a@ctl (site), since "),
        (NOW + 1, {"dead": "a"}, "taken_over", "took over the lock of a run that has ended: a@ctl (site), since "),
        (NOW + 1, {"dead": "c"}, "refused", ""),
    ],
)
def test_when_a_lock_changes_hands(site: units.Site, at: float, more: dict[str, Any], action: str, note: str) -> None:
    take(site, "a")
    foreseen = take(site, "b", at, write=False, **more)
    assert json.loads(Path(run_lock.lock_path(site)).read_text())["run_id"] == "a"
    outcome = take(site, "b", at, **more)
    assert outcome == foreseen
    assert (outcome.action, outcome.note[: len(note)]) == (action, note)
    holder = run_lock.read(site)
    assert holder is not None and holder.run_id == ("a" if outcome.refused else "b")


def test_a_lock_that_is_renewed_does_not_become_stale(site: units.Site) -> None:
    take(site, "a")
    take(site, "a", NOW + TWO_HOURS)
    assert take(site, "b", NOW + TWO_HOURS + 60).refused


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"since": "x"}', '{"since": NaN}', '{"since": 1e300}', '{"since": -5}']
)
def test_a_lock_that_cannot_be_read_is_still_one(site: units.Site, content: str) -> None:
    take(site, "a")
    Path(run_lock.lock_path(site)).write_text(content)
    held_since(site, NOW)
    refused = take(site, "", NOW + 60)
    assert refused.refused and refused.holder == run_lock.Holder("somebody", "", "", NOW, NOW)
    assert refused.holder.describe(NOW + 60) == "somebody, since 2023-11-14 22:13:20 UTC, 1 min ago"
    assert take(site, "b", NOW + TWO_HOURS + 1).action == "taken_over"


def test_looking_only_changes_nothing(site: units.Site, tmp_path: Path) -> None:
    assert take_only_looking(site) == "taken"
    assert list(tmp_path.iterdir()) == []
    take(site, "a")
    assert run_lock.release(site, "a", NOW, write=False).action == "released"
    assert run_lock.read(site) is not None


def take_only_looking(site: units.Site) -> str:
    return run_lock.take(site, run("a"), TWO_HOURS, write=False).action


TAKER = """
import sys, time
from ansible_collections.ascend.pd_serving.plugins.module_utils import run_lock, units
root, name, rounds = sys.argv[1:]
sites = [units.Site(f"c{n}", root) for n in range(int(rounds))]
print("ready", flush=True)
sys.stdin.readline()
for site in sites:
    print(run_lock.take(site, run_lock.new_holder(name, name, "site"), 7200).action, flush=True)
"""


def test_a_lock_leaves_no_folder_where_nothing_is_deployed(site: units.Site) -> None:
    folder = Path(site.folder)
    for deployed in (False, True):
        take(site, "a")
        if deployed:
            (folder / "pd-d").mkdir()
        assert run_lock.release(site, "a", NOW).action == "released"
        assert folder.exists() is deployed


def test_a_folder_that_is_removed_while_another_run_waits_for_it(site: units.Site) -> None:
    """What it has opened is nobody's any more: a lock there would keep nobody away."""
    failures: list[BaseException] = []

    def come_and_go(name: str) -> None:
        try:
            for _ in range(100):
                if not run_lock.take(site, run(name), TWO_HOURS).refused:
                    found = run_lock.read(site)
                    assert found is not None and found.run_id == name
                    assert run_lock.release(site, name, NOW).action == "released"
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=come_and_go, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == [] and not Path(site.folder).exists()


def test_of_many_that_come_at_once_one_has_it(tmp_path: Path) -> None:
    """Fresh locks and stale ones in turn; everyone else is refused, and never sees half a file."""
    rounds = 40
    sites = [units.Site(f"c{n}", str(tmp_path)) for n in range(rounds)]
    for site in sites[1::2]:
        run_lock.take(site, run("old", 1.0), TWO_HOURS)
        held_since(site, 1.0)
    command = [sys.executable, "-c", TAKER, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    takers = [
        subprocess.Popen(
            [*command, f"t{n}", str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for n in range(4)
    ]
    for taker in takers:
        assert taker.stdout is not None and taker.stdout.readline() == "ready\n"
    for taker in takers:
        assert taker.stdin is not None
        taker.stdin.write("go\n")
        taker.stdin.flush()
    answers = [taker.communicate()[0].split() for taker in takers]
    assert [len(each) for each in answers] == [rounds] * len(takers)
    for number, said in enumerate(zip(*answers, strict=True)):
        first = "taken_over" if number % 2 else "taken"
        assert sorted(said) == sorted([first, *["refused"] * (len(takers) - 1)]), number
        holder = run_lock.read(sites[number])
        assert holder is not None and holder.run_id == f"t{said.index(first)}"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.9, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (125, "2 min 5 s"),
        (7200, "2 h"),
        (9000, "2 h 30 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_spans_of_time(seconds: float, text: str) -> None:
    assert run_lock.duration(seconds) == text

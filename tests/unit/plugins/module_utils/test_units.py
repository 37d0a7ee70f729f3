# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Where units live, what is decided about them, and what may be shown of them."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.ascend.pd_serving.plugins.doc_fragments.site import ModuleDocFragment
from ansible_collections.ascend.pd_serving.plugins.module_utils import launcher, masking, sites, units

SPEC: dict[str, Any] = {"schema": 1, "unit": "pd-t", "processes": [{"name": "rank0", "argv": ["true"]}]}
BOOT = "this boot"
NAMESPACE = "pid:[1]"


def state(**more: Any) -> dict[str, Any]:
    process = {"pid": 70, "start_ticks": 700, "output_inode": 9, "name": "rank0", "code": None, "ended_at": None}
    return {
        "schema": 1,
        "pid": 60,
        "start_ticks": 600,
        "boot_id": BOOT,
        "phase": "running",
        "spec_sha256": launcher.spec_sha256(SPEC),
        "reason": None,
        "end": None,
        "processes": [process],
        **more,
    }


def observed(**more: Any) -> units.Observed:
    return units.Observed(**{"name": "pd-t", "directory": "/u", "spec": SPEC, "state": state(), "held": True, **more})


# -- where -------------------------------------------------------------------------------------------------------------


def test_paths_of_a_site() -> None:
    site = units.Site("demo", "/state/hosts/p1/")
    assert site.unit_dir("pd-demo-d") == "/state/hosts/p1/opt/pd_serving/demo/pd-demo-d"
    assert site.unit_logs("pd-demo-d") == "/state/hosts/p1/var/log/pd_serving/demo/pd-demo-d"
    assert units.Site("demo").unit_dir("x") == "/opt/pd_serving/demo/x"
    assert units.under("", "/models") == "/models"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a\n", "a b"])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(units.UnitError, match="must be made of letters"):
        units.Site(name)
    with pytest.raises(units.UnitError, match="must be made of letters"):
        units.Site("demo").unit_dir(name)


def test_units_that_are_found(tmp_path: Path) -> None:
    site = units.Site("demo", str(tmp_path), "/b")
    assert site.found() == []
    for name in ("pd-b", "pd-a", "empty", "odd name"):
        (tmp_path / "b" / "demo" / name).mkdir(parents=True)
        if name != "empty":
            (tmp_path / "b" / "demo" / name / "launch.json").write_text("{}")
    assert site.found() == ["pd-a", "pd-b"]
    assert not units.observe(site, "empty").deployed
    one = units.observe(site, "pd-a")
    assert (one.deployed, one.running, one.state, one.held) == (True, False, None, False)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"schema": 2}'])
def test_a_damaged_state_is_no_state(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content)
    assert launcher.read_state(str(tmp_path)) is None


# -- decisions ---------------------------------------------------------------------------------------------------------

SHA = launcher.spec_sha256(SPEC)


@pytest.mark.parametrize(
    ("one", "sha256", "restart", "action", "reason"),
    [
        (observed(), SHA, False, "unchanged", "runs with this launch spec"),
        (observed(), SHA, True, "restarted", "asked for"),
        (observed(), "other", False, "restarted", "the launch spec changed"),
        (observed(held=False), SHA, False, "started", "its launcher was killed"),
        (observed(held=False, state=None), SHA, False, "started", "was not running"),
        (observed(held=False, state=None, spec=None), SHA, False, "started", "not deployed yet"),
        (observed(held=True, state=state(phase="stopping", reason="r")), SHA, False, "started", "was ending: r"),
        (
            observed(held=False, state=state(phase="ended", end={"reason": "rank 3 died"})),
            SHA,
            True,
            "started",
            "had ended: rank 3 died",
        ),
    ],
)
def test_what_is_decided(one: units.Observed, sha256: str, restart: bool, action: str, reason: str) -> None:
    assert units.decide(one, sha256, restart) == units.Decision(action, reason)


def test_the_spec_that_runs_counts_not_the_one_on_the_disk() -> None:
    assert observed(spec={"other": 1}).sha256 == SHA
    assert observed(spec={"other": 1}, held=False).sha256 == launcher.spec_sha256({"other": 1})
    assert observed(spec=None, held=False).sha256 is None


ENDED = state(phase="ended", end={"reason": "rank 3 died"})


@pytest.mark.parametrize(
    ("one", "sha256", "restart", "outdated", "action", "reason"),
    [
        (observed(), SHA, False, ["launcher.py"], "unchanged", "runs with this launch spec"),
        (observed(), "other", False, ["launch.json"], "kept", "runs with another launch spec, which stays until"),
        (observed(), "other", True, ["launch.json"], "written", "asked for"),
        (observed(), SHA, True, ["launcher.py"], "written", "asked for"),
        (observed(), SHA, True, [], "unchanged", "is written as wanted"),
        (observed(held=False, state=ENDED), SHA, False, ["launch.json"], "written", "had ended: rank 3 died"),
        (observed(held=False, state=ENDED), SHA, False, [], "unchanged", "is written as wanted"),
        (observed(held=False, state=None, spec=None), SHA, False, ["launch.json"], "written", "not deployed yet"),
    ],
)
def test_what_is_written(
    one: units.Observed, sha256: str, restart: bool, outdated: list[str], action: str, reason: str
) -> None:
    decision = units.decide_writing(one, sha256, restart, outdated)
    assert (decision.action, decision.reason[: len(reason)]) == (action, reason)


def test_what_is_outdated_of_a_unit(tmp_path: Path) -> None:
    site = units.Site("demo", str(tmp_path))
    wanted = units.Wanted("pd-t", SPEC, (units.build_file("run.sh", "x", "0700"),))
    logs = site.unit_logs("pd-t")
    assert units.outdated_unit(site, wanted, "source") == ["launcher.py", "launch.json", "run.sh", logs]
    units.write_unit(site, wanted, "source")
    assert units.outdated_unit(site, wanted, "source") == []
    assert units.outdated_unit(site, wanted, "new source") == ["launcher.py"]
    other = units.Wanted("pd-t", {**SPEC, "container": {"image": "x"}}, wanted.files)
    assert units.outdated_unit(site, other, "source") == ["launch.json"]
    Path(site.unit_dir("pd-t"), "launch.json").chmod(0o644)
    os.rmdir(logs)
    assert units.outdated_unit(site, wanted, "source") == ["launch.json", logs]


@pytest.mark.parametrize(
    ("path", "mode", "words"),
    [
        ("/etc/passwd", "0600", "must lead below"),
        ("../x", "0600", "must lead below"),
        ("a/../../x", "0600", "must lead below"),
        ("a//b", "0600", "must lead below"),
        ("", "0600", "must lead below"),
        ("launch.json", "0600", "is written by this module itself"),
        ("state.json", "0600", "is written by this module itself"),
        ("x", "rw", "must be octal"),
        ("x", "4755", "must be octal"),
        ("x", "0680", "must be octal"),
    ],
)
def test_files_that_are_refused(path: str, mode: str, words: str) -> None:
    with pytest.raises(units.UnitError, match=words):
        units.build_file(path, "", mode)


def test_files_are_compared_by_content_and_mode(tmp_path: Path) -> None:
    files = [units.build_file("run.sh", "ü\n", "0750"), units.build_file("a/b.txt", "x", "600")]
    assert units.outdated_files(str(tmp_path), files) == ["run.sh", "a/b.txt"]
    units.write_files(str(tmp_path), files)
    assert units.outdated_files(str(tmp_path), files) == []
    assert (tmp_path / "run.sh").stat().st_mode & 0o777 == 0o750
    (tmp_path / "run.sh").chmod(0o700)
    (tmp_path / "a" / "b.txt").write_text("y")
    assert units.outdated_files(str(tmp_path), files) == ["run.sh", "a/b.txt"]


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_secrets_are_found_and_masked_and_nothing_else_changes() -> None:
    argv = ["vllm", "serve", "--api-key", "k1", "k2", "--port", "7100", "--api-key=k3", "--api_key", "k4"]
    argv += ["--hf-token", "k5", "--max-num-batched-tokens", "8192"]
    env = {"OPENAI_API_KEY": "e1", "HF_TOKEN": "e2", "my_password": "e3", "AWS_CREDENTIALS": "e4", "PLAIN": "shown"}
    spec = {"processes": [{"name": "a", "argv": argv, "env": {**env, "SECRET_UNSET": None}}, {"name": "b"}], "x": 1}
    spec["container"] = {"env": {"A_TOKEN": "c1", "PLAIN": "shown"}, "image": "shown"}
    before = copy.deepcopy(spec)
    assert units.secrets(spec) == {"k1", "k2", "k3", "k4", "k5", "e1", "e2", "e3", "e4", "c1"}
    shown = units.masked(spec)
    assert spec == before
    m = masking.MASK
    assert shown["processes"][0]["argv"] == [
        *("vllm", "serve", "--api-key", m, m, "--port", "7100", f"--api-key={m}", "--api_key", m),
        *("--hf-token", m, "--max-num-batched-tokens", "8192"),
    ]
    assert shown["processes"][0]["env"]["PLAIN"] == "shown"
    assert shown["processes"][0]["env"]["SECRET_UNSET"] is None
    assert shown["processes"][1] == {"name": "b"}
    assert shown["container"] == {"env": {"A_TOKEN": m, "PLAIN": "shown"}, "image": "shown"}
    text = units.pretty(spec)
    assert not any(f'"{secret}"' in text for secret in units.secrets(spec))
    hidden: set[str] = set()
    units.hide_secrets(hidden, [spec, None, {"processes": [{"env": {"A_KEY": "long-enough"}}]}])
    assert hidden == {"long-enough"}


@pytest.mark.parametrize(
    "spec",
    [None, [], {}, {"processes": 1}, {"processes": [1, {"env": [], "argv": {}}]}, {"container": 1}, {"container": {}}],
)
def test_anything_at_all_can_be_shown(spec: Any) -> None:
    assert units.secrets(spec) == set()
    assert units.masked(spec) == spec
    assert isinstance(units.pretty(spec), str)


# -- members -----------------------------------------------------------------------------------------------------------


def stat(pid: int, start: int, session: int, *, group: int | None = None, dead: bool = False) -> launcher.Stat:
    return launcher.Stat(pid, "Z" if dead else "S", 1, session if group is None else group, session, start)


def sort(
    *stats: launcher.Stat, pipes: Mapping[int, set[int]] | None = None, boot: str = BOOT, **more: Any
) -> tuple[list[int], list[int]]:
    by_pid = {s.pid: s for s in stats}
    found = units.members(state(**more), by_pid, boot, NAMESPACE, lambda pid: (pipes or {}).get(pid, set()))
    return [s.pid for s in found.own], [s.pid for s in found.unproven]


def test_members_of_a_session_whose_leader_lives() -> None:
    assert sort(stat(70, 700, 70), stat(71, 710, 70), stat(72, 720, 70, group=72), stat(80, 1, 80)) == (
        [70, 71, 72],
        [],
    )


def test_a_zombie_leader_still_proves_its_session() -> None:
    assert sort(stat(70, 700, 70, dead=True), stat(71, 710, 70)) == ([71], [])


def test_a_number_that_was_given_out_again_is_not_touched() -> None:
    assert sort(stat(70, 999, 70), stat(71, 1000, 70), pipes={71: {9}}) == ([], [])


def test_without_the_leader_only_the_log_pipe_proves() -> None:
    assert sort(stat(71, 710, 70), stat(72, 720, 70), pipes={71: {8, 9}, 72: {8}}) == ([71], [72])


def test_another_boot_has_no_members() -> None:
    assert sort(stat(70, 700, 70), boot="another boot") == ([], [])
    assert units.members(None, {}, BOOT, NAMESPACE, lambda pid: ()) == units.Members()


def test_the_numbers_of_a_container_are_nobody_here() -> None:
    assert sort(stat(70, 700, 70), stat(71, 710, 70), pid_namespace="pid:[2]") == ([], [])
    assert sort(stat(71, 710, 70), pid_namespace="pid:[2]") == ([], [])
    assert sort(stat(70, 700, 70), pid_namespace=NAMESPACE) == ([70], [])


def test_leftovers_of_a_killed_launcher_are_ended_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    script = "trap '' TERM; (trap '' TERM; sleep 300) & echo up; wait; sleep 300"
    ours = subprocess.Popen(["sh", "-c", script], stdout=writer, start_new_session=True)
    other = subprocess.Popen(["sleep", "300"], start_new_session=True)
    os.close(writer)
    assert os.read(reader, 3) == b"up\n"
    leader, stranger = launcher.read_stat(ours.pid), launcher.read_stat(other.pid)
    assert leader is not None and stranger is not None
    processes = [
        {"pid": ours.pid, "start_ticks": leader.start, "output_inode": os.fstat(reader).st_ino},
        {"pid": other.pid, "start_ticks": stranger.start + 1, "output_inode": 1},
    ]
    left = state(boot_id=launcher.boot_id(), processes=processes)
    ours.kill()  # the leader is gone, its child is not
    ours.wait()
    try:
        assert len(units.living_members(left).own) == 1
        begun = time.monotonic()
        monkeypatch.setattr(units, "LEFTOVER_GRACE", 0.2)
        assert units.end_leftovers([None, left]) == 1
        assert time.monotonic() - begun < 2
        assert units.living_members(left) == units.Members()
        assert other.poll() is None
        assert units.end_leftovers([left]) == 0
    finally:
        other.kill()
        other.wait()
        os.close(reader)


# -- logs --------------------------------------------------------------------------------------------------------------


def test_last_lines_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "l"
    path.write_bytes(b"one\n\x1b[31mtwo\x1b[0m\r\n\n  \nload 1%\rload 50%\rload 99%\r\xff end")
    assert units.last_lines(str(path), 3) == ["one", "two", "\ufffd end"]
    assert units.last_lines(str(path), 1) == ["\ufffd end"]
    assert units.last_lines(str(path), 0) == []
    assert units.last_lines(str(tmp_path / "none"), 3) == []
    path.write_bytes(b"x" * 100000 + b"\nlast\n")
    assert units.last_lines(str(path), 1) == ["last"]


def test_only_the_present_run_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "l"
    path.write_text("old error\n[launcher] started\nnew line\n")
    assert units.log_tail(str(path), 9) == ["new line"]
    path.write_text("old error\n[launcher] started\n")
    assert units.log_tail(str(path), 9) == []
    path.write_text("")
    (tmp_path / "l.1").write_text("rotated just now\n")
    assert units.log_tail(str(path), 9) == ["rotated just now"]


# -- stopping what cannot be stopped -----------------------------------------------------------------------------------


def test_a_lock_held_by_nobody_known_is_reported_not_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "KILL_PATIENCE", 0.2)
    monkeypatch.setattr(units, "GUARD_PATIENCE", 0.1)
    site = units.Site("demo", str(tmp_path))
    folder = Path(site.unit_dir("pd-t"))
    folder.mkdir(parents=True)
    (folder / "launch.json").write_text(json.dumps(SPEC))
    (folder / "state.json").write_text(json.dumps(state()))
    hold = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(flush=True); time.sleep(99)"
    holder = subprocess.Popen([sys.executable, "-c", hold, str(folder / "launcher.lock")], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        troubles = units.stop([units.observe(site, "pd-t")], None)
        assert holder.poll() is None
    finally:
        holder.kill()
        holder.communicate()
    assert list(troubles) == ["pd-t"]
    assert "its launcher (pid 60 by state.json) is still there and is no process that can be seen" in troubles["pd-t"]


# -- the options that the modules share --------------------------------------------------------------------------------


@pytest.mark.parametrize(("fragment", "options"), [("DOCUMENTATION", units.SITE_OPTIONS), ("LOGS", units.LOG_OPTIONS)])
def test_the_shared_options_are_documented_as_they_are(fragment: str, options: dict[str, Any]) -> None:
    documented = yaml.safe_load(getattr(ModuleDocFragment, fragment))["options"]
    described = {name: entry.pop("description") for name, entry in documented.items()}
    assert documented == options
    assert all(described.values())


def test_a_site_is_made_of_the_parameters_that_a_module_has() -> None:
    params = {"cluster": "pd", "root": "/r", "base_dir": "/b", "other": 1}
    assert units.site_of(params) == units.Site("pd", "/r", "/b")
    assert units.site_of({**params, "log_dir": "/l"}) == units.Site("pd", "/r", "/b", "/l")


def test_sites_find_units_by_the_launchers_file() -> None:
    assert sites.SPEC_FILE == launcher.SPEC_FILE

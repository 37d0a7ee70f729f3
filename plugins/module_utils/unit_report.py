# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What a unit is doing, for people and for the gate that waits until every rank is ready."""

from __future__ import annotations

import dataclasses
import os
import re
import time
import typing as t
import urllib.parse

from ansible_collections.ascend.pd_serving.plugins.module_utils import launcher, units

ENDED_TAIL = 20
"""Lines to show of a process that ended: its last words are what an engineer looks for first."""

POLL_SECONDS = 0.5

START_PATIENCE = 5.0
"""Seconds that a unit may not run yet when the wait begins: its container has been started, its launcher has not."""

UNHEALTHY_IN_A_ROW = 3
"""Looks that must find a process unhealthy: a host that loads weights may answer late once."""

MOST_MATCHES = 20

_WORST_FIRST = ("unhealthy", "loading", "ready")

FAULTS = (units.UnitError, OSError)
"""What answer() raises, each with a message that can be read alone."""

Answers = t.Mapping[str, t.Tuple[str, str]]
Report = t.Dict[str, t.Any]


def health_urls(observed: t.Iterable[units.Observed]) -> list[str]:
    """The health pages of the processes that should answer now."""
    return [
        url
        for unit in observed
        if unit.running and unit.state is not None
        for process in unit.state["processes"]
        if process["code"] is None
        for url in launcher.pages(process)
    ]


def health_of(process: t.Mapping[str, t.Any], running: bool, answers: Answers) -> tuple[str, str]:
    """State of one process: ready, loading, unhealthy or none, and what was answered.

    A headless engine opens no port: it is as ready as it will ever look once it runs.
    """
    if not running:
        return "none", "not running"
    found = [answers.get(url, ("loading", "not asked yet")) for url in launcher.pages(process)]
    if not found:
        return "ready", "has no health page"
    return min(found, key=lambda answer: _WORST_FIRST.index(answer[0]))


def log_path(site: units.Site, unit: str, process: t.Mapping[str, t.Any]) -> str:
    """Where the log of a process is on this host; the launcher's own path may be one of its container."""
    here = os.path.join(site.unit_logs(unit), process["name"] + ".log")
    return here if os.path.exists(here) else str(process["log"])


def describe(
    site: units.Site, observed: units.Observed, wanted_sha256: str | None, answers: Answers, tail_lines: int
) -> Report:
    """One unit as the module reports it."""
    state = observed.state
    if state is None:
        return {
            "deployed": observed.deployed,
            "running": False,
            "current": observed.deployed and wanted_sha256 == observed.sha256,
            "pid": None,
            "contained": False,
            "since": None,
            "phase": "none",
            "reason": None,
            "end": None,
            "processes": [],
            "ready": 0,
        }
    processes = [
        _describe_process(process, observed, log_path(site, observed.name, process), answers, tail_lines)
        for process in state["processes"]
    ]
    return {
        "deployed": observed.deployed,
        "running": observed.running,
        "current": wanted_sha256 is not None and wanted_sha256 == observed.sha256,
        "pid": state["pid"] if observed.held else None,
        "contained": units.runs_elsewhere(observed),
        "since": state["started_at"],
        "phase": state["phase"] if observed.held or state["end"] else "lost",
        "reason": state["reason"],
        "end": state["end"],
        "processes": processes,
        "ready": sum(process["health"] == "ready" for process in processes),
    }


def _describe_process(
    process: t.Mapping[str, t.Any], observed: units.Observed, log: str, answers: Answers, tail_lines: int
) -> Report:
    running = observed.held and process["code"] is None
    health, answer = health_of(process, running, answers)
    ended = not running
    tail = units.log_tail(log, max(tail_lines, ENDED_TAIL if ended else 1))
    report = {
        "name": process["name"],
        "label": process["label"],
        "pid": process["pid"] if running else None,
        "running": running,
        "code": process["code"],
        "ended_at": process["ended_at"],
        "log": log,
        "health_url": process["health_url"],
        "health": health,
        "answer": answer,
        "last_line": tail[-1] if tail else "",
    }
    if ended or tail_lines > 1:
        report["tail"] = tail if ended else tail[-tail_lines:]
    return report


# ---------------------------------------------------------------------------------------------------------------------
# Lines that tell of trouble
# ---------------------------------------------------------------------------------------------------------------------


def mark(path: str) -> str:
    """A place in a log to come back to: which file it is now, and how far it was written."""
    try:
        stat = os.stat(path)
    except OSError:
        return ""
    return f"{stat.st_ino}:{stat.st_size}"


def files_since(path: str, place: str) -> list[tuple[str, int]]:
    """The files, oldest first, with what was written since a mark, and where to begin in each.

    Without a mark, or when the file it names has been rotated away, that is everything there is.
    """
    found: list[tuple[str, int]] = []
    inode = place.split(":", 1)[0]
    for number in range(1000):
        name = f"{path}.{number}" if number else path
        try:
            own = os.stat(name).st_ino
        except OSError:
            break
        if inode == str(own):
            found.append((name, int(place.split(":", 1)[1])))
            break
        found.append((name, 0))
    return found[::-1]


def matching_lines(path: str, place: str, pattern: t.Pattern[str]) -> tuple[list[str], int]:
    """The first lines since a mark that match, and how many there are in all."""
    lines: list[str] = []
    count = 0
    for name, offset in files_since(path, place):
        with open(name, "rb") as stream:
            stream.seek(offset)
            for raw in stream:
                line = raw.decode("utf-8", "replace").rstrip()
                if pattern.search(line):
                    count += 1
                    if len(lines) < MOST_MATCHES:
                        lines.append(line[:500])
    return lines, count


def add_matches(
    reports: t.Mapping[str, Report], pattern: t.Pattern[str] | None, marks: t.Mapping[str, t.Mapping[str, str]]
) -> None:
    """Put into every process's report the place its log has reached, and the lines since a mark that match."""
    for name, report in reports.items():
        for process in report["processes"]:
            # First the mark: a line written between the two is then seen twice rather than never.
            process["log_mark"] = mark(process["log"])
            if pattern is not None:
                place = marks.get(name, {}).get(process["name"], "")
                lines, count = matching_lines(process["log"], place, pattern)
                process["matches"] = {"count": count, "lines": lines}


def compile_pattern(text: str | None) -> t.Pattern[str] | None:
    """A regular expression of the user's, or a message that says what is wrong with it."""
    if not text:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise units.UnitError(f"log_pattern is no regular expression: {error}") from error


# ---------------------------------------------------------------------------------------------------------------------
# Waiting
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Expected:
    """What a unit is compared with: the checksum of its spec, and what its launcher would refuse about it."""

    sha256: str | None = None
    problem: str | None = None


def expect(site: units.Site, name: str, spec: t.Any, environ: t.Mapping[str, str] | None) -> Expected:
    """Judge the spec that one unit should have; none was given when it is None."""
    units.check_name(name, "unit")
    if spec is None:
        return Expected()
    try:
        units.check(site, name, spec, environ)
    except launcher.SpecError as error:
        return Expected(launcher.spec_sha256(spec), str(error))
    return Expected(launcher.spec_sha256(spec))


def secrets(params: t.Any) -> set[str]:
    """What Ansible must not show of the options, also of impossible ones."""
    given = params.get("units") if isinstance(params, dict) else None
    entries = given if isinstance(given, list) else []
    hidden: set[str] = set()
    units.hide_secrets(hidden, [entry["spec"] for entry in entries if isinstance(entry, dict) and entry.get("spec")])
    return hidden


def answer(params: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """What module launch_info returns."""
    begun = time.monotonic()
    site = units.site_of(params)
    pattern = compile_pattern(params["log_pattern"])
    watch = Watch(site, _expected(site, params), params["tail_lines"])
    verdict = watch.wait(params["wait_seconds"])
    add_matches(watch.reports, pattern, params["log_marks"])
    waited = round(time.monotonic() - begun, 3)
    return {"verdict": verdict, "waited_seconds": waited, "now": time.time(), "units": watch.reports}


def _expected(site: units.Site, params: t.Mapping[str, t.Any]) -> dict[str, Expected] | None:
    """What the units are compared with; None when none was named."""
    entries, environment = params["units"], params["environment"]
    if entries is None:
        return None
    environ = units.launch_environment(environment) if environment is not None else None
    return {entry["name"]: expect(site, entry["name"], entry["spec"], environ) for entry in entries}


class Watch:
    """Looks at the same units again and again, and says when there is nothing to wait for any more."""

    def __init__(self, site: units.Site, expected: t.Mapping[str, Expected] | None, tail_lines: int) -> None:
        self._site = site
        self._expected = expected
        self._tail_lines = tail_lines
        self._seen_running: set[str] = set()
        self._unhealthy: dict[tuple[str, str], int] = {}
        self._begun = time.monotonic()
        self._start_patience = 0.0
        self.reports: dict[str, Report] = {}

    @property
    def names(self) -> list[str]:
        """The units that were asked for; all there are when none was named."""
        return self._site.found() if self._expected is None else list(self._expected)

    def look(self) -> str:
        """Look once; returns ready, ended, unhealthy or waiting."""
        names = self.names
        observed = {name: units.observe(self._site, name) for name in {*names, *self._site.found()}}
        answers = launcher.probe_all(health_urls(observed.values()))
        self._disprove(observed.values(), answers)
        expected = self._expected or {}
        self.reports = {}
        for name in sorted(observed):
            own = expected.get(name, Expected())
            report = describe(self._site, observed[name], own.sha256, answers, self._tail_lines)
            report["problem"] = own.problem
            report["unknown"] = name not in names
            self.reports[name] = report
            if report["running"]:
                self._seen_running.add(name)
        return self._verdict([name for name in names if name in self.reports])

    def _disprove(self, observed: t.Iterable[units.Observed], answers: dict[str, tuple[str, str]]) -> None:
        """A port that takes connections says nothing of who it is: whoever holds it has to be the unit's own process.

        A page by HTTP is the answer of a server that knows its own path, so only bare ports are doubted.
        """
        for unit in observed:
            for url in health_urls([unit]):
                parts = urllib.parse.urlsplit(url)
                if parts.scheme != "tcp" or answers[url][0] != "ready":
                    continue
                foreign = units.foreign_listener(unit, parts.hostname or "", parts.port or 0)
                if foreign is not None:
                    answers[url] = ("unhealthy", f"not this unit but another process takes connections: {foreign}")

    def _verdict(self, names: t.Sequence[str]) -> str:
        for name in names:
            for process in self.reports[name]["processes"]:
                self._count_unhealthy((name, process["name"]), process)
        if any(self._has_ended(name) for name in names):
            return "ended"
        if any(count >= UNHEALTHY_IN_A_ROW for count in self._unhealthy.values()):
            return "unhealthy"
        ready = all(
            self.reports[n]["running"] and self.reports[n]["ready"] == len(self.reports[n]["processes"]) for n in names
        )
        return "ready" if ready else "waiting"

    def _count_unhealthy(self, key: tuple[str, str], process: Report) -> None:
        """A process is only called unhealthy when it stays so: one slow answer is no reason to restart a group."""
        self._unhealthy[key] = self._unhealthy.get(key, 0) + 1 if process["health"] == "unhealthy" else 0
        if self._in_doubt(self._unhealthy[key]):
            process["health"] = "loading"

    @staticmethod
    def _in_doubt(times: int) -> bool:
        return 0 < times < UNHEALTHY_IN_A_ROW

    def _has_ended(self, name: str) -> bool:
        if self.reports[name]["running"]:
            return False
        return name in self._seen_running or time.monotonic() - self._begun >= self._start_patience

    def wait(self, seconds: float) -> str:
        """Look until there is nothing to wait for, or the time is over; returns the last verdict."""
        deadline = self._begun + seconds
        if seconds > 0:
            self._start_patience = START_PATIENCE
        verdict = self.look()
        # Who does not wait wants a judgement all the same; it takes a moment only where a health page answered wrongly.
        doubts = 0 if seconds > 0 else UNHEALTHY_IN_A_ROW - 1
        while doubts and any(map(self._in_doubt, self._unhealthy.values())):
            doubts -= 1
            time.sleep(POLL_SECONDS)
            verdict = self.look()
        while verdict == "waiting" and time.monotonic() < deadline:
            time.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
            verdict = self.look()
        return verdict

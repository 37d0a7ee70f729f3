# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Facts of all hosts in, verdicts out. Pure: nothing is contacted, and the same input gives the same report."""

from __future__ import annotations

import typing as t

from . import checks
from . import facts as f
from .fleet import Fleet, Limits
from .verdicts import RANKS, TAGS, Check, Place, Report, Severity, Tag, Tally, Verdict

# Which half of the facts a tag is about.
_HALF_OF: t.Mapping[Tag, str] = {"hardware": "npu", "fabric": "npu", "host": "host", "ports": "host", "image": "host"}


def judge(
    view: f.PlanView,
    facts: t.Mapping[str, f.Facts],
    pings: f.PingRun | None,
    asked: t.Collection[str],
    expected_hosts: t.Collection[str],
    now: float,
    *,
    tags: t.Collection[str] = TAGS,
    limits: Limits | None = None,
) -> Report:
    """Judge everything that can be judged.

    view: the plan (view.plan_view). facts: what each host that answered told. pings: None when none were made, which
    leaves the ping checks not judged. asked: hosts that this run was about (--limit). expected_hosts: all hosts of the
    plan. now: seconds since 1970, for the report. tags: only checks with one of these.
    """
    halves = {_HALF_OF[tag] for tag in TAGS if tag in tags}
    fleet = Fleet(view, facts, pings, asked, expected_hosts, limits or Limits(), halves)
    chosen = [check for check in checks.CHECKS if check.tag in tags or not check.needs]
    missing = [host for host in fleet.expected if host not in set(fleet.hosts)]
    report = Report(
        cluster=view["name"],
        hardware=view["hardware"],
        plane=view["plane"],
        made=now,
        hosts=fleet.hosts,
        not_asked=[host for host in fleet.expected if host not in set(fleet.asked)],
        silent=fleet.silent,
        checks=chosen,
        verdicts=[],
        passed={},
        blocked={},
        not_judged=[],
        cells={},
        chips={host: dict.fromkeys(fleet.planned_chips(host), "ok") for host in fleet.hosts if "npu" in halves},
        pings=fleet.pings,
    )
    for check in chosen:
        if check.id.startswith("ping") and pings is None:
            report.not_judged.append(check.id)
        else:
            _make(fleet, check, report, missing)
    left_out = [tag for tag in TAGS if tag not in tags]
    if left_out:
        _say_what_other_tags_know(fleet, report, left_out)
    _mark_chips(fleet, report)
    order = {check.id: number for number, check in enumerate(checks.CHECKS)}
    hosts = {host: number for number, host in enumerate(fleet.expected)}
    report.verdicts.sort(
        key=lambda one: (
            -RANKS.index(one.severity),
            order[one.check],
            hosts.get(one.host, -1),
            -1 if one.chip is None else one.chip,
        )
    )
    return report


def _make(fleet: Fleet, check: Check, report: Report, missing: t.Sequence[str]) -> None:
    """Make one check and enter what it says. missing: hosts of the plan that told nothing, or were not asked."""
    incomplete = any(all(fleet.concerns(need, host) for need in check.needs) for host in missing)
    about = [host for host in fleet.hosts if all(fleet.concerns(need, host) for need in check.needs)]
    able = [host for host in about if all(fleet.has(need, host) for need in check.needs)]
    say = checks.Say(check, able, fleet)
    checks.function(check.id)(fleet, say)
    report.verdicts += say.verdicts
    row: dict[str, Severity] = {}
    for verdict in say.verdicts:
        for place in verdict.places:
            row[place.host] = _worse(row.get(place.host), verdict.severity)
    blocked = [host for host in about if host not in able or host in say.hidden]
    if blocked:
        report.blocked[check.id] = blocked
    # Passing needs everybody: what differs on a host that was not asked is not seen here.
    if check.across and incomplete:
        report.not_judged.append(check.id)
    else:
        # What is only an aside does not make a host bad.
        passed = {place for place in say.good if place.host not in set(blocked)}
        for place in passed:
            row.setdefault(place.host, "ok")
        if passed:
            chips = sum(place.chip is not None for place in passed)
            report.passed[check.id] = Tally({place.host for place in passed if row[place.host] == "ok"}, chips)
    report.cells[check.id] = row


def _say_what_other_tags_know(fleet: Fleet, report: Report, left_out: list[Tag]) -> None:
    """Checks that a host could not pass because of something that only a check of another tag would say."""
    told = {place.host for verdict in report.verdicts for place in verdict.places}
    first = next(check for check in report.checks if not check.needs)
    say = checks.Say(first, fleet.hosts, fleet)
    for host in fleet.hosts:
        blocked = [check for check, hosts in report.blocked.items() if host in hosts]
        if blocked and host not in told:
            checks.other_tags(say, host, blocked, left_out)
            report.cells[first.id][host] = "unknown"
            if first.id in report.passed:
                report.passed[first.id].hosts.discard(host)
    report.verdicts += say.verdicts


def _worse(one: Severity | None, other: Severity) -> Severity:
    return other if one is None or RANKS.index(other) > RANKS.index(one) else one


def _mark_chips(fleet: Fleet, report: Report) -> None:
    """Each chip gets the worst of the verdicts that name it; a host without readable tools has unknown chips."""
    for host, chips in report.chips.items():
        if not (fleet.has("npu", host) and fleet.has("hccn", host) and fleet.has("smi", host)):
            report.chips[host] = dict.fromkeys(chips, "unknown")
    for verdict in report.verdicts:
        if verdict.tag not in ("hardware", "fabric") and verdict.check != "chip":
            continue
        for place in _chips_meant(verdict):
            row = report.chips.get(place.host, {})
            if place.chip in row:
                row[place.chip] = _worse(row[place.chip], verdict.severity)


def _chips_meant(verdict: Verdict) -> t.Iterator[Place]:
    for place in verdict.places:
        if place.chip is not None:
            yield place

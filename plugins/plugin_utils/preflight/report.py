# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The report as report.json holds it (docs/preflight.md), its sums in one line, and what a playbook makes of it."""

from __future__ import annotations

import time
import typing as t

from .verdicts import SHOWN, Place, Report, Severity, Verdict

SCHEMA = 1


def to_json(report: Report) -> dict[str, t.Any]:
    """The report as plain data, ready for json.dumps."""
    return {
        "schema": SCHEMA,
        "cluster": report.cluster,
        "hardware": report.hardware,
        "plane": report.plane,
        "made": made(report),
        "hosts": report.hosts,
        "not_asked": report.not_asked,
        "not_answered": report.silent,
        "checks": [
            {"id": check.id, "tag": check.tag, "title": check.title, "title_zh": check.title_zh}
            for check in report.checks
        ],
        "verdicts": [_verdict(one) for one in report.verdicts],
        "passed": {check: {"hosts": len(tally.hosts), "chips": tally.chips} for check, tally in report.passed.items()},
        "blocked": report.blocked,
        "not_judged": report.not_judged,
        "chips": {host: {str(chip): worst for chip, worst in row.items()} for host, row in report.chips.items()},
        "pings": {
            "mode": report.pings.get("mode", "none"),
            "matrix": [
                {
                    "from": one["from_host"],
                    "from_chip": one["from_chip"],
                    "to": one["to_host"],
                    "to_chip": one["to_chip"],
                    "state": one.get("state", "unknown"),
                    "loss_percent": one.get("loss_percent"),
                    "average_us": one.get("average_us"),
                }
                for one in report.pings.get("results") or []
            ],
            "left_out": list(report.pings.get("left_out") or []),
        },
        "counts": counts(report),
    }


def made(report: Report) -> str:
    """When the report was made, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(report.made))


def counts(report: Report) -> dict[str, int]:
    """Verdicts by severity; ok counts the pairs of a check and a host that are good."""
    return {**{severity: report.count(severity) for severity in SHOWN}, "ok": report.ok_cells}


def _verdict(one: Verdict) -> dict[str, t.Any]:
    return {
        "check": one.check,
        "tag": one.tag,
        "severity": one.severity,
        "host": one.host,
        "chip": one.chip,
        "expected": one.expected,
        "found": one.found,
        "message": one.message,
        "fix": one.fix,
        "message_zh": one.message_zh,
        "fix_zh": one.fix_zh,
        "also": [_place(place) for place in one.also],
        "see": one.see,
    }


def _place(place: Place) -> dict[str, t.Any]:
    return {"host": place.host, "chip": place.chip}


def report_json(report: Report, code: int) -> dict[str, t.Any]:
    """report.json: the report, and the exit code that it comes to with the run's switches."""
    return {**to_json(report), "exit_code": code}


def exit_code(report: Report, *, warnings_fail: bool = False, unknown_fails: bool = False) -> int:
    """0 when nothing is wrong, 1 for warnings (or unknowns) where they shall count, 2 for errors.

    Ansible itself knows one kind of failure: a playbook fails on 1 and 2 alike, and puts the number into its result.
    """
    if report.count("error"):
        return 2
    if (warnings_fail and report.count("warning")) or (unknown_fails and report.count("unknown")):
        return 1
    return 0


def summary(report: Report) -> str:
    """3 errors, 1 warning, 2 unknown; 120 good."""
    nouns: dict[Severity, tuple[str, str]] = {
        "error": ("error", "errors"),
        "warning": ("warning", "warnings"),
        "unknown": ("unknown", "unknown"),
        "info": ("note", "notes"),
    }
    parts = []
    for severity, (one, many) in nouns.items():
        number = report.count(severity)
        if number or severity == "error":
            parts.append(f"{number} {one if number == 1 else many}")
    return f"{', '.join(parts)}; {report.ok_cells} checks of hosts good"


def left_out_lines(report: Report) -> list[str]:
    """What the pings do not cover, each in one sentence."""
    lines = []
    for one in report.pings.get("left_out") or []:
        host, pairs, chips = one.get("host"), one.get("pairs", 0), one.get("chips") or []
        listed = ", ".join(map(str, chips))
        lines.append(
            {
                "peer_cap": f"{pairs} pairs of hosts were not pinged (preflight_ping_peers); -e preflight_ping_mode=full pings all",
                "budget": f"{host}: {pairs} pings were left out for lack of time, of chips {listed} (preflight_ping_budget)",
                "no_address": f"{host}: chips {listed} have no known address and were not pinged",
                "no_other_host": "there is no other host to ping",
                "no_ping": "this fabric has no ping",
            }.get(str(one.get("why")), f"{host}: {pairs} pings were left out ({one.get('why')})")
        )
    return lines

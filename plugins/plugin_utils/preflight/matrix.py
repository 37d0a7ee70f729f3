# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The report for a terminal: hosts by checks, then what is wrong and how to put it right.

Rows with nothing wrong are one line together, and so are columns: what is printed for 256 hosts of which three are bad is
three rows.
"""

from __future__ import annotations

import typing as t

from . import report as reports
from .checks.say import numbers
from .verdicts import SHOWN, Report, Severity, Verdict

SIGNS: t.Mapping[Severity, str] = {"ok": ".", "info": "i", "warning": "W", "error": "E", "unknown": "?"}
BLOCKED = "?"
NOT_JUDGED = "-"
NOTHING = " "
MAX_ROWS = 64
MAX_VERDICTS = 100
ALIKE = 20
ALL_ROWS = 8


def render_matrix(report: Report) -> str:
    """The whole text, lines of at most about 120 columns (a column per check, headings written downwards)."""
    plural = "" if len(report.hosts) == 1 else "s"
    lines = [f"Preflight of cluster {report.cluster} ({report.hardware}): {len(report.hosts)} host{plural}", ""]
    lines += _table(report)
    lines += verdict_lines(report)
    lines += _not_seen(report)
    lines.append(reports.summary(report) + ".")
    return "\n".join(lines)


def _sign(report: Report, check: str, host: str) -> str:
    severity = report.cells.get(check, {}).get(host)
    if severity is not None and severity != "ok":
        return SIGNS[severity]
    if host in report.blocked.get(check, ()):
        return BLOCKED
    if check in report.not_judged:
        return NOT_JUDGED
    return NOTHING if severity is None else SIGNS[severity]


def _table(report: Report) -> list[str]:
    hosts = [*report.silent, *report.hosts]
    checks = [check.id for check in report.checks]
    signs = {host: {check: _sign(report, check, host) for check in checks} for host in hosts}
    quiet = {SIGNS["ok"], NOT_JUDGED, NOTHING}
    loud_rows = [host for host in hosts if set(signs[host].values()) - quiet]
    # A small fleet is shown whole; of a large one, only what is not simply good.
    small = len(hosts) <= ALL_ROWS
    rows = hosts if small else loud_rows
    columns = [check for check in checks if any(signs[host][check] not in quiet for host in hosts)]
    lines: list[str] = []
    if columns and rows:
        width = max(len("host"), *(len(host) for host in rows[:MAX_ROWS]))
        lines += _headings(columns, width)
        chips = {host: _bad_chips(report, host) for host in rows}
        for host in rows[:MAX_ROWS]:
            cells = " ".join(signs[host][check] for check in columns)
            lines.append(f"{host.ljust(width)}  {cells}{'  ' + chips[host] if chips[host] else ''}".rstrip())
        if len(rows) > MAX_ROWS:
            lines.append(f"... and {len(rows) - MAX_ROWS} more hosts with something wrong (all of them: report.json)")
        lines.append("")
    if not small:
        lines.append(f"{len(hosts) - len(loud_rows)} of {len(hosts)} hosts have nothing to report.")
    fine = [check for check in checks if check not in set(columns) and _made(report, check)]
    if fine:
        lines += ["Good everywhere: ", *_wrapped(fine)]
    if columns:
        lines.append(f"E error  ? unknown  W warning  i note  {SIGNS['ok']} good  {NOT_JUDGED} not judged")
    return [*lines, ""] if lines else lines


def _made(report: Report, check: str) -> bool:
    return bool(report.passed.get(check)) and check not in report.not_judged


def _headings(columns: t.Sequence[str], width: int) -> list[str]:
    """Ids as a staircase, each with a line down to its column: read without turning the head."""
    lines = []
    for number, check in enumerate(columns):
        bars = "| " * number
        lines.append(f"{' ' * width}  {bars}{check}")
    lines.append(f"{'host'.ljust(width)}  {'| ' * len(columns)}".rstrip())
    return lines


def _bad_chips(report: Report, host: str) -> str:
    """chips 3,5 E  7 W: the chips of a host that are not good."""
    row = report.chips.get(host, {})
    parts = []
    for severity in SHOWN:
        chips = [chip for chip, worst in row.items() if worst == severity]
        if chips and severity != "info":
            parts.append(f"{SIGNS[severity]}:{numbers(chips)}")
    return "chips " + " ".join(parts) if parts else ""


def verdict_lines(report: Report, severities: t.Collection[Severity] = SHOWN) -> list[str]:
    """What is wrong alike in several places is said once, with the others named."""
    groups: dict[tuple[object, ...], list[Verdict]] = {}
    for one in report.verdicts:
        if one.severity not in severities:
            continue
        groups.setdefault((one.check, one.severity, one.words, one.expected, one.found), []).append(one)
    lines = []
    for alike in list(groups.values())[:MAX_VERDICTS]:
        one = alike[0]
        lines.append(f"{one.severity.upper()} [{one.check}] {_where(one)}")
        lines.append(f"    {one.message}")
        lines.append(f"    Fix: {one.fix}")
        # What has been named above is not named again.
        others = [place for place in dict.fromkeys(map(_ends, alike)) if place != _ends(one)]
        if others:
            shown = others[: ALIKE - 1]
            lines += _wrapped([f"the same: {shown[0]}", *shown[1:], *_rest(len(others) - len(shown))])
    if len(groups) > MAX_VERDICTS:
        lines.append(f"... and {len(groups) - MAX_VERDICTS} more kinds (all of them: report.json, report.html)")
    return [*lines, ""] if lines else lines


def _rest(number: int) -> list[str]:
    return [f"and {number} more"] if number > 0 else []


def _where(one: Verdict) -> str:
    if one.chip is not None:
        return f"{one.host} chip {one.chip}"
    chips = [place.chip for place in one.also if place.host == one.host and place.chip is not None]
    return f"{one.host} chips {numbers(chips)}" if chips else one.host


def _ends(one: Verdict) -> str:
    """_where, and the other end of what is between two places."""
    ends = [place for place in one.also if place.host != one.host]
    return f"{_where(one)} and {ends[0]}" if len(ends) == 1 == len(one.also) else _where(one)


def _not_seen(report: Report) -> list[str]:
    lines = []
    if report.not_judged:
        missing = [*report.not_asked, *report.silent]
        why = f"they need {_few(missing)} too" if missing else "no pings were made"
        lines += [f"Not judged, {why}: ", *_wrapped(report.not_judged)]
    lines += reports.left_out_lines(report)
    return [*lines, ""] if lines else lines


def _few(names: t.Sequence[str], limit: int = 6) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _wrapped(words: t.Sequence[str], width: int = 110) -> list[str]:
    """Words in indented lines of at most this width."""
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) + 2 > width:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{word}"
    return [f"    {line}" for line in lines]

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The report as one HTML file that needs nothing else: page/ put together, with the data as compact JSON inside.

Texts stand in the data once as templates and once per verdict as the few values that go into them, so that 256 hosts with
16 chips stay below 1 MiB even when much is wrong.
"""

from __future__ import annotations

import collections
import html
import json
import pathlib
import re
import typing as t

from . import facts as f
from . import report as reports
from .checks.catalog import COMPARED
from .verdicts import RANKS, Report, Severity, Verdict, Words

PAGE = pathlib.Path(__file__).parent / "page"
LETTERS: t.Mapping[Severity, str] = {"ok": "o", "info": "i", "warning": "w", "unknown": "u", "error": "e"}
BLOCKED, NOT_JUDGED, NOTHING = "b", "-", " "
# For the data; the page around it has 30 kB.
DATA_LIMIT = 950 * 1024
AVERAGES_UP_TO = 4096
_GIVEN = ("host", "chip", "expected", "found")


def render_html(report: Report) -> str:
    """The whole page. What would make it larger than 1 MiB is left out and counted on the page."""
    title = f"Preflight: {report.cluster}"
    line = f"{report.hardware}, {len(report.hosts)} hosts, {reports.made(report)}"
    parts = {
        "TITLE": html.escape(title),
        "LINE": html.escape(line),
        "SUMMARY": html.escape(reports.summary(report) + "."),
        "STYLE": (PAGE / "report.css").read_text(encoding="utf-8"),
        "SCRIPT": (PAGE / "report.js").read_text(encoding="utf-8"),
        "DATA": _data(report),
    }
    template = (PAGE / "report.html").read_text(encoding="utf-8")
    # One pass, so that nothing inside a part is taken for a place of another.
    return re.sub(r"%([A-Z]+)%", lambda match: parts.get(match[1], match[0]), template)


def embedded(value: t.Any) -> str:
    """JSON that can stand inside a script element, whatever the texts hold."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    # Half of a surrogate pair is no text; a tool's output may hold one.
    return text.encode("utf-8", "replace").decode("utf-8")


def _data(report: Report) -> str:
    hosts = [*report.silent, *report.hosts]
    hosts += [host for host in report.not_asked if any(host in map(_host, one.places) for one in report.verdicts)]
    number = {host: place for place, host in enumerate(hosts)}
    checks = [check.id for check in report.checks]
    verdicts, words, odd = _verdicts(report, number, {check: place for place, check in enumerate(checks)})
    chip_sets: dict[tuple[int, ...], int] = {}
    data: dict[str, t.Any] = {
        "hosts": hosts,
        "notAsked": report.not_asked,
        "silent": report.silent,
        "checks": [[check.id, check.tag, check.title, check.title_zh] for check in report.checks],
        "cells": ["".join(_letter(report, check, host) for host in hosts) for check in checks],
        "chips": [_chips(report, host, chip_sets) for host in hosts],
        "chipSets": [list(chips) for chips in chip_sets],
        "odd": odd,
        "words": words,
        "notJudged": [checks.index(check) for check in report.not_judged],
        "counts": reports.counts(report),
        "pings": _pings(report.pings, number),
        "leftOut": list(report.pings.get("left_out") or []),
        "trimmed": 0,
        "verdicts": [],
    }
    room = DATA_LIMIT - len(embedded(data).encode())
    kept: list[str] = []
    for one in verdicts:
        text = embedded(one)
        room -= len(text.encode()) + 1
        if room < 0:
            break
        kept.append(text)
    data["trimmed"] = len(verdicts) - len(kept)
    # The worst come first, so what is cut off is the mildest.
    return embedded(data).replace('"verdicts":[]', f'"verdicts":[{",".join(kept)}]')


def _host(place: t.Any) -> str:
    return str(place.host)


def _letter(report: Report, check: str, host: str) -> str:
    severity = report.cells.get(check, {}).get(host)
    if severity is not None and severity != "ok":
        return LETTERS[severity]
    if host in report.blocked.get(check, ()):
        return BLOCKED
    if check in report.not_judged and host in report.hosts:
        return NOT_JUDGED
    return NOTHING if severity is None else LETTERS[severity]


def _chips(report: Report, host: str, sets: dict[tuple[int, ...], int]) -> list[t.Any] | None:
    row = report.chips.get(host)
    if not row:
        return None
    place = sets.setdefault(tuple(row), len(sets))
    return [place, "".join(LETTERS[severity] for severity in row.values())]


def _verdicts(
    report: Report, number: t.Mapping[str, int], check_number: t.Mapping[str, int]
) -> tuple[list[list[t.Any]], list[list[t.Any]], dict[int, list[int]]]:
    """Verdicts with numbers for names, the words they use, and check -> hosts that are the odd ones out."""
    words: dict[Words, int] = {}
    names: list[list[str]] = []
    out = []
    odd: dict[int, list[int]] = {}
    for one in report.verdicts:
        if one.words not in words:
            words[one.words] = len(words)
            names.append([name for name in one.values if name not in _GIVEN and _uses(one.words, name)])
        place = words[one.words]
        strange = _odd_one_out(one)
        if strange:
            odd.setdefault(check_number[one.check], []).append(number[one.host])
        out.append(
            [
                check_number[one.check],
                RANKS.index(one.severity),
                number[one.host],
                one.chip,
                place,
                [one.values[name] for name in names[place]],
                one.expected,
                one.found,
                [[number[also.host], also.chip] for also in one.also],
                int(strange),
            ]
        )
    texts = [[w.message, w.fix, w.message_zh, w.fix_zh, names[place]] for w, place in words.items()]
    return out, texts, odd


def _uses(words: Words, name: str) -> bool:
    return any(f"{{{name}}}" in text for text in (words.message, words.fix, words.message_zh, words.fix_zh))


def _odd_one_out(one: Verdict) -> bool:
    """Whether this host differs from a majority of the others."""
    alone = all(place.host == one.host for place in one.also)
    return one.check in COMPARED and one.severity != "unknown" and alone


def _pings(pings: t.Mapping[str, t.Any], number: t.Mapping[str, int]) -> dict[str, t.Any]:
    """Per pair of hosts: pings, those that failed or lost something, the worst loss, the average time."""
    rows: dict[tuple[int, int], list[f.PingResult]] = collections.defaultdict(list)
    for one in t.cast("list[f.PingResult]", pings.get("results") or []):
        if one["from_host"] in number and one["to_host"] in number:
            rows[number[one["from_host"]], number[one["to_host"]]].append(one)
    times = len(rows) <= AVERAGES_UP_TO
    return {
        "mode": pings.get("mode", "none"),
        "rows": [[a, b, *_sum(group, times)] for (a, b), group in rows.items()],
    }


def _sum(group: t.Sequence[f.PingResult], times: bool) -> list[t.Any]:
    losses = [_loss(one) for one in group]
    averages = [one["average_us"] for one in group if isinstance(one.get("average_us"), (int, float))]
    worst = max(losses)
    average = round(sum(averages) / len(averages)) if times and averages else None
    return [
        len(group),
        sum(loss > 0 for loss in losses),
        int(worst) if worst == int(worst) else round(worst, 1),
        average,
    ]


def _loss(one: f.PingResult) -> float:
    loss = one.get("loss_percent")
    return float(loss) if one.get("state") == "ok" and isinstance(loss, (int, float)) else 100.0

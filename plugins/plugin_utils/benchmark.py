# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Results of a benchmark: the record that is kept, and a page that shows it, alone or beside an earlier one.

The page is one file without scripts or anything to load, so that it can be mailed and opened anywhere; its plots are SVG.
"""

from __future__ import annotations

import html
import json
import math
import pathlib
import typing as t

SCHEMA = 1
Record = dict[str, t.Any]

# Key below a level, key of the statistic (None: the value itself), what a person calls it, unit, whether more is better.
_TABLE: tuple[tuple[str, str | None, str, str, bool], ...] = (
    ("ttft_ms", "median", "TTFT median", "ms", False),
    ("ttft_ms", "p99", "TTFT P99", "ms", False),
    ("tpot_ms", "median", "TPOT median", "ms", False),
    ("tpot_ms", "p99", "TPOT P99", "ms", False),
    ("latency_ms", "median", "latency median", "ms", False),
    ("output_token_throughput", None, "output throughput", "token/s", True),
    ("request_throughput", None, "requests", "req/s", True),
)
# Title, unit, lines of the plot as (key, statistic, label).
_PLOTS: tuple[tuple[str, str, tuple[tuple[str, str | None, str], ...]], ...] = (
    ("Time to first token", "ms", (("ttft_ms", "median", "median"), ("ttft_ms", "p99", "P99"))),
    ("Time per output token", "ms", (("tpot_ms", "median", "median"), ("tpot_ms", "p99", "P99"))),
    ("Output throughput", "token/s", (("output_token_throughput", None, ""),)),
)
_COLOURS = ("#1f5fa8", "#c2571a")
_DASHES = ("", "5 3")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 460, 260, 66, 14, 14, 40


class BenchmarkError(Exception):
    """A result file that cannot be used; the text says why."""


def record(
    overview: t.Mapping[str, t.Any],
    measured: t.Mapping[str, t.Any],
    warm_up: t.Mapping[str, t.Any],
    settings: t.Mapping[str, t.Any],
    *,
    aisbench: str,
    started: str,
    rehearsal: bool,
) -> Record:
    """What is kept of a run; everything that two runs must share to be comparable is in it."""
    return {
        "schema": SCHEMA,
        "started": started,
        "rehearsal": rehearsal,
        "cluster": {
            **{key: overview[key] for key in ("name", "hardware", "connector", "served_model_name", "proxy")},
            "instances": [
                {key: instance[key] for key in ("name", "role", "hosts", "ranks", "tp_size", "chips")}
                for instance in overview["instances"]
            ],
        },
        "aisbench": aisbench,
        "settings": {**settings, "prompts": measured["prompts"], "tokenizer": measured["tokenizer"]},
        "warm_up": {"rounds": warm_up.get("rounds", []), "cold": warm_up.get("cold", [])},
        "host_folder": measured["folder"],
        "levels": list(measured["levels"]),
    }


def read(path: str) -> Record:
    """An earlier record, with a message for whoever gave another file."""
    try:
        loaded = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as problem:
        raise BenchmarkError(f"benchmark_compare: {path}: {problem.strerror}") from problem
    except ValueError as problem:
        raise BenchmarkError(f"benchmark_compare: {path} is no JSON: {problem}") from problem
    if not isinstance(loaded, dict) or loaded.get("schema") != SCHEMA or not isinstance(loaded.get("levels"), list):
        raise BenchmarkError(f"benchmark_compare: {path} is no result file of this playbook (schema {SCHEMA})")
    return loaded


def differences(one: Record, other: Record) -> list[str]:
    """What makes two runs hard to compare: anything but the cluster that was not alike."""
    found = [
        f"{name}: {other['settings'].get(name)} then, {one['settings'].get(name)} now"
        for name in sorted(set(one["settings"]) | set(other["settings"]))
        if one["settings"].get(name) != other["settings"].get(name)
    ]
    if one["aisbench"] != other["aisbench"]:
        found.append(f"AISBench: {other['aisbench']} then, {one['aisbench']} now")
    if one["rehearsal"] != other["rehearsal"]:
        found.append("one of them was a rehearsal")
    return found


def value(level: t.Mapping[str, t.Any], key: str, statistic: str | None) -> float | None:
    """A number of a level; None when AISBench did not tell it."""
    found = level.get(key)
    if statistic is not None:
        found = (found or {}).get(statistic)
    return None if found is None else float(found)


def text_lines(now: Record) -> list[str]:
    """The table for the terminal."""
    rows = [["CONCURRENCY", "REQUESTS", *(f"{title} {unit}".upper() for _k, _s, title, unit, _m in _TABLE)]]
    for level in now["levels"]:
        numbers = [_shown(value(level, key, statistic)) for key, statistic, *_rest in _TABLE]
        rows.append([str(level["concurrency"]), f"{level['requests']:g}", *numbers])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _shown(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:.0f}" if abs(number) >= 1000 else f"{number:.1f}"


# Page -----------------------------------------------------------------------------------------------------------------


def page(now: Record, before: Record | None = None) -> str:
    """The HTML page."""
    runs = [now] if before is None else [now, before]
    title = f"Benchmark of {now['cluster']['name']} ({now['cluster']['served_model_name']})"
    parts = [
        f"<h1>{_e(title)}</h1>",
        *(
            [_note("A rehearsal: every engine was simulated, so these numbers say nothing about speed.")]
            * now["rehearsal"]
        ),
        *([_note("The prompts are not gsm8k's.")] * (now["settings"]["prompts"] != "gsm8k")),
        *(_note(f"Not alike: {line}.") for line in (differences(now, before) if before else [])),
        *(_note(f"Still cold when measuring began: {name}.") for name in now["warm_up"]["cold"]),
        _facts(runs),
        '<div class="plots">',
        *(_plot(title_, unit, lines, runs) for title_, unit, lines in _PLOTS),
        "</div>",
        _numbers(runs),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f"<title>{_e(title)}</title>\n<style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1480px;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #ccc;padding:.25em .6em;text-align:right}"
    "th{background:#f3f3f3}td:first-child,th:first-child{text-align:left}.note{background:#fff4d6;padding:.4em .8em}"
    ".plots{display:flex;flex-wrap:wrap;gap:1em}figure{margin:0}figcaption{font-weight:600}"
    "svg text{font:11px system-ui,sans-serif;fill:#333}.better{color:#11702d}.worse{color:#a3221b}"
)


def _e(text: t.Any) -> str:
    return html.escape(str(text))


def _note(text: str) -> str:
    return f'<p class="note">{_e(text)}</p>'


def _names(runs: t.Sequence[Record]) -> list[str]:
    return [f"this run, {runs[0]['started']}", *(f"earlier run, {run['started']}" for run in runs[1:])]


def _facts(runs: t.Sequence[Record]) -> str:
    rows: list[tuple[str, list[t.Any]]] = [
        ("hardware, connector", [f"{run['cluster']['hardware']}, {run['cluster']['connector']}" for run in runs]),
        ("instances", [_topology(run) for run in runs]),
        ("AISBench", [run["aisbench"] for run in runs]),
        ("warm-up", [_warm_up(run) for run in runs]),
        *(
            (name, [json.dumps(run["settings"].get(name), ensure_ascii=False) for run in runs])
            for name in sorted({name for run in runs for name in run["settings"]})
        ),
    ]
    head = "".join(f"<th>{_e(name)}</th>" for name in _names(runs))
    body = "".join(
        f"<tr><td>{_e(name)}</td>{''.join(f'<td>{_e(cell)}</td>' for cell in cells)}</tr>" for name, cells in rows
    )
    return f"<table><tr><th></th>{head}</tr>{body}</table>"


def _topology(run: Record) -> str:
    return "; ".join(f"{each['name']}: DP{each['ranks']} TP{each['tp_size']}" for each in run["cluster"]["instances"])


def _warm_up(run: Record) -> str:
    rounds = run["warm_up"]["rounds"]
    return f"{len(rounds)} rounds of {rounds[0]['requests']} requests" if rounds else "none"


def _numbers(runs: t.Sequence[Record]) -> str:
    """One row per concurrency; with two runs, both values and by how much they differ."""
    by_level = [{level["concurrency"]: level for level in run["levels"]} for run in runs]
    head = "".join(f"<th>{_e(title)} ({_e(unit)})</th>" for _key, _statistic, title, unit, _more in _TABLE)
    rows = []
    for concurrency in sorted({each for levels in by_level for each in levels}):
        cells = []
        for key, statistic, _title, _unit, more_is_better in _TABLE:
            values = [
                value(levels[concurrency], key, statistic) if concurrency in levels else None for levels in by_level
            ]
            cells.append(f"<td>{_cell(values, more_is_better)}</td>")
        rows.append(f"<tr><td>{concurrency}</td>{''.join(cells)}</tr>")
    note = "" if len(runs) == 1 else "<p>In each cell: this run, the earlier run, the change.</p>"
    return f"{note}<table><tr><th>concurrency</th>{head}</tr>{''.join(rows)}</table>"


def _cell(values: t.Sequence[float | None], more_is_better: bool) -> str:
    text = " | ".join(_shown(each) for each in values)
    if len(values) == 2 and values[0] is not None and values[1]:
        change = (values[0] - values[1]) / values[1]
        kind = "" if abs(change) < 0.005 else "better" if (change > 0) == more_is_better else "worse"
        text += f' <span class="{kind}">{change:+.1%}</span>'
    return text


def _plot(title: str, unit: str, lines: t.Sequence[tuple[str, str | None, str]], runs: t.Sequence[Record]) -> str:
    """Values over concurrency. Concurrencies are spread evenly in powers of two; the value axis begins at zero."""
    series = []
    for run, colour, name in zip(runs, _COLOURS, ("this run", "earlier run"), strict=False):
        for (key, statistic, label), dash in zip(lines, _DASHES, strict=False):
            points = [
                (level["concurrency"], found)
                for level in run["levels"]
                if (found := value(level, key, statistic)) is not None
            ]
            words = [label] if label else []
            series.append((points, colour, dash, ", ".join([*words, *([name] if len(runs) > 1 else [])])))
    everything = [point for points, *_rest in series for point in points]
    if not everything:
        return f"<figure><figcaption>{_e(title)}</figcaption><p>No values.</p></figure>"
    levels = sorted({concurrency for concurrency, _found in everything})
    top = _round_up(max(found for _concurrency, found in everything))
    low, high = math.log2(levels[0]), math.log2(levels[-1])

    def across(concurrency: float) -> float:
        share = 0.5 if high == low else (math.log2(concurrency) - low) / (high - low)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def down(found: float) -> float:
        return _TOP + (1 - found / top) * (_HEIGHT - _TOP - _BOTTOM)

    shapes = []
    for step in range(5):
        mark = top * step / 4
        shapes.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{down(mark):.1f}" y2="{down(mark):.1f}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 6}" y="{down(mark) + 4:.1f}" text-anchor="end">{mark:g}</text>'
        )
    shapes += [
        f'<text x="{across(level):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{level}</text>'
        for level in levels
    ]
    for place, (points, colour, dash, label) in enumerate(series):
        path = " ".join(f"{across(concurrency):.1f},{down(found):.1f}" for concurrency, found in points)
        shapes.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        shapes += [
            f'<circle cx="{across(concurrency):.1f}" cy="{down(found):.1f}" r="3" fill="{colour}">'
            f"<title>{_e(label)} {concurrency}: {_shown(found)} {_e(unit)}</title></circle>"
            for concurrency, found in points
        ]
        if label:
            shapes.append(
                f'<text x="{_LEFT + 8}" y="{_TOP + 12 + 14 * place}" style="fill:{colour}">{_e(label)}</text>'
            )
    shapes.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 6}" text-anchor="middle">concurrency</text>')
    svg = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img">{"".join(shapes)}</svg>'
    )
    return f"<figure><figcaption>{_e(title)} ({_e(unit)})</figcaption>{svg}</figure>"


def _round_up(number: float) -> float:
    """The next 1, 2, 4 or 8 times a power of ten: quarters of it are round as well."""
    if number <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(number))
    return float(next(power * factor for factor in (1, 2, 4, 8, 10) if power * factor >= number))

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The record of a benchmark and the page that shows one or two of them."""

from __future__ import annotations

import copy
import json
import re
import typing as t
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import benchmark, slices
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import base, planned


def level(concurrency: int, ttft: float, throughput: float) -> dict[str, t.Any]:
    return {
        "concurrency": concurrency,
        "requests": 64.0,
        "failed": 0.0,
        "succeeded": 64.0,
        "request_throughput": throughput / 10,
        "output_token_throughput": throughput,
        "total_token_throughput": throughput * 2,
        "latency_ms": {"median": ttft * 9, "p99": ttft * 12},
        "ttft_ms": {"median": ttft, "p99": ttft * 2},
        "tpot_ms": {"median": 20.0, "p99": 31.5},
    }


def made(name: str = "ds_r1", rehearsal: bool = False, cold: t.Sequence[str] = ()) -> benchmark.Record:
    plan = planned(base())
    overview = slices.overview(plan, slices.host_slices(plan, {}))
    return benchmark.record(
        {**overview, "served_model_name": name},
        {
            "levels": [level(1, 100.0, 50.0), level(8, 130.0, 380.0), level(32, 250.0, 1100.0)],
            "prompts": "gsm8k",
            "tokenizer": "model",
            "folder": "/var/lib/pd_serving/benchmark/runs/x",
        },
        {"rounds": [{"requests": 32}] * 3, "cold": list(cold)},
        {"max_out_len": 256, "request_rate": 0},
        aisbench="3.1",
        started="2026-01-31 12:00:00+00:00",
        rehearsal=rehearsal,
    )


def svgs(page: str) -> list[ET.Element]:
    return [ET.fromstring(text) for text in re.findall(r"<svg .*?</svg>", page, re.DOTALL)]


def points(page: str) -> list[list[tuple[float, float]]]:
    """Per line of any plot, its points."""
    lines = [line.attrib["points"] for svg in svgs(page) for line in svg.iter("polyline")]
    return [[tuple(map(float, pair.split(","))) for pair in line.split()] for line in lines]  # type: ignore[misc]


def test_the_record_says_what_was_measured() -> None:
    record = made()
    assert record["cluster"]["served_model_name"] == "ds_r1" and record["cluster"]["proxy"]["port"] == 1999
    assert {instance["name"]: instance["chips"] for instance in record["cluster"]["instances"]} == {
        "p-a": 16,
        "p-b": 16,
        "d-a": 32,
    }
    assert record["settings"] == {"max_out_len": 256, "request_rate": 0, "prompts": "gsm8k", "tokenizer": "model"}
    assert json.loads(json.dumps(record)) == record


def test_the_warm_up_has_a_request_for_every_chip_of_the_larger_role() -> None:
    plan = planned(base())
    assert slices.overview(plan, slices.host_slices(plan, {}))["widest_role_chips"] == 32


def test_the_page_needs_nothing_else() -> None:
    page = benchmark.page(made())
    assert not re.search(r"<script|<link|\bsrc=|\bhref=|url\(|@import", page)
    assert len(svgs(page)) == 3
    assert "rehearsal" not in page and 'class="note"' not in page


def test_a_plot_shows_every_level_in_its_place() -> None:
    lines = points(benchmark.page(made()))
    assert len(lines) == 5, "median and P99 of TTFT and TPOT, and the throughput"
    for line in lines:
        across = [x for x, _y in line]
        assert len(line) == 3 and across == sorted(across)
    ttft, throughput = lines[0], lines[-1]
    # The value axis begins at zero: 100, 130 and 250 ms of at most 800 (P99 is the double).
    low, high = 260 - 40, 14
    shown = [(low - y) / (low - high) for _x, y in ttft]
    assert [round(share / shown[0], 2) for share in shown] == [1.0, 1.3, 2.5]
    assert [y for _x, y in throughput] == sorted((y for _x, y in throughput), reverse=True)


def test_two_runs_are_side_by_side() -> None:
    now, before = made(), made()
    now["levels"] = [level(1, 50.0, 100.0), level(8, 130.0, 380.0)]
    page = benchmark.page(now, before)
    assert len(points(page)) == 10
    assert '50.0 | 100.0 <span class="better">-50.0%</span>' in page
    assert '100.0 | 50.0 <span class="better">+100.0%</span>' in page
    assert '130.0 | 130.0 <span class="">+0.0%</span>' in page
    assert "- | 250.0" in page, "a level that only one of them has"
    assert "Not alike" not in page
    worse = benchmark.page(before, now)
    assert '100.0 | 50.0 <span class="worse">+100.0%</span>' in worse


def test_what_was_not_alike_is_said() -> None:
    now, before = made(), copy.deepcopy(made(rehearsal=True))
    before["settings"]["max_out_len"] = 10
    before["aisbench"] = "3.0"
    told = benchmark.differences(now, before)
    assert len(told) == 3 and "max_out_len: 10 then, 256 now" in told
    assert benchmark.page(now, before).count("Not alike") == 3


def test_what_makes_the_numbers_doubtful_is_on_the_page() -> None:
    record = made(rehearsal=True, cold=["p2:7100"])
    record["settings"]["prompts"] = "sample"
    page = benchmark.page(record)
    assert page.count('class="note"') == 3 and "p2:7100" in page and "simulated" in page


def test_names_are_text_not_markup() -> None:
    page = benchmark.page(made(name="<script>alert(1)</script>"))
    assert "<script" not in page and "&lt;script&gt;" in page


def test_one_level_and_missing_values_are_shown_as_they_are() -> None:
    record = made()
    record["levels"] = [{**level(16, 0.0, 0.0), "tpot_ms": {}}]
    page = benchmark.page(record)
    assert "No values." in page and len(svgs(page)) == 2
    assert benchmark.text_lines(record)[1].split()[:3] == ["16", "64", "0.0"]


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), ("{", "no JSON"), ("[]", "no result file"), ('{"schema": 99, "levels": []}', "schema 1")],
)
def test_a_wrong_file_to_compare_with_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "before.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(benchmark.BenchmarkError, match=said) as caught:
        benchmark.read(str(path))
    assert "benchmark_compare" in str(caught.value)


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(made()), encoding="utf-8")
    assert benchmark.read(str(path)) == made()

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""AISBench itself, as it comes from the package index, against a rehearsed cluster and upstream's proxy.

Not among the other tests: the first run installs AISBench with torch beside this interpreter (about 4 minutes, 2 to 7 GB).
"""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest

from ..integration.conftest import PROJECT, Rehearsal, rehearse

__all__ = ["rehearse"]

Make = t.Callable[..., Rehearsal]
SMALL = {"benchmark_concurrency": [1, 4], "benchmark_num_prompts": 8, "benchmark_max_out_len": 12}


@pytest.mark.timeout(1800)
def test_a_rehearsed_cluster_is_measured(rehearse: Make, tmp_path: Path) -> None:
    """Check mode, a run, a second run beside the first, and a cluster that is down."""
    cluster = rehearse(PROJECT / "inventories" / "1p1d", **SMALL)
    # Without the space that other tests have in it: measuring is then asynchronous, as on real hosts.
    cluster.state = tmp_path / "state"
    assert cluster.run("site.yml").rc == 0
    kept = tmp_path / "kept"

    checked = cluster.run("benchmark.yml", cmdline="--check", benchmark_results=str(kept))
    assert checked.rc == 0 and not kept.exists(), checked.stdout

    first = cluster.run("benchmark.yml", benchmark_results=str(kept))
    assert first.rc == 0, first.stdout
    (path,) = kept.glob("*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["rehearsal"] and record["cluster"]["served_model_name"] == "ds_r1"
    assert record["settings"]["prompts"] == "sample" and record["settings"]["tokenizer"] == "stand-in"
    assert [each["requests"] for each in record["warm_up"]["rounds"]] == [16, 16, 16], "one per chip"
    assert record["warm_up"]["cold"] == []
    assert [level["concurrency"] for level in record["levels"]] == [1, 4]
    for level in record["levels"]:
        assert level["requests"] == level["succeeded"] == 8 and level["failed"] == 0
        assert level["ttft_ms"]["median"] > 0 and level["tpot_ms"]["median"] > 0
        assert level["output_tokens"]["max"] == 12
    assert record["levels"][1]["output_token_throughput"] > record["levels"][0]["output_token_throughput"]
    assert "simulated" in path.with_suffix(".html").read_text(encoding="utf-8")
    written = Path(record["host_folder"], "pd_serving.py").read_text(encoding="utf-8")
    door = cluster.plan()["proxy"]
    assert f"'host_ip': '{door['address']}'" in written and f"'host_port': {door['port']}" in written

    second = cluster.run("benchmark.yml", benchmark_results=str(tmp_path / "second"), benchmark_compare=str(path))
    assert second.rc == 0, second.stdout
    assert set(second.changed()) == {"p1"} and second.changed()["p1"] == 1, (
        "AISBench was there; only files were written"
    )
    (page,) = (tmp_path / "second").glob("*.html")
    assert "earlier run" in page.read_text(encoding="utf-8")

    refused = cluster.run("benchmark.yml", benchmark_compare=str(tmp_path / "none.json"))
    assert refused.rc != 0 and "benchmark_compare" in refused.messages()

    assert cluster.run("stop.yml").rc == 0
    down = cluster.run("benchmark.yml", benchmark_results=str(tmp_path / "third"))
    assert down.rc != 0 and "cannot be warmed up" in down.messages() and not (tmp_path / "third").exists()

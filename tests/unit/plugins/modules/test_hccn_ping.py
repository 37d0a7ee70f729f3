# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Module hccn_ping."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.ascend.pd_serving.plugins.modules import hccn_ping
from ansible_collections.ascend.pd_serving.tests.unit.plugins.module_utils.npu.samples import DATA
from ansible_collections.ascend.pd_serving.tests.unit.plugins.modules.fake_npu import FakeHost

TARGET = "192.0.2.201"


def sample(name: str) -> str:
    return (DATA / f"{name}.txt").read_text(encoding="utf-8")


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def ping(chip: int = 0, target: str = TARGET, mode: str = "hccs") -> dict[str, Any]:
    return {"chip": chip, "target": target, "mode": mode}


def raw(**args: Any) -> dict[str, Any]:
    out = io.StringIO()
    with patch_module_args(args), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        hccn_ping.main()
    result: dict[str, Any] = json.loads(out.getvalue())
    return result


def run(host: FakeHost, *pings: dict[str, Any], **args: Any) -> dict[str, Any]:
    before = host.tree()
    result = raw(pings=list(pings), **{**host.arguments(), **args})
    assert not result.get("failed") and result["changed"] is False, result
    assert host.tree() == before
    return result


def test_numbers_of_both_kinds(host: FakeHost) -> None:
    host.answer("hccn_tool", f"-i 0 -hccs_ping -g address {TARGET}", sample("hccn-hccsping-a3-ok"))
    host.answer("hccn_tool", "-i 0 -ping -g address 192.0.2.81", sample("hccn-ping-a2-ok"))
    result = run(host, ping(), ping(target="192.0.2.81", mode="roce"), _ansible_check_mode=True)
    assert result["pings"] == [
        {
            **ping(),
            "state": "ok",
            "sent": 3,
            "received": 3,
            "loss_percent": 0.0,
            "l1_plane": [0, 0, 0],
            "max_us": 12.345,
            "min_us": 9.87,
            "average_us": 10.709,
            "p95_us": 12.345,
            "problems": [],
        },
        {
            **ping(target="192.0.2.81", mode="roce"),
            "state": "ok",
            "sent": 3,
            "received": 3,
            "loss_percent": 0.0,
            "l1_plane": [],
            "max_us": 114.0,
            "min_us": 79.0,
            "average_us": 92.0,
            "p95_us": None,
            "problems": [],
        },
    ]
    assert result["left_out"] == []
    assert result["tool"] == {"path": str(host.bin / "hccn_tool"), "state": "ok"}
    assert result["calls"]["count"] == 2


def test_exit_code_0_with_lost_packets(host: FakeHost) -> None:
    host.answer("hccn_tool", "default", sample("hccn-hccsping-a3-exit0-lost"), 0)
    (lost,) = run(host, ping(chip=3))["pings"]
    assert (lost["state"], lost["received"], lost["loss_percent"], lost["l1_plane"]) == ("ok", 1, 66.67, [0, 3, 0])


def test_the_ping_of_another_chip_or_target_is_not_this_one(host: FakeHost) -> None:
    host.answer("hccn_tool", "default", sample("hccn-hccsping-a3-ok"))
    states = [one["state"] for one in run(host, ping(), ping(chip=1), ping(target="192.0.2.202"))["pings"]]
    assert states == ["ok", "unknown", "unknown"]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (sample("hccn-hccsping-unsupported"), "unsupported"),
        (sample("hccn-err-device-absent"), "no_such_device"),
        ("Cmd executed successfully!\n", "unknown"),
        ("", "unknown"),
        ("This pkt ping success!\n", "unknown"),
    ],
)
def test_what_is_no_ping(host: FakeHost, text: str, state: str) -> None:
    host.answer("hccn_tool", "default", text)
    (answer,) = run(host, ping())["pings"]
    assert answer == {**ping(), "state": state, "text": text.strip()}


def test_an_occupied_device_is_asked_again(host: FakeHost) -> None:
    good = host.answers / "good"
    good.write_text(sample("hccn-hccsping-a3-ok"))
    busy = DATA / "hccn-hccsping-busy.txt"
    body = f"if [ -e '{host.answers}/once' ]; then cat '{good}'; else : > '{host.answers}/once'; cat '{busy}'; fi"
    host.script("hccn_tool", "default", body)
    result = run(host, ping())
    assert result["pings"][0]["state"] == "ok" and result["calls"]["busy_retries"] == 1


def test_a_spent_budget_leaves_pings_out_by_name(host: FakeHost) -> None:
    host.script("hccn_tool", "default", f"sleep 0.3; cat {DATA}/hccn-hccsping-a3-ok.txt")
    pings = [ping() for _ in range(3)] + [ping(chip=chip) for chip in range(1, 6)]
    result = run(host, *pings, budget=0.75)
    done = len(result["pings"])
    assert 2 <= done <= 3
    assert result["left_out"] == pings[done:]
    assert result["calls"]["elapsed"] < 2


def test_a_hanging_ping_is_killed_and_the_next_one_sent(host: FakeHost) -> None:
    host.script("hccn_tool", f"-i 0 -hccs_ping -g address {TARGET}", "sleep 60")
    host.answer("hccn_tool", "default", sample("hccn-hccsping-a3-exit0-lost"))
    result = run(host, ping(), ping(chip=3), timeout=0.3)
    assert [one["state"] for one in result["pings"]] == ["timeout", "ok"]
    assert result["left_out"] == []


def test_pings_go_out_one_after_the_other_in_their_order(host: FakeHost) -> None:
    pings = [
        ping(chip=chip, target=f"192.0.2.{chip + 1}", mode=mode) for chip in (5, 0, 3) for mode in ("hccs", "roce")
    ]
    run(host, *pings, count=5, interval=20)
    assert host.calls == [
        f"hccn_tool -i {chip} {words}"
        for chip in (5, 0, 3)
        for words in (
            f"-hccs_ping -g address 192.0.2.{chip + 1} cnt 5 interval 20",
            f"-ping -g address 192.0.2.{chip + 1}",
        )
    ]


def test_a_missing_tool(host: FakeHost) -> None:
    result = run(host, ping(), environment={"PATH": "/nowhere"})
    assert result["pings"][0]["state"] == result["tool"]["state"] == "tool_missing"
    assert result["tool"]["path"] is None


def test_all_wrong_options_are_told_at_once() -> None:
    result = raw(pings=[ping(target="x; reboot"), ping(chip=-1, target="0.0.0.0")], count=0, interval=-1, timeout=0)
    assert result["failed"]
    for part in ("pings[0].target", "'x; reboot'", "pings[1].chip", "pings[1].target", "count", "interval", "timeout"):
        assert part in result["msg"]

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""How the tools are asked: one after the other, never for longer than allowed, and nothing but queries."""

from __future__ import annotations

import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ascend.pd_serving.plugins.module_utils.npu import answers, hccn, tool
from ansible_collections.ascend.pd_serving.plugins.module_utils.npu.pings import Ping

LINK = ["-i", "0", "-link", "-g"]
SETTERS = ["-s", "-cfg", "-a", "-d", "-c", "-clear", "-del", "set", "clear", "recovery", "reset", "-r", "-t", "enable"]


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def tools(root: Path, timeout: float = 5, budget: float = 30) -> tool.Tools:
    return tool.Tools(str(root), {"PATH": os.environ["PATH"]}, False, timeout, budget)


def hccn_tool(root: Path, body: str) -> Path:
    return script(Path(f"{root}/usr/local/Ascend/driver/tools/hccn_tool"), body)


# What may be asked


@pytest.mark.parametrize("word", SETTERS)
def test_a_setter_is_never_run(tmp_path: Path, word: str) -> None:
    hccn_tool(tmp_path, f"touch {tmp_path}/ran")
    script(tmp_path / "usr/local/bin/npu-smi", f"touch {tmp_path}/ran")
    asked = tools(tmp_path)
    for words in (["-i", "0", "-ip", word], ["-i", "0", word, "-g"], [*LINK, word], [word, "-tls", "-i", "0"], [word]):
        with pytest.raises(tool.NotAllowed):
            asked.ask(tool.HCCN_TOOL, words)
    for words in (
        ["info", word, "0"],
        [word, "-t", "spod-info", "-i", "0", "-c", "0"],
        ["info", "-t", word, "-i", "0"],
    ):
        with pytest.raises(tool.NotAllowed):
            asked.ask(tool.NPU_SMI, words)
    assert not (tmp_path / "ran").exists()


@given(words=st.lists(st.sampled_from([*SETTERS, *LINK, "-tls", "-ip", "address", "192.0.2.1", "info"]), max_size=7))
def test_no_allowed_question_holds_a_setter(words: list[str]) -> None:
    for name, patterns in tool.ALLOWED.items():
        if any(pattern.fullmatch(" ".join(words)) for pattern in patterns):
            # Of npu-smi -c and -t say which chip and which table; they come after info only.
            setters = set(SETTERS) - ({"-c", "-t"} if name == tool.NPU_SMI and words[0] == "info" else set())
            assert not setters & set(words)


def test_a_word_with_a_blank_is_no_way_around(tmp_path: Path) -> None:
    for words in ([*LINK, "-s enable 0"], ["-i", "0; reboot", "-link", "-g"], ["-i", "0\n", "-link", "-g"]):
        with pytest.raises(tool.NotAllowed):
            tools(tmp_path).ask(tool.HCCN_TOOL, words)


# How it is asked


def test_both_channels_are_the_answer_and_the_exit_code_decides_nothing(tmp_path: Path) -> None:
    hccn_tool(tmp_path, 'if [ $2 = 0 ]; then echo "link status: UP"; exit 3; fi; echo "The device is not exist!" >&2')
    asked = tools(tmp_path)
    up = asked.ask(tool.HCCN_TOOL, LINK, 0).read(hccn.parse_link)
    assert up == {"state": "ok", "link": "UP", "exit_code": 3}
    absent = asked.ask(tool.HCCN_TOOL, ["-i", "8", "-link", "-g"], 8).read(hccn.parse_link)
    assert absent == {"state": "no_such_device", "text": "The device is not exist!"}


def test_tools_speak_english_and_hear_nothing(tmp_path: Path) -> None:
    hccn_tool(tmp_path, 'read line || echo "link status: UP"; [ "$LC_ALL" = C ] || echo fremd')
    answer = tool.Tools(str(tmp_path), {"PATH": "/bin", "LC_ALL": "zh_CN.UTF-8"}, False, 5, 30)
    assert answer.ask(tool.HCCN_TOOL, LINK).read(hccn.parse_link)["state"] == "ok"


def test_a_hanging_call_is_killed_with_its_children(tmp_path: Path) -> None:
    hccn_tool(tmp_path, f"echo 'link status: UP'; sleep 60 & echo $! > {tmp_path}/child; wait")
    asked = tools(tmp_path, timeout=0.5)
    started = time.monotonic()
    answer = asked.ask(tool.HCCN_TOOL, LINK, 0).read(hccn.parse_link)
    assert time.monotonic() - started < 3
    # It had printed a whole answer, but nobody knows what would have followed.
    assert answer["state"] == "timeout" and "link status: UP" in answer["text"]
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 3
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split(")")[-1][:3]:
        assert time.monotonic() < deadline, "the child lives on"
        time.sleep(0.02)


def test_a_child_that_keeps_the_channel_open_is_no_hang(tmp_path: Path) -> None:
    hccn_tool(tmp_path, f"echo 'link status: UP'; setsid sleep 5 & echo $! > {tmp_path}/child")
    started = time.monotonic()
    answer = tools(tmp_path, timeout=0.5).ask(tool.HCCN_TOOL, LINK, 0)
    assert answer.state == "timeout" and time.monotonic() - started < 3
    os.kill(int((tmp_path / "child").read_text()), 9)


def test_a_chip_that_hangs_twice_is_left_alone(tmp_path: Path) -> None:
    hccn_tool(tmp_path, f"echo $2 >> {tmp_path}/log; [ $2 != 0 ] || sleep 60; echo 'link status: UP'")
    asked = tools(tmp_path, timeout=0.2)
    states = [asked.ask(tool.HCCN_TOOL, LINK, 0).state for _ in range(4)]
    assert states == ["timeout"] * 4
    assert asked.ask(tool.HCCN_TOOL, ["-i", "1", "-link", "-g"], 1).state == "ok"
    assert (tmp_path / "log").read_text().split() == ["0", "0", "1"]


def test_a_busy_tool_is_asked_again(tmp_path: Path) -> None:
    hccn_tool(
        tmp_path,
        f"echo x >> {tmp_path}/log; if [ $(wc -l < {tmp_path}/log) -le 2 ]; then"
        " echo 'hccn_tool is busy, please try again.'; exit 1; fi; echo 'link status: UP'",
    )
    asked = tools(tmp_path)
    assert asked.ask(tool.HCCN_TOOL, LINK, 0).read(hccn.parse_link) == {"state": "ok", "link": "UP"}
    calls = asked.report()["calls"]
    assert (calls["count"], calls["busy_retries"]) == (3, 2)


def test_a_tool_that_stays_busy_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "FIRST_PAUSE", 0.01)
    hccn_tool(tmp_path, "echo 'hccn_tool is busy, please try again.'")
    asked = tools(tmp_path)
    assert asked.ask(tool.HCCN_TOOL, LINK, 0).read(hccn.parse_link)["state"] == "busy"
    calls = asked.report()["calls"]
    assert (calls["count"], calls["busy_retries"]) == (6, 5)
    # 1 + 2 + 4 + 8 + 16 pauses of 10 ms.
    assert 0.31 <= calls["elapsed"] - calls["seconds"] < 1


def test_a_tool_that_is_always_busy_is_not_waited_for_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "FIRST_PAUSE", 0.01)
    hccn_tool(
        tmp_path, f"[ -e {tmp_path}/free ] && echo 'link status: UP' || echo 'hccn_tool is busy, please try again.'"
    )
    asked = tools(tmp_path)

    def states(count: int) -> set[str]:
        return {asked.ask(tool.HCCN_TOOL, LINK, 0).read(hccn.parse_link)["state"] for _ in range(count)}

    assert states(10) == {"busy"}
    assert asked.report()["calls"]["count"] == 4 * 6 + 6
    (tmp_path / "free").touch()
    assert states(1) == {"ok"}
    (tmp_path / "free").unlink()
    assert states(1) == {"busy"}
    assert asked.report()["calls"]["count"] == 4 * 6 + 6 + 1 + 6, "what has answered is waited for again"


def test_the_budget_bounds_everything(tmp_path: Path) -> None:
    hccn_tool(tmp_path, "sleep 0.3; echo 'link status: UP'")
    asked = tools(tmp_path, budget=0.5)
    started = time.monotonic()
    calls = [asked.ask(tool.HCCN_TOOL, ["-i", str(chip), "-link", "-g"], chip) for chip in range(20)]
    assert time.monotonic() - started < 2
    assert calls[0].state == "ok"
    assert {call.state for call in calls[2:]} == {"timeout"}
    assert calls[-1].spent and "0.5 seconds for this host were spent" in calls[-1].text
    assert asked.report()["calls"]["count"] <= 2


def test_a_flood_is_cut_off(tmp_path: Path) -> None:
    hccn_tool(tmp_path, "yes 'link status: UP'")
    answer = tools(tmp_path).ask(tool.HCCN_TOOL, LINK, 0)
    assert answer.state == "failed" and len(answer.text) < 2**21


def test_a_crash_is_not_ok(tmp_path: Path) -> None:
    hccn_tool(tmp_path, "echo 'link status: UP'; kill -SEGV $$")
    answer = tools(tmp_path).ask(tool.HCCN_TOOL, LINK, 0).read(hccn.parse_link)
    assert answer["state"] == "failed" and "signal 11" in answer["text"]


# Taking turns

TURN = """
mkdir {root}/busy 2>/dev/null || {{ echo overlap >> {root}/log; }}
sleep 0.05
rmdir {root}/busy
echo "$2" >> {root}/log
echo 'link status: UP'
"""


def test_calls_of_a_host_never_overlap_also_between_runs(tmp_path: Path) -> None:
    hccn_tool(tmp_path, TURN.format(root=tmp_path))
    runs = [tools(tmp_path) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        asked = itertools.product(runs, range(3))
        states = pool.map(
            lambda one: one[0].ask(tool.HCCN_TOOL, ["-i", str(one[1]), "-link", "-g"], one[1]).state, asked
        )
        assert set(states) == {"ok"}
    log = (tmp_path / "log").read_text().split()
    assert len(log) == 12 and "overlap" not in log


def test_rehearsed_hosts_do_not_wait_for_one_another(tmp_path: Path) -> None:
    """They share one stand-in, but each has a folder of its own."""
    script(tmp_path / "bin/hccn_tool", "sleep 0.4; echo 'link status: UP'")
    hosts = []
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).mkdir()
        environ = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        hosts.append(tool.Tools(str(tmp_path / name), environ, True, 5, 30))
    started = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda host: host.ask(tool.HCCN_TOOL, LINK, 0).state, hosts)) == {"ok"}
    assert time.monotonic() - started < 1.2


def test_a_lock_that_never_comes_free_ends_with_the_budget(tmp_path: Path) -> None:
    hccn_tool(tmp_path, "sleep 2; echo 'link status: UP'")
    first, second = tools(tmp_path), tools(tmp_path, budget=0.4)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(first.ask, tool.HCCN_TOOL, LINK, 0)
        time.sleep(0.15)
        answer = second.ask(tool.HCCN_TOOL, LINK, 0)
        assert (answer.state, second.count) == ("busy", 0)
        assert running.result().state == "ok"


def test_asking_leaves_no_trace(tmp_path: Path) -> None:
    hccn_tool(tmp_path, "echo 'link status: UP'")
    before = sorted(tmp_path.rglob("*"))
    assert tools(tmp_path).ask(tool.HCCN_TOOL, LINK, 0).state == "ok"
    assert sorted(tmp_path.rglob("*")) == before


# Where they are


def test_both_folders_of_npu_smi_are_looked_into(tmp_path: Path) -> None:
    script(tmp_path / "usr/local/sbin/npu-smi", "echo hi")
    assert tools(tmp_path).paths[tool.NPU_SMI] == f"{tmp_path}/usr/local/sbin/npu-smi"


def test_a_path_that_somebody_has_set_comes_first(tmp_path: Path) -> None:
    script(tmp_path / "usr/local/bin/npu-smi", "echo usual")
    script(tmp_path / "bin/npu-smi", "echo path")
    path = f"relative:{tmp_path}/bin"
    assert tool.find(tool.NPU_SMI, str(tmp_path), path, True) == f"{tmp_path}/bin/npu-smi"
    assert tool.find(tool.NPU_SMI, str(tmp_path), path, False) == f"{tmp_path}/usr/local/bin/npu-smi"


def test_a_missing_tool_names_the_places(tmp_path: Path) -> None:
    asked = tool.Tools(str(tmp_path), {"PATH": "/nowhere"}, False, 5, 30)
    answer = asked.ask(tool.NPU_SMI, ["info"]).read(hccn.parse_link)
    assert answer["state"] == "tool_missing"
    for place in ("/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi", "PATH=/nowhere"):
        assert place in answer["text"]
    report = asked.report()["tools"]
    assert report["npu_smi"]["state"] == report["hccn_tool"]["state"] == "tool_missing"
    assert report["npu_smi"]["path"] is None


def test_a_folder_or_a_file_nobody_may_run_is_no_tool(tmp_path: Path) -> None:
    (tmp_path / "usr/local/bin/npu-smi").mkdir(parents=True)
    hccn_tool(tmp_path, "").chmod(0o644)
    asked = tool.Tools(str(tmp_path), {"PATH": ""}, False, 5, 30)
    assert asked.paths == {tool.NPU_SMI: None, tool.HCCN_TOOL: None}


def test_a_tool_that_only_refuses_is_reported_as_such(tmp_path: Path) -> None:
    hccn_tool(tmp_path, "echo 'permission denied: pls check this cmd run permission.'")
    asked = tools(tmp_path)
    asked.ask(tool.HCCN_TOOL, LINK, 0)
    state = asked.report()["tools"]["hccn_tool"]
    assert state["state"] == "denied" and state["text"].startswith("permission denied")


def test_a_file_that_is_no_program_is_told(tmp_path: Path) -> None:
    path = hccn_tool(tmp_path, "")
    path.write_bytes(b"\x7fELF nonsense")
    answer = tools(tmp_path).ask(tool.HCCN_TOOL, LINK, 0)
    assert answer.state == "failed" and "format" in answer.text.lower()


# Words of pings


@pytest.mark.parametrize(
    ("ping", "count", "interval", "line"),
    [
        (Ping(0, "192.0.2.1", "roce"), 3, None, "-i 0 -ping -g address 192.0.2.1"),
        (Ping(15, "192.0.2.1", "hccs"), 3, None, "-i 15 -hccs_ping -g address 192.0.2.1"),
        (Ping(1, "192.0.2.1", "hccs"), 5, 100, "-i 1 -hccs_ping -g address 192.0.2.1 cnt 5 interval 100"),
    ],
)
def test_words_of_a_ping(ping: Ping, count: int, interval: int | None, line: str) -> None:
    assert " ".join(ping.words(count, interval)) == line
    assert any(pattern.fullmatch(line) for pattern in tool.ALLOWED[tool.HCCN_TOOL])


def test_states_are_the_agreed_ones() -> None:
    assert set(answers.STATES) == {
        "ok",
        "not_configured",
        "unsupported",
        "no_such_device",
        "busy",
        "timeout",
        "denied",
        "conf_unreadable",
        "tool_missing",
        "failed",
        "unknown",
    }

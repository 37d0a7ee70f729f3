# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Reading counters and answers."""

from __future__ import annotations

import json
import threading
import time

import pytest

from ansible_collections.ascend.pd_serving.plugins.module_utils import completions
from ansible_collections.ascend.pd_serving.plugins.module_utils.completions import Counters, Endpoint, Request, Work

METRICS = """\
# HELP vllm:request_success_total Count of successfully processed requests.
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="a \\"b\\" {c}"} 3.0
vllm:request_success_total{engine="1",finished_reason="length",model_name="m"} 4.0
vllm:request_success_total{engine="1",finished_reason="abort",model_name="m"} 50.0
vllm:request_success_total{engine="1",finished_reason="error",model_name="m"} 60.0
vllm:request_success_created{engine="0"} 1.7e9
vllm:prompt_tokens_total{engine="0"} 1.2e3
vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 17.0
vllm:prompt_tokens_by_source_total{engine="1",source="local_compute"} 3.0
vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 9000
vllm:prompt_tokens_total{engine="1"} broken
"""


def test_counters_of_all_engines_add_up() -> None:
    assert completions.parse_counters(METRICS) == Counters(7.0, 1200.0, 20.0)
    assert completions.parse_counters("vllm:request_success_total 5\n") == Counters(5.0, None, None)
    assert completions.parse_counters("") == Counters()


@pytest.mark.parametrize(
    ("before", "after", "reached", "restarted"),
    [
        (Counters(1, 100, 5), Counters(2, 400, 6), True, False),
        (Counters(1, 100, 5), Counters(1, 400, 6), False, False),
        (Counters(None, 100), Counters(None, 400), True, False),
        (Counters(None, 100), Counters(None, 100), False, False),
        (Counters(), Counters(), None, False),
        (Counters(5, 100), Counters(1, 50), False, True),
    ],
)
def test_what_an_endpoint_has_done(before: Counters, after: Counters, reached: bool | None, restarted: bool) -> None:
    work = completions.work_between(before, after)
    assert (work.reached, work.restarted) == (reached, restarted)


@pytest.mark.parametrize(
    ("requests", "local", "expected"),
    [
        (4.0, 4.0, 0),
        (4.0, 303.0, 0),
        (4.0, 304.0, 1),
        (4.0, 1204.0, 4),
        (None, 299.0, 0),
        (None, 300.0, 1),
        (4.0, None, None),
    ],
)
def test_whole_prompts_computed_by_decode(requests: float | None, local: float | None, expected: int | None) -> None:
    assert completions.prefilled_locally(Work(requests, None, local), 300) == expected


def endpoints(prefill: int, decode: int) -> list[Endpoint]:
    roles = ["prefill"] * prefill + ["decode"] * decode
    return [Endpoint(f"{role} {n}", role, role, "h", "http://127.0.0.1:1") for n, role in enumerate(roles)]


def test_how_many_requests() -> None:
    assert completions.default_requests(endpoints(2, 32)) == 64
    assert completions.default_requests([]) == 2
    assert completions.thread_limit(endpoints(2, 32)) == 512
    assert completions.thread_limit(endpoints(2, 1024)) == 1024


def test_requests_are_of_every_kind_and_none_is_like_another() -> None:
    requests = completions.build_requests(0, 8, 16, True)
    kinds = [(each.api, each.stream) for each in requests]
    assert len(set(kinds[:4])) == 4 and kinds[:4] == kinds[4:]
    assert len({kind for kind in completions.build_requests(0, 2, 16, True) for kind in [kind.api]}) == 2
    assert len({each.prompt for each in requests}) == 8
    assert str(requests[1]) == "request 1 (chat/completions, streamed)"
    assert requests[1].body("m") | {"messages": 0} == {
        "model": "m",
        "messages": 0,
        "max_tokens": 16,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    assert {each.api for each in completions.build_requests(0, 8, 16, False)} == {"completions"}


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"text": "a"}, "a"),
        ({"message": {"content": "a"}}, "a"),
        ({"delta": {"content": "a"}}, "a"),
        ({"message": {"content": None, "reasoning_content": "r"}}, "r"),
        ({"message": {"content": "a", "reasoning": "r"}}, "ra"),
        ({"delta": {}}, ""),
        ({"text": None}, ""),
        ({}, ""),
    ],
)
def test_text_of_a_choice(choice: dict[str, object], text: str) -> None:
    assert completions.text_of(choice) == text


def test_a_stream_in_any_pieces() -> None:
    events = [{"choices": [{"text": f"{n}ü "}]} for n in range(5)] + [{"choices": [], "usage": {"prompt_tokens": 9}}]
    body = ": ping\n\n" + "".join(f"data: {json.dumps(each, ensure_ascii=False)}\r\n\r\n" for each in events)
    data = (body + "data: [DONE]\n\n").encode()
    for size in (1, 2, 7, 1000):
        answer = completions.Answer(True)
        for start in range(0, len(data), size):
            answer.feed(data[start : start + size])
        assert answer.finish() is None
        assert (answer.text, answer.prompt_tokens) == ("0ü 1ü 2ü 3ü 4ü ", 9)


@pytest.mark.parametrize(
    ("stream", "body", "words"),
    [
        (True, "", "no [DONE] after 0 bytes: (empty body)"),
        (True, 'data: {"choices": [{"text": "a"}]}\n\n', "the stream was cut off: no [DONE] after 36 bytes"),
        (True, "data: [DONE]\n\n", "the answer holds no text"),
        (True, "data: {broken\n\ndata: [DONE]\n\n", "the answer is no JSON"),
        (False, "", "the answer is no JSON: (empty body)"),
        (False, "<html>", "the answer is no JSON: <html>"),
        (False, "[]", "the answer is an error: []"),
        (False, '{"error": {"message": "x"}}', 'the answer is an error: {"error"'),
        (False, '{"choices": []}', "the answer holds no text"),
        (False, '{"choices": [{"text": " \\n"}]}', "the answer holds no text"),
    ],
)
def test_bodies_that_are_no_answer(stream: bool, body: str, words: str) -> None:
    answer = completions.Answer(stream)
    answer.feed(body.encode())
    assert words in (answer.finish() or "")


def test_failures_that_are_alike_are_one_line() -> None:
    requests = [Request(n, "completions", False, "", 1) for n in range(4)]
    outcomes = [completions.Outcome(requests[0], "HTTP 500"), completions.Outcome(requests[1])]
    outcomes += [completions.Outcome(each, "HTTP 500") for each in requests[2:3]]
    outcomes += [completions.Outcome(requests[3], "late")]
    assert completions.failures_of(outcomes) == [
        "request 0 (completions) and 1 more: HTTP 500",
        "request 3 (completions): late",
    ]


def test_the_spread_of_values() -> None:
    assert completions.spread([3.0, 1.0, 2.00049]) == {"min": 1.0, "median": 2.0, "max": 3.0}
    assert completions.spread([]) is None


def test_the_starting_line_opens_when_all_are_there_and_not_before() -> None:
    line = completions.StartingLine(3)
    passed: list[float] = []

    def go() -> None:
        line.arrive(5)
        passed.append(time.monotonic())

    threads = [threading.Thread(target=go) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    assert passed == []
    line.arrive(5)
    for thread in threads:
        thread.join()
    line.arrive(5)  # whoever comes later does not wait
    late = completions.StartingLine(2)
    begun = time.monotonic()
    late.arrive(0.1)
    assert 0.05 < time.monotonic() - begun < 2

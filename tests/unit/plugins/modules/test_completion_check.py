# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Module completion_check against a small deployment of threads: a proxy, prefill and decode endpoints."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.ascend.pd_serving.plugins.module_utils import completions
from ansible_collections.ascend.pd_serving.plugins.modules import completion_check


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is part of some tests."""


class Engine:
    """Counters of one endpoint, as vLLM prints them."""

    def __init__(self, name: str, role: str) -> None:
        self.name, self.role = name, role
        self.requests = self.load = 0
        self.local_per_request = 1
        self.statistics = self.by_source = True
        self.usage: list[float] = []
        self.url = ""

    def metrics(self) -> str:
        if not self.statistics:
            return "# HELP python_info\npython_info 1\n"
        lines = [
            f'vllm:request_success_total{{engine="0",finished_reason="length"}} {self.requests}.0',
            'vllm:request_success_total{engine="0",finished_reason="abort"} 7.0',
            f'vllm:prompt_tokens_total{{engine="0"}} {self.requests * 300}.0',
        ]
        if self.by_source:
            local = self.requests * self.local_per_request
            lines.append(f'vllm:prompt_tokens_by_source_total{{engine="0",source="local_compute"}} {local}.0')
            lines.append('vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 9e9')
        if self.usage:
            share = self.usage.pop(0) if len(self.usage) > 1 else self.usage[0]
            lines.append(f'vllm:kv_cache_usage_perc{{engine="0"}} {share}')
        return "\n".join(lines) + "\n"


class Deployment:
    """The proxy chooses the endpoint with the least load, the first of equals, as upstream's does."""

    def __init__(self, prefill: int, decode: int) -> None:
        self.engines = [Engine(f"prefill rank {n}", "prefill") for n in range(prefill)]
        self.engines += [Engine(f"decode rank {n}", "decode") for n in range(decode)]
        self.lock = threading.Lock()
        self.seen: list[dict[str, Any]] = []
        self.fault = ""
        self.delay = 0.05
        self.skip: set[str] = set()
        self.skipped_rounds = 0
        self.servers: list[Server] = []
        for engine in self.engines:
            engine.url = self.serve(self.engine_handler(engine))
        self.url = self.serve(self.proxy_handler())

    def serve(self, handler: type[BaseHTTPRequestHandler]) -> str:
        server = Server(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self.servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    def engine_handler(self, engine: Engine) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(engine.metrics().encode())

            def log_message(self, *args: Any) -> None:
                pass

        return Handler

    def choose(self, role: str) -> Engine:
        usable = [e for e in self.engines if e.role == role and e.name not in self.skip]
        engine = min(usable, key=lambda each: each.load)
        engine.load += 1
        return engine

    def proxy_handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.lock:
                    number = len(outer.seen)
                    outer.seen.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
                    chosen = [outer.choose("prefill"), outer.choose("decode")]
                time.sleep(outer.delay)
                with outer.lock:
                    for engine in chosen:
                        engine.load -= 1
                        engine.requests += 1
                self.answer(body, self.path.endswith("chat/completions"), outer.fault, number)

            def answer(self, body: dict[str, Any], chat: bool, fault: str, number: int) -> None:
                if fault == "second empty" and number % 2 == 0:
                    fault = ""
                if fault == "hang":
                    time.sleep(3)
                if body["max_tokens"] == completions.REFUSED_TOKENS:
                    self.plain(400, json.dumps({"error": "max_tokens is too large"}))
                elif fault == "status":
                    self.plain(500, json.dumps({"error": "KV transfer failed"}))
                elif fault == "second empty":
                    self.plain(200, "")
                elif body["stream"]:
                    self.stream(chat, body["max_tokens"], fault)
                else:
                    text = "" if fault == "no text" else " t" * body["max_tokens"]
                    choice = {"message": {"content": None, "reasoning_content": text}} if chat else {"text": text}
                    usage = {"prompt_tokens": 301}
                    self.plain(200, json.dumps({"choices": [choice], "usage": usage}), short=fault == "cut body")

            def plain(self, status: int, text: str, short: bool = False) -> None:
                data = text.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(data[:20] if short else data)
                self.close_connection = True

            def stream(self, chat: bool, tokens: int, fault: str) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                events: list[Any] = [{"choices": []}]
                for _ in range(tokens):
                    text = "" if fault == "no text" else " t"
                    events.append({"choices": [{"delta": {"content": text}} if chat else {"text": text}]})
                if fault == "error event":
                    events.append({"error": {"message": "decode is gone"}})
                for event in events:
                    self.chunk(f"data: {json.dumps(event)}\n\n")
                if fault == "cut chunk":
                    self.wfile.write(b"20\r\nhalf")
                    self.close_connection = True
                    return
                if fault != "cut stream":
                    self.chunk("data: [DONE]\n\n")
                self.wfile.write(b"0\r\n\r\n")

            def chunk(self, text: str) -> None:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text.encode()))

        return Handler

    def check(self, **args: Any) -> dict[str, Any]:
        endpoints = [
            {"name": e.name, "role": e.role, "instance": e.role, "host": f"{e.role[0]}1", "url": e.url}
            for e in self.engines
        ]
        given = {"proxy_url": self.url, "model": "demo", "endpoints": endpoints, "timeout": 10, **args}
        out = io.StringIO()
        with patch_module_args(given), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            completion_check.main()
        result: dict[str, Any] = json.loads(out.getvalue())
        return result

    def close(self) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(completions, "SETTLE_SECONDS", 0.3)
    deployment = Deployment(2, 3)
    yield deployment
    deployment.close()


def test_a_deployment_that_works(small: Deployment) -> None:
    result = small.check(api_key="secret-key")
    assert result["failures"] == [] and result["ok"] is True and result["changed"] is False
    assert (result["requests"], result["rounds"]) == (6, 1)
    assert result["roles"] == {"decode": {"total": 3, "reached": 3}, "prefill": {"total": 2, "reached": 2}}
    assert (result["local_prefill"], result["not_judged"]) == ("none", [])
    assert 0.04 < result["latency"]["min"] <= result["latency"]["median"] <= result["latency"]["max"] < 5
    assert result["time_to_first_token"]["min"] > 0.04
    assert result["sample"]["text"] == " t" * 16 and result["sample"]["request"]["prompt"].endswith("...")
    assert "secret-key" not in json.dumps(result)
    assert {each["key"] for each in small.seen} == {"Bearer secret-key"}
    assert {(each["path"], each["stream"]) for each in small.seen} == {
        ("/v1/completions", False),
        ("/v1/completions", True),
        ("/v1/chat/completions", False),
        ("/v1/chat/completions", True),
    }
    prompts = [each.get("prompt") or each["messages"][0]["content"] for each in small.seen]
    assert len({prompt.split()[0] for prompt in prompts}) == 6
    assert all(len(prompt.split()) > 300 for prompt in prompts)
    assert all(each["max_tokens"] == 16 and each["model"] == "demo" for each in small.seen)


def test_a_model_without_chat_template(small: Deployment) -> None:
    assert small.check(chat=False, requests=4)["ok"]
    assert {each["path"] for each in small.seen} == {"/v1/completions"}
    assert [each["stream"] for each in sorted(small.seen, key=str)].count(True) == 2


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("status", 'HTTP 500: {"error": "KV transfer failed"}'),
        ("second empty", "(empty body)"),
        ("no text", "the answer holds no text: "),
        ("cut stream", "the stream was cut off: no [DONE] after "),
        ("cut chunk", "the answer was cut off: IncompleteRead"),
        ("cut body", "the answer is no JSON: "),
        ("error event", 'the answer is an error: {"error": {"message": "decode is gone"}}'),
        ("hang", "no complete answer within 0.5 s"),
    ],
)
def test_answers_that_are_none(small: Deployment, fault: str, words: str) -> None:
    """RUN-01, RUN-05, TIME-05: an empty 200, a request that never ends, a failed transfer."""
    small.fault = fault
    result = small.check(timeout=0.5 if fault == "hang" else 10)
    assert result["ok"] is False and result["rounds"] == 1
    assert any(words in failure for failure in result["failures"]), result["failures"]
    assert all(failure.startswith("request ") for failure in result["failures"])


def test_a_proxy_that_is_not_there(small: Deployment) -> None:
    result = small.check(proxy_url="http://127.0.0.1:9")
    assert result["failures"] == ["request 0 (completions) and 5 more: http://127.0.0.1:9: Connection refused"]
    assert (result["latency"], result["sample"]) == (None, None)


def test_an_endpoint_that_is_not_there_is_named(small: Deployment) -> None:
    """RUN-01: the proxy would not tell."""
    engine = small.engines[-1]
    small.servers[4].shutdown()
    small.servers[4].server_close()
    result = small.check()
    assert (
        f"decode rank 2 (decode instance decode on d1, {engine.url}): /metrics: Connection refused"
        in result["failures"]
    )
    assert result["requests"] == 0


def test_an_endpoint_that_is_never_reached_is_tried_again_and_named(small: Deployment) -> None:
    small.skip = {"decode rank 1"}
    result = small.check()
    assert (result["requests"], result["rounds"]) == (6 + 12 + 24, 3)
    assert result["failures"] == [
        f"decode rank 1 (decode instance decode on d1, {small.engines[3].url}): saw none of 42 requests in 3 rounds"
    ]
    assert result["roles"]["decode"] == {"total": 3, "reached": 2}


def test_a_second_round_may_reach_it(small: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    small.skip = {"decode rank 1"}
    real = completions.build_requests

    def second_round(first: int, *args: Any) -> Any:
        if first:
            small.skip = set()
        return real(first, *args)

    monkeypatch.setattr(completions, "build_requests", second_round)
    result = small.check()
    assert (result["ok"], result["rounds"]) == (True, 2)
    assert max(each["max_tokens"] for each in small.seen) == 32


def test_a_decode_endpoint_that_prefills_itself_is_named(small: Deployment) -> None:
    """TIME-05: a good answer without the transferred cache."""
    small.engines[2].local_per_request = 301
    result = small.check()
    assert result["local_prefill"] == "found"
    (failure,) = result["failures"]
    assert failure.startswith("decode rank 0 (decode instance decode on d1, ")
    assert "prompt tokens itself, 1 whole prompts or more: the KV cache did not come from prefill" in failure


def test_what_is_not_counted_is_not_judged(small: Deployment, warned: list[str]) -> None:
    for engine in small.engines:
        engine.by_source = False
    small.engines[0].statistics = False
    result = small.check()
    assert result["ok"]
    assert (result["local_prefill"], result["not_judged"]) == ("not judged", ["prefill rank 0"])
    assert result["roles"]["prefill"] == {"total": 2, "reached": 1}
    assert len(warned) == 2 and warned[0].endswith("prefill rank 0") and "KV cache from prefill" in warned[1]


def test_an_endpoint_that_starts_anew_meanwhile_is_named(small: Deployment) -> None:
    small.engines[4].requests = 100
    real = small.engines[4].metrics
    texts = iter([real(), 'vllm:request_success_total{engine="0"} 1.0\n'])
    small.engines[4].metrics = lambda: next(texts, real())  # type: ignore[method-assign]
    (failure,) = small.check()["failures"]
    assert failure.startswith("decode rank 2 (") and "started anew during the check" in failure


def test_many_endpoints_are_all_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = Deployment(4, 40)
    deployment.delay = 0.3
    try:
        result = deployment.check()
        assert result["failures"] == [] and result["requests"] == 80
        assert result["roles"]["decode"] == {"total": 40, "reached": 40}
    finally:
        deployment.close()


@pytest.mark.parametrize(
    ("usage", "held"),
    [
        # Before and after the check, before the refused request, and from then on.
        ([0.0, 0.0, 0.0, 0.02, 0.02, 0.0], None),
        ([0.0, 0.0, 0.0, 0.02], ("2.00%", "0.00%")),
        ([0.5, 0.5, 0.3, 0.3], None),
        ([0.0, 0.1, 0.3, 0.31], ("31.00%", "30.00%")),
        ([], None),
    ],
)
def test_time_03_prefill_gives_back_what_decode_refused(
    small: Deployment, usage: list[float], held: tuple[str, str] | None
) -> None:
    """TIME-03: without a release message blocks stay until the limit; the endpoint and the shares are named."""
    small.engines[1].usage = list(usage)
    result = small.check(release_wait=1.0)
    assert small.seen[-1]["max_tokens"] == completions.REFUSED_TOKENS
    if held is None:
        assert result["failures"] == []
        return
    (failure,) = result["failures"]
    assert failure.startswith(f"prefill rank 1 (prefill instance prefill on p1, {small.engines[1].url}): {held[0]} of ")
    assert f"{held[1]} before" in failure and "release limit" in failure


def test_nothing_is_refused_unless_asked(small: Deployment) -> None:
    small.engines[1].usage = [0.0, 0.0, 0.9]
    assert small.check()["ok"]
    assert max(each["max_tokens"] for each in small.seen) == 16


@pytest.mark.parametrize("args", [{"requests": 0}, {"max_tokens": 0}, {"timeout": 0}])
def test_impossible_arguments(small: Deployment, args: dict[str, Any]) -> None:
    assert "must be more than 0" in small.check(**args)["msg"]
    assert small.seen == []


def test_nothing_is_sent_in_check_mode(small: Deployment) -> None:
    assert small.check(_ansible_check_mode=True)["skipped"]
    assert small.seen == []

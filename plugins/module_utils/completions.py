# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Prove that a deployment serves: real completions through the proxy, and every endpoint behind it at work.

A status of 200 proves nothing here. When a decode endpoint is gone, upstream's proxies answer 200 with a body that is
empty or cut; when a transfer fails, a decode engine may compute the prompt itself and answer well, at the price of what
disaggregation is for; and an endpoint without requests looks as healthy as one that works. So bodies are read to their
end, and the counters of every endpoint are compared before and after.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import http.client
import json
import random
import re
import resource
import socket
import statistics
import threading
import time
import typing as t
import urllib.parse
import uuid

PROMPT_WORDS = 300
"""Longer than any block of the KV cache (128 tokens), so that a prompt computed twice is seen in the counters."""

MOST_THREADS = 512
"""Requests at once; more only when one role has more endpoints. Upstream's proxies give a request to the endpoint with
the least load and, of equals, to the first: an endpoint is reached only while all before it are busy."""

THREAD_STACK = 524288
ROUNDS = 3
METRICS_TIMEOUT = 10.0
METRICS_WORKERS = 64
SETTLE_SECONDS = 3.0
"""An engine counts a request a moment after its answer has gone out."""

BODY_HEAD = 300
REFUSED_TOKENS = 10**9
"""More than any context: decode refuses the request, after prefill has computed its prompt."""

_APIS = (("completions", False), ("chat/completions", True), ("completions", True), ("chat/completions", False))
_VOCABULARY = (
    "apple river stone cloud garden window paper mountain silver engine bridge coffee winter forest market piano "
    "yellow doctor island letter orange planet rabbit school ticket valley wagon zebra basket candle dragon eagle "
    "finger guitar hammer jacket kitchen ladder mirror needle ocean pencil queen rocket saddle table umbrella violin"
)
_WORDS = tuple(_VOCABULARY.split())
_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')


# ---------------------------------------------------------------------------------------------------------------------
# Counters of an endpoint
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """One API server of an engine, behind the proxy."""

    name: str
    role: str
    instance: str
    host: str
    url: str

    def __str__(self) -> str:
        return f"{self.name} ({self.role} instance {self.instance} on {self.host}, {self.url})"


@dataclasses.dataclass(frozen=True)
class Counters:
    """What an endpoint has counted since its start; None for what its version (or its options) does not count."""

    requests: float | None = None
    prompt_tokens: float | None = None
    local_tokens: float | None = None
    kv_usage: float | None = None
    """The share of the KV cache in use, 0 to 1; of several engines the sum."""


def parse_counters(text: str) -> Counters:
    """Read the counters out of a /metrics page. An API server over several engines has a line for each: they add up."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        labels = dict(_LABEL.findall(match.group(2) or ""))
        key = _counter(match.group(1), labels)
        if key is not None:
            try:
                sums[key] = sums.get(key, 0.0) + float(match.group(3))
            except ValueError:
                continue  # not a number, so not a sample
    return Counters(**sums)


def _counter(name: str, labels: t.Mapping[str, str]) -> str | None:
    if name == "vllm:request_success_total":
        # Its labels also count requests that were given up.
        return None if labels.get("finished_reason") in ("abort", "error") else "requests"
    if name == "vllm:prompt_tokens_total":
        return "prompt_tokens"
    if name == "vllm:prompt_tokens_by_source_total":
        return "local_tokens" if labels.get("source") == "local_compute" else None
    # The second is how versions before 0.11 call it.
    return "kv_usage" if name in ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc") else None


def growth(before: float | None, after: float | None) -> float | None:
    """By how much a counter grew; None when it is not counted."""
    return None if before is None or after is None else after - before


@dataclasses.dataclass(frozen=True)
class Work:
    """What an endpoint has done between two looks; None for what cannot be told."""

    requests: float | None
    prompt_tokens: float | None
    local_tokens: float | None

    @property
    def reached(self) -> bool | None:
        """Whether it saw a request."""
        seen = self.requests if self.requests is not None else self.prompt_tokens
        return None if seen is None else seen > 0

    @property
    def restarted(self) -> bool:
        """Counters only go back when the engine starts anew."""
        return any(each is not None and each < 0 for each in (self.requests, self.prompt_tokens, self.local_tokens))


def work_between(before: Counters, after: Counters) -> Work:
    """Compare two looks at one endpoint."""
    return Work(
        growth(before.requests, after.requests),
        growth(before.prompt_tokens, after.prompt_tokens),
        growth(before.local_tokens, after.local_tokens),
    )


def prefilled_locally(work: Work, prompt_tokens: int) -> int | None:
    """How many whole prompts a decode endpoint computed itself; None when its version does not count that.

    The last token of every prompt is always computed by the decode side.
    """
    if work.local_tokens is None:
        return None
    return max(0, int((work.local_tokens - max(0.0, work.requests or 0.0)) // max(1, prompt_tokens)))


# ---------------------------------------------------------------------------------------------------------------------
# Requests and answers
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Request:
    """One completion to ask for."""

    number: int
    api: str
    stream: bool
    prompt: str
    max_tokens: int

    def __str__(self) -> str:
        return f"request {self.number} ({self.api}{', streamed' if self.stream else ''})"

    def body(self, model: str) -> dict[str, t.Any]:
        """What is posted. An end of text is ignored, so that an empty answer is always a fault."""
        content: dict[str, t.Any] = {"prompt": self.prompt}
        if self.api.startswith("chat"):
            content = {"messages": [{"role": "user", "content": self.prompt}]}
        return {
            "model": model,
            **content,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": self.stream,
        }


def build_requests(first: int, count: int, max_tokens: int, chat: bool) -> list[Request]:
    """Requests of both kinds, half of them streamed. Each prompt begins with its own words: no prefix is cached."""
    requests = []
    for number in range(first, first + count):
        api, stream = _APIS[number % len(_APIS)]
        name = uuid.uuid4().hex
        words = random.Random(name).choices(_WORDS, k=PROMPT_WORDS)
        prompt = f"{name} {' '.join(words)}"
        requests.append(Request(number, api if chat else "completions", stream, prompt, max_tokens))
    return requests


@dataclasses.dataclass
class Outcome:
    """What became of a request."""

    request: Request
    failure: str | None = None
    text: str = ""
    seconds: float = 0.0
    first_token_seconds: float | None = None
    prompt_tokens: int | None = None


def text_of(choice: t.Mapping[str, t.Any]) -> str:
    """The text of one choice, of any API. A model that reasons may spend a short answer on that alone."""
    message = choice.get("delta") or choice.get("message") or {}
    parts = [choice.get("text"), *(message.get(key) for key in ("reasoning_content", "reasoning", "content"))]
    return "".join(part for part in parts if isinstance(part, str))


class Answer:
    """The body of an answer as it arrives."""

    def __init__(self, stream: bool) -> None:
        self._stream = stream
        self._body = bytearray()
        self._parsed = 0
        self.done = False
        self.text = ""
        self.error: str | None = None
        self.prompt_tokens: int | None = None

    @property
    def head(self) -> str:
        """The beginning of the body, for a message."""
        text = self._body[:BODY_HEAD].decode("utf-8", "replace").strip()
        return text if text else "(empty body)"

    def feed(self, chunk: bytes) -> None:
        """Take in what has arrived."""
        self._body += chunk
        if self._stream:
            end = self._body.rfind(b"\n") + 1
            for line in self._body[self._parsed : end].splitlines():
                self._take_event(bytes(line))
            self._parsed = max(self._parsed, end)

    def finish(self) -> str | None:
        """Judge the whole body; returns what is wrong with it."""
        if not self._stream:
            self._take(bytes(self._body))
            self.done = True
        if self.error is not None:
            return self.error
        if not self.done:
            return f"the stream was cut off: no [DONE] after {len(self._body)} bytes: {self.head}"
        if not self.text.strip():
            return f"the answer holds no text: {self.head}"
        return None

    def _take_event(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self.done = True
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            parsed = json.loads(data)
        except ValueError:
            self.error = f"the answer is no JSON: {self.head}"
            return
        if not isinstance(parsed, dict) or parsed.get("error"):
            self.error = f"the answer is an error: {data[:BODY_HEAD].decode('utf-8', 'replace')}"
            return
        for choice in parsed.get("choices") or ():
            self.text += text_of(choice)
        usage = parsed.get("usage") or {}
        if isinstance(usage.get("prompt_tokens"), int):
            self.prompt_tokens = usage["prompt_tokens"]


class StartingLine:
    """Holds threads back until all are ready to go: only requests at the same time reach every endpoint."""

    def __init__(self, expected: int) -> None:
        self._missing = expected
        self._lock = threading.Lock()
        self._open = threading.Event()

    def arrive(self, timeout: float) -> None:
        """Wait for the others, but not for ever."""
        with self._lock:
            self._missing -= 1
            if self._missing <= 0:
                self._open.set()
        self._open.wait(timeout)


def _connect(url: str, timeout: float) -> tuple[http.client.HTTPConnection, str]:
    """A connection straight to a URL, past any proxy of the environment, and the path that the URL ends in."""
    parts = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=timeout), parts.path.rstrip("/")


@dataclasses.dataclass(frozen=True)
class Door:
    """Where requests go."""

    url: str
    model: str
    timeout: float
    api_key: str | None = None

    def ask(self, request: Request, line: StartingLine) -> Outcome:
        """Send one request and read its answer to the end; never raises."""
        outcome = Outcome(request)
        connection, path = _connect(self.url, self.timeout)
        try:
            try:
                connection.connect()
            finally:
                line.arrive(min(10.0, self.timeout))
            begun = time.monotonic()
            try:
                self._exchange(connection, path, outcome, begun)
            finally:
                outcome.seconds = time.monotonic() - begun
        except OSError as error:
            outcome.failure = self._explain(error)
        except http.client.HTTPException as error:
            outcome.failure = f"the answer was cut off: {type(error).__name__}: {error}"
        finally:
            connection.close()
        return outcome

    def _explain(self, error: OSError) -> str:
        # Before Python 3.10 these are two exceptions.
        if isinstance(error, (TimeoutError, socket.timeout)):
            return f"no complete answer within {self.timeout:g} s"
        return f"{self.url}: {error.strerror or error}"

    def _exchange(self, connection: http.client.HTTPConnection, path: str, outcome: Outcome, begun: float) -> None:
        request = outcome.request
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        channel = connection.sock  # kept: the connection gives it up when the server is going to close it
        body = json.dumps(request.body(self.model))
        connection.request("POST", f"{path}/v1/{request.api}", body, headers)
        response = connection.getresponse()
        answer = Answer(request.stream and response.status == 200)
        # Newer Pythons close a response, and the channel with it, as soon as its last byte has been read.
        while not response.isclosed():
            left = self.timeout - (time.monotonic() - begun)
            if left <= 0:
                raise TimeoutError
            channel.settimeout(left)
            chunk = response.read1(65536)
            if not chunk:
                break
            answer.feed(chunk)
            if answer.text and outcome.first_token_seconds is None:
                outcome.first_token_seconds = time.monotonic() - begun
        if response.status != 200:
            outcome.failure = f"HTTP {response.status}: {answer.head}"
            return
        outcome.failure = answer.finish()
        outcome.text = answer.text
        outcome.prompt_tokens = answer.prompt_tokens


def ask_all(door: Door, requests: t.Sequence[Request], threads: int) -> list[Outcome]:
    """Send requests at the same time."""
    workers = min(threads, len(requests))
    line = StartingLine(workers)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda request: door.ask(request, line), requests))


# ---------------------------------------------------------------------------------------------------------------------
# The check
# ---------------------------------------------------------------------------------------------------------------------


def read_counters(endpoint: Endpoint, timeout: float = METRICS_TIMEOUT) -> Counters | str:
    """The counters of an endpoint, or why they cannot be read."""
    connection, path = _connect(endpoint.url, timeout)
    try:
        connection.request("GET", f"{path}/metrics")
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        return f"/metrics: {getattr(error, 'strerror', None) or str(error) or type(error).__name__}"
    finally:
        connection.close()
    if response.status != 200:
        return f"/metrics: HTTP {response.status}"
    return parse_counters(body.decode("utf-8", "replace"))


def default_requests(endpoints: t.Sequence[Endpoint]) -> int:
    """Twice as many as the larger role has endpoints: with the least loaded one served first, each gets its share."""
    return 2 * max((sum(each.role == role for each in endpoints) for role in {e.role for e in endpoints}), default=1)


def thread_limit(endpoints: t.Sequence[Endpoint]) -> int:
    """How many requests are under way at once."""
    return max(MOST_THREADS, default_requests(endpoints) // 2)


class Check:
    """One check of a deployment, from the first look at the counters to the verdict."""

    def __init__(
        self,
        door: Door,
        endpoints: t.Sequence[Endpoint],
        requests: int,
        max_tokens: int,
        chat: bool,
        release_wait: float = 0.0,
    ) -> None:
        self._door = door
        self._endpoints = endpoints
        self._requests = requests
        self._max_tokens = max_tokens
        self._chat = chat
        self._release_wait = release_wait
        self._before: dict[str, Counters] = {}
        self._after: dict[str, Counters] = {}
        self._outcomes: list[Outcome] = []
        self._failures: list[str] = []
        self._rounds = 0

    def run(self) -> dict[str, t.Any]:
        """Do it; returns the result of the module."""
        self._before = self._look(self._endpoints)
        # An endpoint that does not even tell its counters is down: requests would only wait for it.
        while self._rounds < ROUNDS and not self._failures:
            self._send_round()
            if not self._failures:
                self._settle()
                if not self._unreached():
                    break
        if not self._failures:
            self._judge_endpoints()
        if not self._failures and self._release_wait > 0:
            self._judge_release()
        return self._result()

    def _judge_release(self) -> None:
        """Ask for what decode refuses after prefill has worked, and see whether prefill gives the KV cache back."""
        prefill = [endpoint for endpoint in self._endpoints if endpoint.role == "prefill"]
        before = self._look(prefill)
        (request,) = build_requests(len(self._outcomes), 1, REFUSED_TOKENS, False)
        # How it is refused is the proxy's matter: some say 400, some an empty 200.
        self._door.ask(request, StartingLine(1))
        deadline = time.monotonic() + self._release_wait
        held = prefill
        while True:
            now = self._look(held)
            held = [each for each in held if _is_held(before.get(each.name), now.get(each.name))]
            if not held or self._failures or time.monotonic() > deadline:
                break
            time.sleep(0.3)
        for endpoint in held if not self._failures else ():
            used, at_first = now[endpoint.name].kv_usage, before[endpoint.name].kv_usage
            self._failures.append(
                f"{endpoint}: {used:.2%} of its KV cache is in use {self._release_wait:g} s after a request that decode "
                f"refused, {at_first:.2%} before: prefill keeps it until the release limit"
            )

    def _look(self, endpoints: t.Sequence[Endpoint]) -> dict[str, Counters]:
        found: dict[str, Counters] = {}
        if not endpoints:
            return found
        with concurrent.futures.ThreadPoolExecutor(min(METRICS_WORKERS, len(endpoints))) as pool:
            for endpoint, counters in zip(endpoints, pool.map(read_counters, endpoints)):
                if isinstance(counters, str):
                    self._failures.append(f"{endpoint}: {counters}")
                else:
                    found[endpoint.name] = counters
        return found

    def _send_round(self) -> None:
        # A further round tries harder: more requests that take longer keep more endpoints busy at once.
        factor = 2**self._rounds
        self._rounds += 1
        requests = build_requests(len(self._outcomes), self._requests * factor, self._max_tokens * factor, self._chat)
        outcomes = ask_all(self._door, requests, thread_limit(self._endpoints))
        self._outcomes.extend(outcomes)
        self._failures.extend(failures_of(outcomes))

    def _settle(self) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS
        self._after.update(self._look(self._endpoints))
        while self._unreached() and not self._failures and time.monotonic() < deadline:
            time.sleep(0.3)
            self._after.update(self._look(self._unreached()))

    def _work(self, endpoint: Endpoint) -> Work:
        nothing = Counters()
        return work_between(self._before.get(endpoint.name, nothing), self._after.get(endpoint.name, nothing))

    def _unreached(self) -> list[Endpoint]:
        works = [(endpoint, self._work(endpoint)) for endpoint in self._endpoints]
        return [endpoint for endpoint, work in works if work.reached is False and not work.restarted]

    def _judge_endpoints(self) -> None:
        prompt = self._prompt_tokens()
        for endpoint in self._endpoints:
            work = self._work(endpoint)
            local = prefilled_locally(work, prompt) if endpoint.role == "decode" else None
            if work.restarted:
                self._failures.append(f"{endpoint}: its counters went back, so it was started anew during the check")
            elif work.reached is False:
                self._failures.append(
                    f"{endpoint}: saw none of {len(self._outcomes)} requests in {self._rounds} rounds"
                )
            elif local:
                self._failures.append(
                    f"{endpoint}: computed {work.local_tokens:g} prompt tokens itself, {local} whole prompts or more: "
                    "the KV cache did not come from prefill"
                )

    def _prompt_tokens(self) -> int:
        counted = [each.prompt_tokens for each in self._outcomes if each.prompt_tokens]
        return min(counted, default=PROMPT_WORDS)

    def _result(self) -> dict[str, t.Any]:
        judged = bool(self._after)
        works = {endpoint.name: self._work(endpoint) for endpoint in self._endpoints} if judged else {}
        decode = [endpoint.name for endpoint in self._endpoints if endpoint.role == "decode"]
        counted = [name for name in decode if name in works and works[name].local_tokens is not None]
        prompt = self._prompt_tokens()
        local = any(prefilled_locally(works[name], prompt) for name in counted)
        answered = [each for each in self._outcomes if each.failure is None]
        return {
            "ok": not self._failures,
            "failures": self._failures,
            "requests": len(self._outcomes),
            "rounds": self._rounds,
            "latency": spread([each.seconds for each in answered]),
            "time_to_first_token": spread(
                [each.first_token_seconds for each in answered if each.request.stream and each.first_token_seconds]
            ),
            "roles": {role: self._role(role, works) for role in sorted({each.role for each in self._endpoints})},
            "not_judged": [name for name, work in works.items() if work.reached is None],
            "local_prefill": "found" if local else "none" if counted else "not judged",
            "sample": _sample(answered, self._door.model),
        }

    def _role(self, role: str, works: t.Mapping[str, Work]) -> dict[str, int]:
        names = [endpoint.name for endpoint in self._endpoints if endpoint.role == role]
        return {"total": len(names), "reached": sum(bool(works[name].reached) for name in names if name in works)}


def _is_held(before: Counters | None, now: Counters | None) -> bool:
    """Whether more of the KV cache is in use than before. What is not counted is not judged."""
    used = growth(before.kv_usage if before else None, now.kv_usage if now else None)
    return used is not None and used > 1e-6


def failures_of(outcomes: t.Iterable[Outcome]) -> list[str]:
    """What failed, one line for all requests that failed alike: a dead proxy is one thing to read, not hundreds."""
    alike: dict[str, list[Request]] = {}
    for outcome in outcomes:
        if outcome.failure is not None:
            alike.setdefault(outcome.failure, []).append(outcome.request)
    return [
        f"{requests[0]}{f' and {len(requests) - 1} more' if len(requests) > 1 else ''}: {failure}"
        for failure, requests in alike.items()
    ]


def spread(values: t.Sequence[float]) -> dict[str, float] | None:
    """Least, middle and most, in seconds."""
    if not values:
        return None
    ordered = (min(values), statistics.median(values), max(values))
    return {name: round(value, 3) for name, value in zip(("min", "median", "max"), ordered)}


def _sample(answered: t.Sequence[Outcome], model: str) -> dict[str, t.Any] | None:
    """One request and its answer, for a person to look at."""
    if not answered:
        return None
    first = answered[0]
    prompt = first.request.prompt[:60] + "..."
    body = dataclasses.replace(first.request, prompt=prompt).body(model)
    return {"api": first.request.api, "request": body, "text": first.text}


def allow_connections(count: int) -> None:
    """Let this process hold as many sockets as it needs, and as many threads in little memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count + 64:
        wanted = count + 64 if hard == resource.RLIM_INFINITY else min(count + 64, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    threading.stack_size(THREAD_STACK)


# ---------------------------------------------------------------------------------------------------------------------
# Warming up
# ---------------------------------------------------------------------------------------------------------------------


class WarmUp:
    """Rounds of requests before a measurement. Every prompt is new, so that prefill computes each of them."""

    def __init__(self, door: Door, endpoints: t.Sequence[Endpoint], requests: int, max_tokens: int, chat: bool) -> None:
        self._door = door
        self._endpoints = endpoints
        self._requests = requests
        self._max_tokens = max_tokens
        self._chat = chat
        self._before: dict[str, Counters | str] = {}
        self.rounds: list[dict[str, t.Any]] = []

    def run(self, rounds: int) -> list[str]:
        """Send them; returns what failed, after which no further round is sent."""
        if rounds:
            self._before = self._look()
        for number in range(rounds):
            asked = build_requests(number * self._requests, self._requests, self._max_tokens, self._chat)
            outcomes = ask_all(self._door, asked, max(self._requests, thread_limit(self._endpoints)))
            good = [each for each in outcomes if each.failure is None]
            firsts = [each.first_token_seconds for each in good if each.request.stream and each.first_token_seconds]
            self.rounds.append(
                {
                    "requests": len(outcomes),
                    "latency": spread([each.seconds for each in good]),
                    "time_to_first_token": spread(firsts),
                }
            )
            failures = failures_of(outcomes)
            if failures:
                return failures
        return []

    def cold(self) -> list[str]:
        """Endpoints whose counters have not moved. One that counts nothing is not judged."""
        limit = time.monotonic() + SETTLE_SECONDS
        while True:
            after = self._look()
            cold = [name for name, now in after.items() if self._moved(self._before.get(name), now) is False]
            if not cold or time.monotonic() > limit:
                return cold
            time.sleep(0.3)

    def _look(self) -> dict[str, Counters | str]:
        with concurrent.futures.ThreadPoolExecutor(METRICS_WORKERS) as pool:
            return dict(zip((each.name for each in self._endpoints), pool.map(read_counters, self._endpoints)))

    @staticmethod
    def _moved(before: Counters | str | None, now: Counters | str) -> bool | None:
        if not isinstance(before, Counters) or not isinstance(now, Counters):
            return None
        return work_between(before, now).reached

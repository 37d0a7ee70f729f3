# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The OpenAI-compatible HTTP interface, as far as deployments, proxies and checks use it."""

from __future__ import annotations

import json
import os
import time

from vllm_sim import log, metrics
from vllm_sim.engine import Ask, Engine, Generation
from vllm_sim.errors import RequestError
from vllm_sim.text import read_prompt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from vllm_sim.web import Exchange

# upstream: the default of /v1/completions; a chat may go on until it ends by itself
_DEFAULT_MAX_TOKENS = 16
_QUIET = ("/health", "/metrics")


class Api:
    """Answers the requests of one engine."""

    def __init__(self, engine: Engine, address: str) -> None:
        self._engine = engine
        self._settings = engine.settings
        self._started = int(time.time())
        self._fingerprint = f"vllm-{self._settings.version}-sim-{address}:{self._settings.port}"
        self._routes = {
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/v1/chat/completions"): self._completions,
        }
        if self._settings.dev_mode:
            self._routes["POST", "/reset_prefix_cache"] = self._reset_prefix_cache

    def handle(self, exchange: Exchange) -> None:
        request = exchange.request
        try:
            self._authorize(exchange)
            route = self._routes.get((request.method, request.path))
            if route is None:
                known = any(path == request.path for _, path in self._routes)
                exchange.send(405 if known else 404, {"detail": "Method Not Allowed" if known else "Not Found"})
            else:
                route(exchange)
        except RequestError as exc:
            log.error(f"{request.method} {request.path}: {exc}")
            if exchange.answered is None:
                exchange.send(exc.status, _error(exc))
            else:  # upstream: an error after the first token is an event of the stream
                exchange.event(_error(exc))
                exchange.event("[DONE]")
                exchange.end_stream()
        finally:
            if request.path not in _QUIET:
                log.info(f'{exchange.peer} - "{request.method} {request.path} HTTP/1.1" {exchange.answered}')

    def _authorize(self, exchange: Exchange) -> None:
        """upstream: --api-key guards the paths below /v1 only."""
        keys = self._settings.api_keys
        given = exchange.request.headers.get("authorization")
        if keys and exchange.request.path.startswith("/v1") and given not in [f"Bearer {key}" for key in keys]:
            raise RequestError(401, "Unauthorized", "Unauthorized")

    def _health(self, exchange: Exchange) -> None:
        exchange.send(200 if self._engine.healthy else 503, b"")

    def _version(self, exchange: Exchange) -> None:
        exchange.send(200, {"version": self._settings.version})

    def _metrics(self, exchange: Exchange) -> None:
        exchange.send(200, metrics.render(self._engine), "text/plain; version=0.0.4; charset=utf-8")

    def _reset_prefix_cache(self, exchange: Exchange) -> None:
        exchange.send(200, b"")

    def _models(self, exchange: Exchange) -> None:
        cards = [
            {
                "id": name,
                "object": "model",
                "created": self._started,
                "owned_by": "vllm",
                "root": self._settings.model,
                "parent": None,
                "max_model_len": self._settings.max_model_len,
            }
            for name in self._settings.names
        ]
        exchange.send(200, {"object": "list", "data": cards})

    def _completions(self, exchange: Exchange) -> None:
        chat = exchange.request.path == "/v1/chat/completions"
        body = _read_body(exchange.request.body)
        ask = self._ask(exchange, body, chat)
        with self._engine.admit(ask) as generation:
            answer = _Answer(self, ask, generation, body, chat)
            if body.get("stream"):
                answer.stream(exchange)
            else:
                exchange.send(200, answer.whole())

    def _ask(self, exchange: Exchange, body: dict[str, Any], chat: bool) -> Ask:
        model = body.get("model")
        if model is not None and model not in self._settings.names:
            raise RequestError(404, "NotFoundError", f"The model `{model}` does not exist.")
        if body.get("n", 1) != 1:
            raise RequestError(400, "BadRequestError", "n: the stand-in answers with one choice")
        given = exchange.request.headers.get("x-request-id") or os.urandom(16).hex()
        # upstream: the engine's name for a request; proxies of push connectors compute it as well
        request = f"chatcmpl-{given}" if chat else f"cmpl-{given}-0"
        limit = _optional(body, "max_completion_tokens", int) if chat else None
        limit = _optional(body, "max_tokens", int) if limit is None else limit
        if limit is None and not chat:
            limit = _DEFAULT_MAX_TOKENS
        if limit is not None and limit < 1:
            raise RequestError(400, "BadRequestError", f"max_tokens must be at least 1, got {limit}.")
        for key, kind in (("min_tokens", int), ("kv_transfer_params", dict), ("stream_options", dict)):
            _optional(body, key, kind)
        prompt = read_prompt(body, chat)
        if prompt.tokens + (limit or 1) > self._settings.max_model_len:
            raise RequestError(
                400,
                "BadRequestError",
                f"This model's maximum context length is {self._settings.max_model_len} tokens. However, you requested "
                f"{limit or 1} output tokens and your prompt contains {prompt.tokens} input tokens.",
            )
        return Ask(request, prompt, body, limit)

    def frame(self, request: str) -> dict[str, Any]:
        """What every answer and every chunk of it carries."""
        return {
            "id": request,
            "created": int(time.time()),
            "model": self._settings.names[0],
            "system_fingerprint": self._fingerprint,
        }


class _Answer:
    """One answer in the shape the client asked for."""

    def __init__(self, api: Api, ask: Ask, generation: Generation, body: dict[str, Any], chat: bool) -> None:
        self._frame = api.frame(ask.request[:-2] if ask.request.startswith("cmpl-") else ask.request)
        self._ask = ask
        self._generation = generation
        self._chat = chat
        self._wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))

    def whole(self) -> dict[str, Any]:
        text = "".join(self._generation.tokens())
        content = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        return {
            **self._frame,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [self._choice(content)],
            "usage": self._usage(),
            "kv_transfer_params": self._generation.kv_transfer_params,
        }

    def stream(self, exchange: Exchange) -> None:
        self._frame["object"] = "chat.completion.chunk" if self._chat else "text_completion"
        exchange.start_stream()
        if self._chat:
            exchange.event({**self._frame, "choices": [self._choice({"delta": {"role": "assistant", "content": ""}})]})
        for text in self._generation.tokens():
            content = {"delta": {"content": text}} if self._chat else {"text": text}
            exchange.event({**self._frame, "choices": [self._choice(content)]})
        if self._wants_usage:
            exchange.event({**self._frame, "choices": [], "usage": self._usage()})
        exchange.event("[DONE]")
        exchange.end_stream()

    def _choice(self, content: dict[str, Any]) -> dict[str, Any]:
        reason = self._generation.finish_reason
        return {"index": 0, **content, "logprobs": None, "finish_reason": reason, "stop_reason": None}

    def _usage(self) -> dict[str, Any]:
        prompt, written = self._ask.prompt.tokens, self._generation.count
        return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def _read_body(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except ValueError as exc:
        raise RequestError(400, "BadRequestError", f"the body is not JSON: {exc}") from None
    if not isinstance(body, dict):
        raise RequestError(400, "BadRequestError", "the body is not a JSON object")
    return body


def _optional(body: dict[str, Any], key: str, kind: type) -> Any:
    """A field that may be missing, but must have its type when it is there."""
    value = body.get(key)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise RequestError(400, "BadRequestError", f"{key}: Input should be a valid {kind.__name__}")
    return value


def _error(exc: RequestError) -> dict[str, Any]:
    if exc.status == 401:
        return {"error": "Unauthorized"}
    return {"error": {"message": str(exc), "type": exc.kind, "param": None, "code": exc.status}}

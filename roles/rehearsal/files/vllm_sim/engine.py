# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What happens to a request between the HTTP answer and the KV side channel, and the counters it leaves."""

from __future__ import annotations

import threading
import time

from vllm_sim import log
from vllm_sim.errors import RequestError, TransferError
from vllm_sim.kv import CONSUMER, PRODUCER
from vllm_sim.text import Prompt, natural_length, token

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from vllm_sim.group import Group
    from vllm_sim.settings import Settings

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
TOKEN_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
# upstream: what the parameters from a prefill must have, else decode computes the prompt itself
_PULL_KEYS = ("remote_engine_id", "remote_host", "remote_port", "remote_request_id")


class Ask:
    """What one request wants."""

    __slots__ = ("ignore_eos", "limit", "minimum", "params", "prompt", "request")

    def __init__(self, request: str, prompt: Prompt, body: dict[str, Any], limit: int | None) -> None:
        self.request = request
        self.prompt = prompt
        self.limit = limit
        self.minimum: int = body.get("min_tokens") or 0
        self.ignore_eos = bool(body.get("ignore_eos"))
        self.params: dict[str, Any] = body.get("kv_transfer_params") or {}


class RankState:
    """One data-parallel rank as the scheduler and /metrics see it. Guarded by the engine's lock."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.running = 0
        self.waiting = 0
        self.running_tokens = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.sources = dict.fromkeys(TOKEN_SOURCES, 0)
        self.generated = 0
        self.prefills = 0  # for a remote decode
        self.decodes = 0  # from a remote prefill
        self.local_prefills = 0  # by a decode engine that got no KV blocks
        self.kv_failed = 0


class Generation:
    """A request that holds its place in the batch. Leaving the ``with`` block gives the place back."""

    def __init__(self, engine: Engine, state: RankState, ask: Ask) -> None:
        self._engine = engine
        self._state = state
        self._ask = ask
        self.kv_transfer_params: dict[str, Any] | None = None
        self.count = 0
        self.finish_reason: str | None = None
        self._digest = ask.prompt.digest

    def __enter__(self) -> Generation:
        try:
            self._digest, self.kv_transfer_params = self._engine.compute_prompt(self._state, self._ask)
        except BaseException:
            self._engine.leave(self._state, self._ask, self.count, "error")
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: object) -> None:
        reason = self.finish_reason or "abort"
        if kind is not None:
            reason = "abort" if issubclass(kind, ConnectionError) else "error"
        self._engine.leave(self._state, self._ask, self.count, reason)

    def tokens(self) -> Iterator[str]:
        """The answer, token by token. Raises RequestError when the engine dies meanwhile."""
        ask = self._ask
        end = max(natural_length(self._digest), ask.minimum)
        limit = end if ask.limit is None else ask.limit
        last = limit if ask.ignore_eos else min(limit, end)
        while self.count < last:
            time.sleep(self._engine.settings.token_delay)
            self._engine.check_alive()
            text = token(self._digest, self.count)
            self.count += 1
            if self.count == last:
                self.finish_reason = "length" if last == ask.limit else "stop"
            yield text


class Engine:
    """The API process' view of its ranks: one with external, all of the group with internal load balancing."""

    def __init__(self, settings: Settings, group: Group) -> None:
        self.settings = settings
        self.group = group
        parallel = settings.parallel
        self.states = [RankState(rank) for rank in (parallel.ranks if parallel.external else range(parallel.dp))]
        self.unhealthy = False
        self._turn = 0
        self._freed = threading.Condition()

    @property
    def healthy(self) -> bool:
        return self.group.lost is None and not self.unhealthy

    def check_alive(self) -> None:
        """upstream: every request of an engine whose group lost a rank fails, for ever."""
        if self.group.lost is not None:
            raise RequestError(
                500,
                "InternalServerError",
                f"EngineDeadError: EngineCore encountered an issue ({self.group.lost} of the data-parallel group is "
                "lost). See stack trace (above) for the root cause.",
            )

    def admit(self, ask: Ask) -> Generation:
        """Wait for a place in the batch of the least loaded rank."""
        self.check_alive()
        with self._freed:
            state = self._least_loaded()
            state.waiting += 1
            while state.running >= self.settings.max_num_seqs:
                self._freed.wait()
            state.waiting -= 1
            state.running += 1
            state.running_tokens += ask.prompt.tokens
        return Generation(self, state, ask)

    def leave(self, state: RankState, ask: Ask, generated: int, reason: str) -> None:
        with self._freed:
            state.running -= 1
            state.running_tokens -= ask.prompt.tokens
            state.generated += generated
            state.finished[reason] += 1
            self._freed.notify_all()

    def compute_prompt(self, state: RankState, ask: Ask) -> tuple[str, dict[str, Any] | None]:
        """Get the KV blocks of the prompt. Returns their digest and the kv_transfer_params of the answer."""
        self.check_alive()
        if ask.params.get("do_remote_decode"):
            return ask.prompt.digest, self._prefill_for_remote(state, ask)
        if ask.params.get("do_remote_prefill"):
            return self._decode_from_remote(state, ask), None
        self._compute_locally(state, ask)
        return ask.prompt.digest, None

    def held(self, state: RankState) -> dict[str, int]:
        """Requests and tokens of KV blocks that wait to be fetched from a rank."""
        if self.group.lost is not None:
            return {"requests": 0, "tokens": 0}
        try:
            result: dict[str, int] = self.group.run(state.rank, "held", {})
        except TransferError as exc:
            log.warning(f"rank {state.rank} does not tell its KV usage: {exc}")
            return {"requests": 0, "tokens": 0}
        return result

    def _least_loaded(self) -> RankState:
        """Ranks with equal load take turns."""
        self._turn += 1
        order = [self.states[(self._turn + index) % len(self.states)] for index in range(len(self.states))]
        return min(order, key=lambda state: state.running + state.waiting)

    def _prefill_for_remote(self, state: RankState, ask: Ask) -> dict[str, Any] | None:
        if self.settings.kv.role == CONSUMER:
            raise RequestError(
                500, "InternalServerError", "a kv_consumer (decode) was asked to prefill for a remote decode"
            )
        time.sleep(self.settings.prefill_delay)
        push = self.settings.kv.connector.flow == "push"
        answer = self._step(state, ask, "push" if push else "hold")
        with self._freed:
            state.prefills += 1
            state.sources["local_compute"] += ask.prompt.tokens
        # upstream: only a prefill that ended by its limit keeps its blocks; layerwise has sent them by then
        return None if push else answer

    def _decode_from_remote(self, state: RankState, ask: Ask) -> str:
        kv = self.settings.kv
        if kv.role == PRODUCER:
            raise RequestError(
                500, "InternalServerError", "a kv_producer (prefill) was asked to decode from a remote prefill"
            )
        if kv.connector.flow == "pull" and not all(ask.params.get(key) for key in _PULL_KEYS):
            log.warning(f"Got invalid KVTransferParams: {ask.params}. This request will not utilize KVTransfer")
            self._compute_locally(state, ask)
            return ask.prompt.digest
        try:
            digest: str = self._step(state, ask, "await" if kv.connector.flow == "push" else "fetch")["digest"]
        except RequestError:
            if not kv.recompute_failed:
                raise
            log.warning(f"request {ask.request}: KV load failed, its prompt is recomputed (kv_load_failure_policy)")
            self._compute_locally(state, ask)
            return ask.prompt.digest
        with self._freed:
            state.decodes += 1
            # upstream: the last token of the prompt is always computed by decode itself
            state.sources["external_kv_transfer"] += ask.prompt.tokens - 1
            state.sources["local_compute"] += 1
        return digest

    def _compute_locally(self, state: RankState, ask: Ask) -> None:
        time.sleep(self.settings.prefill_delay)
        with self._freed:
            state.sources["local_compute"] += ask.prompt.tokens
            if self.settings.kv.role == CONSUMER:
                state.local_prefills += 1

    def _step(self, state: RankState, ask: Ask, operation: str) -> dict[str, Any]:
        payload = {
            "request": ask.request,
            "digest": ask.prompt.digest,
            "tokens": ask.prompt.tokens,
            "params": ask.params,
        }
        try:
            return self.group.run(state.rank, operation, payload)
        except TransferError as exc:
            with self._freed:
                state.kv_failed += 1
            raise RequestError(
                500, "InternalServerError", f"KV transfer of request {ask.request} failed: {exc}"
            ) from None

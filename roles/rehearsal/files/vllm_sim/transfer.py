# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The KV side channel: the workers of the ranks in this process, their ports, and the hand-over of KV blocks.

A prompt's KV blocks are its digest, cut into one piece per prefill worker. Decode has them only when every piece came
over the network from the right worker's port (pull), or to the right worker's port (push).
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time

from vllm_sim import log
from vllm_sim.errors import Refusal, TransferError
from vllm_sim.host import bind
from vllm_sim.text import join_digest, split_digest
from vllm_sim.web import post_json, url_host
from vllm_sim.wire import LineReader, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from vllm_sim.host import Host
    from vllm_sim.settings import Settings

    Step = Callable[[int, dict[str, Any]], dict[str, Any]]

_BLOCK_SIZE = 128
_METASERVER_TRIES = 3
_PUSH_GRACE = 1.0


class _Held:
    """The blocks of one prefilled request, kept until every worker's piece was fetched or the time is up."""

    __slots__ = ("deadline", "pieces", "rank", "remaining", "tokens")

    def __init__(self, rank: int, pieces: list[str], tokens: int, deadline: float) -> None:
        self.rank = rank
        self.pieces = pieces
        self.remaining = set(range(len(pieces)))
        self.tokens = tokens
        self.deadline = deadline


class _Arrival:
    """The pieces that were pushed so far for one waiting request."""

    __slots__ = ("complete", "pieces", "rank")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.pieces: dict[int, str] = {}
        self.complete = threading.Event()


class Workers:
    """All workers of the data-parallel ranks that live in this process."""

    def __init__(self, settings: Settings, host: Host) -> None:
        self._settings = settings
        self._host = host
        self._address = host.own_address(settings.host)
        self._engine_id = f"{settings.kv.engine_id or 'engine'}-{os.urandom(8).hex()}"
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}  # in the order of their deadlines
        self._arrivals: dict[str, _Arrival] = {}
        self._ports: dict[int, tuple[int, int]] = {}  # port -> (rank, index of the worker in the rank)
        self._orders: set[int] = set()  # D2RH: ports where workers take START_PULL
        self._reports: set[int] = set()  # D2RH: ports where schedulers hear that blocks are staged
        self._staged: dict[str, set[int]] = {}  # request -> workers that have reported
        self._selector = selectors.DefaultSelector()

    @property
    def ranks(self) -> range:
        return self._settings.parallel.ranks

    def start(self) -> None:
        """Bind every side-channel port and serve them all by one thread."""
        kv, parallel = self._settings.kv, self._settings.parallel
        for rank in self.ranks:
            if kv.stages:
                self._orders.update(kv.pull_ports(rank, parallel))
                self._reports.add(kv.ready_port(rank, parallel))
            for index, port in enumerate(kv.listening_ports(rank, parallel)):
                self._listen(port)
                self._ports[port] = (rank, index)
        if self._ports:
            threading.Thread(target=self._serve, name="kv-side-channel", daemon=True).start()

    def perform(self, rank: int, operation: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Do one step for a request of a rank. Raises TransferError, after saying so in this process' log."""
        steps = {"hold": self._hold, "fetch": self._fetch, "push": self._push, "await": self._await, "held": self._sum}
        try:
            return self._step(steps[operation], rank, payload)
        except TransferError as exc:
            log.error(f"{exc} (rank {rank}, request {payload.get('request')})")
            raise

    @staticmethod
    def _step(step: Step, rank: int, payload: dict[str, Any]) -> dict[str, Any]:
        try:
            return step(rank, payload)
        except (KeyError, TypeError, ValueError) as exc:  # the parameters are what a proxy made of them
            raise TransferError(f"Mooncake transfer failed, ret: -1: malformed kv_transfer_params: {exc!r}") from exc

    # Pull, prefill side ------------------------------------------------------------------------------------------

    def _hold(self, rank: int, payload: dict[str, Any]) -> dict[str, Any]:
        """upstream: the answer of a prefill tells decode where the blocks of the request wait."""
        settings = self._settings
        parallel = settings.parallel
        request = f"{payload['request']}-{os.urandom(4).hex()}"
        count = settings.kv.connector.ports_per_rank(parallel.tp, parallel.pp, parallel.pcp)
        deadline = time.monotonic() + settings.abort_timeout
        held = _Held(rank, split_digest(payload["digest"], count), payload["tokens"], deadline)
        with self._lock:
            self._held[request] = held
        blocks = -(-payload["tokens"] // _BLOCK_SIZE)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(blocks))],
            "remote_engine_id": f"{self._engine_id}_dp{rank}",
            "remote_request_id": request,
            "remote_host": self._address,
            "remote_port": settings.kv.base_port(rank, parallel),
            "remote_pcp_size": parallel.pcp,
            "remote_dcp_size": parallel.dcp,
            "remote_ptp_size": parallel.tp,
            "num_prompt_blocks": blocks,
            "remote_block_size": _BLOCK_SIZE,
        }

    def _give(self, port: int, message: dict[str, Any]) -> dict[str, Any]:
        """Hand one worker's piece to a decode worker; the last piece frees the blocks."""
        rank, index = self._ports[port]
        request = message.get("request")
        with self._lock:
            held = self._held.get(str(request))
            if held is None or held.rank != rank or index >= len(held.pieces):
                return {"error": f"no KV blocks of request {request} on port {port}"}
            held.remaining.discard(index)
            if not held.remaining:
                del self._held[str(request)]
            return {"piece": held.pieces[index]}

    def _expire(self) -> float:
        """Free what was not fetched in time. Returns the seconds until this must be done again."""
        freed = []
        with self._lock:
            now = time.monotonic()
            wait = self._settings.abort_timeout
            for request, held in self._held.items():
                if held.deadline > now:
                    wait = held.deadline - now
                    break
                freed.append(request)
            for request in freed:
                del self._held[request]
        for request in freed:
            log.error(
                f"Force freed expired request: {request}. Its KV blocks were not fetched within "
                f"{self._settings.abort_timeout:g} seconds."
            )
        return wait

    def _sum(self, rank: int, payload: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            tokens = [held.tokens for held in self._held.values() if held.rank == rank]
        return {"requests": len(tokens), "tokens": sum(tokens)}

    # Pull, decode side -------------------------------------------------------------------------------------------

    def _fetch(self, rank: int, payload: dict[str, Any]) -> dict[str, Any]:
        """Every decode worker fetches from the prefill workers that hold its share of the heads."""
        kv = self._settings.kv
        if kv.stages:
            self._order(rank, payload["request"])
        params = payload["params"]
        tp = int(params.get("remote_ptp_size") or kv.prefill.tp)
        count = kv.connector.ports_per_rank(tp, kv.prefill.pp, int(params.get("remote_pcp_size") or 1))
        host, port = str(params["remote_host"]), int(params["remote_port"])
        message = {"op": "fetch", "request": params["remote_request_id"]}
        pieces: list[str] = []
        for index in range(count):
            worker = index % tp * self._settings.parallel.tp // tp
            reply = self._exchange(host, port + index, {**message, "by": f"rank {rank} worker {worker}"})
            pieces.append(str(reply["piece"]))
        digest = self._verify(join_digest(pieces), payload, f"{host}:{port}")
        if kv.stages:
            self._report(rank, payload["request"])
        return {"digest": digest}

    def _order(self, rank: int, request: str) -> None:
        """upstream (D2RH): the scheduler of a rank tells each of its workers to stage the blocks of a request."""
        for port in self._settings.kv.pull_ports(rank, self._settings.parallel):
            self._exchange(self._address, port, {"op": "start_pull", "request": request})

    def _report(self, rank: int, request: str) -> None:
        """upstream (D2RH): every worker tells the scheduler; with the last one the request may go on."""
        port = self._settings.kv.ready_port(rank, self._settings.parallel)
        complete = False
        for worker in range(self._settings.parallel.world):
            reply = self._exchange(self._address, port, {"op": "ready", "request": request, "worker": worker})
            complete = bool(reply["complete"])
        if not complete:
            raise TransferError(f"Mooncake transfer failed, ret: -1: not every worker has staged request {request}")

    def _start_pull(self, port: int, message: dict[str, Any]) -> dict[str, Any]:
        if port not in self._orders:
            return {"error": f"port {port} takes no START_PULL"}
        return {"taken": True}

    def _ready(self, port: int, message: dict[str, Any]) -> dict[str, Any]:
        if port not in self._reports:
            return {"error": f"port {port} is no scheduler's"}
        request = str(message["request"])
        with self._lock:
            reported = self._staged.setdefault(request, set())
            reported.add(int(message["worker"]))
            complete = len(reported) == self._settings.parallel.world
            if complete:
                del self._staged[request]
        return {"complete": complete}

    # Push, decode side -------------------------------------------------------------------------------------------

    def _await(self, rank: int, payload: dict[str, Any]) -> dict[str, Any]:
        """upstream: layerwise decode posts its addresses to the proxy's metaserver, which starts the prefill."""
        request = payload["request"]
        arrival = _Arrival(rank)
        with self._lock:
            self._arrivals[request] = arrival
        try:
            self._post(str(payload["params"].get("metaserver")), self._advertise(rank, payload))
            if not arrival.complete.wait(_PUSH_GRACE):
                raise TransferError(
                    f"Mooncake transfer failed, ret: -1: only {len(arrival.pieces)} prefill workers have pushed "
                    f"to {self._address}:{self._settings.kv.base_port(rank, self._settings.parallel)}"
                )
        finally:
            with self._lock:
                del self._arrivals[request]
        pieces = [arrival.pieces[index] for index in sorted(arrival.pieces)]
        return {"digest": self._verify(join_digest(pieces), payload, "the prefill")}

    def _advertise(self, rank: int, payload: dict[str, Any]) -> dict[str, Any]:
        parallel = self._settings.parallel
        return {
            "token_ids": [],
            "request_id": payload["request"],
            "do_remote_prefill": False,
            "do_remote_decode": True,
            "remote_block_ids": [list(range(-(-payload["tokens"] // _BLOCK_SIZE)))],
            "remote_block_size": _BLOCK_SIZE,
            "remote_engine_id": f"{self._engine_id}_dp{rank}",
            "remote_host": self._address,
            "remote_port": self._settings.kv.base_port(rank, parallel),
            "remote_tp_size": parallel.tp,
            "remote_pcp_size": parallel.pcp,
            "remote_dcp_size": parallel.dcp,
            "remote_cached_tokens": 0,
        }

    def _post(self, url: str, body: dict[str, Any]) -> None:
        if not self._host.may_talk_to(url_host(url)):
            raise TransferError(f"Mooncake transfer failed, ret: -1: metaserver {url}: outside the rehearsal")
        for attempt in range(1, _METASERVER_TRIES + 1):
            try:
                post_json(url, body, self._settings.push_timeout)  # upstream ignores the status as well
                return
            except (OSError, ValueError) as exc:
                log.error(f"Failed to connect to metaserver. url={url}, retry={attempt}: {exc}")
        raise TransferError(f"Mooncake transfer failed, ret: -1: metaserver {url} does not answer")

    def _accept(self, port: int, message: dict[str, Any]) -> dict[str, Any]:
        """Take one prefill worker's piece; ``parts`` says how many belong together."""
        request = message.get("request")
        with self._lock:
            arrival = self._arrivals.get(str(request))
            if arrival is None or arrival.rank != self._ports[port][0]:
                return {"error": f"no request {request} waits for KV blocks on port {port}"}
            arrival.pieces[int(message["part"])] = str(message["piece"])
            if len(arrival.pieces) == int(message["parts"]):
                arrival.complete.set()
        return {"taken": True}

    # Push, prefill side ------------------------------------------------------------------------------------------

    def _push(self, rank: int, payload: dict[str, Any]) -> dict[str, Any]:
        """Every prefill worker sends its piece to the decode worker with the same heads."""
        parallel = self._settings.parallel
        params = payload["params"]
        host, port = str(params["remote_host"]), int(params["remote_port"])
        decode_tp = int(params.get("remote_tp_size") or self._settings.kv.decode.tp)
        pieces = split_digest(payload["digest"], parallel.world)
        for index, piece in enumerate(pieces):
            target = port + index % parallel.tp * decode_tp // parallel.tp
            message = {"op": "push", "request": params["request_id"], "part": index, "parts": len(pieces)}
            self._exchange(host, target, {**message, "piece": piece})
        return {}

    # Sockets -----------------------------------------------------------------------------------------------------

    def _verify(self, digest: str, payload: dict[str, Any], peer: str) -> str:
        if digest != payload["digest"]:
            raise TransferError(f"Mooncake transfer failed, ret: -1: {peer} sent the KV blocks of another prompt")
        return digest

    def _exchange(self, host: str, port: int, message: dict[str, Any]) -> dict[str, Any]:
        """Send one message to a peer's side channel and return its answer."""
        peer = f"{host}:{port}"
        if not self._host.may_talk_to(host):
            raise TransferError(f"Mooncake transfer failed, ret: -1: {peer}: outside the rehearsal")
        try:
            with socket.create_connection((host, port), self._settings.connect_timeout) as sock:
                sock.settimeout(self._settings.transfer_timeout)
                sock.sendall(encode(message))
                reader = LineReader(sock)
                replies: list[dict[str, Any]] | None = []
                while replies == []:
                    replies = reader.receive()
        except (OSError, OverflowError) as exc:
            raise TransferError(f"Mooncake transfer failed, ret: -1: {peer}: {exc}") from None
        if not replies:
            raise TransferError(f"Mooncake transfer failed, ret: -1: {peer}: no answer")
        if "error" in replies[0]:
            raise TransferError(f"Mooncake transfer failed, ret: -1: {peer}: {replies[0]['error']}")
        return replies[0]

    def _listen(self, port: int) -> None:
        path = f"tcp://{self._address}:{port}"
        try:
            sock = bind(self._address, port)
            sock.listen(128)
        except OverflowError:
            raise Refusal(f"zmq.error.ZMQError: Invalid argument (addr='{path}'): the port is above 65535") from None
        except OSError as exc:
            log.error("KV Cache sending/receiving thread failed to start.")
            raise Refusal(f"zmq.error.ZMQError: {exc.strerror} (addr='{path}')") from None
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, None)
        if port in self._reports:
            log.info(f"Starting scheduler ready listener on path: {path}")
        elif port in self._orders:
            log.info(f"D2RH worker takes START_PULL on path: {path}")
        else:
            push = self._settings.kv.connector.flow == "push"
            thread = "KVCacheRecvingLayerThread" if push else "KVCacheSendingThread"
            log.info(f"{thread} started listening on path: {path}")

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select(self._expire()):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if key.data is None:
                    self._welcome(sock)
                else:
                    self._answer(sock, key.data)

    def _welcome(self, listener: socket.socket) -> None:
        try:
            peer, _ = listener.accept()
        except OSError:  # the peer left before it was its turn
            return
        # Answers are far smaller than a socket's buffer, so a peer that does not read cannot stop this thread.
        peer.settimeout(1)
        self._selector.register(peer, selectors.EVENT_READ, LineReader(peer))

    def _answer(self, peer: socket.socket, reader: LineReader) -> None:
        messages = reader.receive()
        if messages == []:
            return
        try:
            for message in messages or []:
                peer.sendall(encode(self._handle(peer.getsockname()[1], message)))
        except OSError as exc:
            log.warning(f"KV side channel: a peer left without its answer: {exc}")
        self._selector.unregister(peer)
        peer.close()

    def _handle(self, port: int, message: dict[str, Any]) -> dict[str, Any]:
        handlers = {
            "fetch": self._give,
            "push": self._accept,
            "start_pull": self._start_pull,
            "ready": self._ready,
        }
        handler = handlers.get(str(message.get("op")))
        try:
            return handler(port, message) if handler else {"error": "unknown operation"}
        except (KeyError, TypeError, ValueError) as exc:
            return {"error": f"malformed message: {exc!r}"}

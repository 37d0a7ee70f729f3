# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The data-parallel group: its ranks load and serve together, and it cannot live without one of them.

upstream: the process of rank 0 binds the data-parallel RPC port on the group's address when the group spans processes;
all others connect to it. Nobody serves before every rank has joined and loaded. A formed group takes no newcomer. When
a rank dies the engines of all others are dead too, although their API processes stay.

The connections also carry the work of internal load balancing: the one API server runs each request on some rank.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time

from vllm_sim import log
from vllm_sim.errors import Refusal, TransferError
from vllm_sim.host import bind
from vllm_sim.wire import LineReader, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from vllm_sim.settings import Settings

    Perform = Callable[[int, str, dict[str, Any]], dict[str, Any]]

_REPORT_EVERY = 10.0
_FIRST_RETRY = 0.1
_SLOWEST_RETRY = 1.0


def ranks_text(ranks: set[int] | range) -> str:
    """``rank 3``, ``ranks 4-7``, ``ranks 1, 5-6``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"


class Group:
    """A group inside one process: nothing to wait for, nobody to lose."""

    def __init__(self, settings: Settings, perform: Perform) -> None:
        self.parallel = settings.parallel
        self.lost: str | None = None  # what is gone, once the group is broken
        self._perform = perform
        self._config = settings.group_config
        self._timeout = settings.dp_timeout
        self._place = f"{self.parallel.address}:{self.parallel.rpc_port}"

    def join(self) -> None:
        """Return when every rank of the group is there."""

    def loaded(self) -> None:
        """Return when every rank of the group has loaded its weights."""

    def run(self, rank: int, operation: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Run one step of a request on a rank. Raises TransferError."""
        return self._perform(rank, operation, payload)

    def _lose(self, ranks: set[int] | range) -> None:
        if self.lost is None:
            self.lost = ranks_text(ranks)
            log.error(f"{self.lost} of the data-parallel group at {self._place} is lost")

    def _lost_while_loading(self) -> Refusal:
        return Refusal(f"RuntimeError: Connection closed by peer [{self._place}]: {self.lost} is lost while loading")


class _Peer:
    """A process of the group, as rank 0 sees it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reader = LineReader(sock)
        self.ranks: set[int] = set()
        self.loaded = False
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Raises OSError when the peer is gone."""
        with self._lock:
            self.sock.sendall(encode(message))


class _Call:
    """A step that runs on another process of the group."""

    def __init__(self, peer: _Peer) -> None:
        self.peer = peer
        self.done = threading.Event()
        self.answer: dict[str, Any] = {"error": "the rank was lost"}


class Head(Group):
    """The process of rank 0."""

    def __init__(self, settings: Settings, perform: Perform) -> None:
        super().__init__(settings, perform)
        self._ranks = set(self.parallel.ranks)
        self._peers: list[_Peer] = []
        self._joined = threading.Event()
        self._ready = threading.Event()
        self._self_loaded = False
        self._calls: dict[int, _Call] = {}
        self._next_call = 0
        self._lock = threading.RLock()
        self._selector = selectors.DefaultSelector()
        try:
            self._listener = bind(self.parallel.address, self.parallel.rpc_port)
            self._listener.listen(1024)
        except (OSError, OverflowError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else exc
            raise Refusal(
                f"zmq.error.ZMQError: {reason} (addr='tcp://{self._place}'): the data-parallel RPC port of rank 0"
            ) from None

    def join(self) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        threading.Thread(target=self._serve, name="data-parallel-head", daemon=True).start()
        deadline = time.monotonic() + self._timeout
        while not self._joined.wait(max(0.0, min(_REPORT_EVERY, deadline - time.monotonic()))):
            missing = set(range(self.parallel.dp)) - self._ranks
            if time.monotonic() >= deadline:
                raise Refusal(
                    f"TimeoutError: {ranks_text(missing)} did not join the data-parallel group at {self._place} "
                    f"within {self._timeout:g} seconds"
                )
            log.info(f"Waiting for {len(missing)} remote core engine proc(s) to connect: {ranks_text(missing)}")
        log.info(f"All {self.parallel.dp} ranks joined the data-parallel group at {self._place}")

    def loaded(self) -> None:
        with self._lock:
            self._self_loaded = True
            self._check_ready()
        self._ready.wait()
        if self.lost:
            raise self._lost_while_loading()

    def run(self, rank: int, operation: str, payload: dict[str, Any]) -> dict[str, Any]:
        if rank in self.parallel.ranks:
            return super().run(rank, operation, payload)
        with self._lock:
            peer = next((peer for peer in self._peers if rank in peer.ranks), None)
            if peer is None:
                raise TransferError(f"rank {rank} is lost")
            number = self._next_call = self._next_call + 1
            call = self._calls[number] = _Call(peer)
        try:
            peer.send({"call": number, "rank": rank, "operation": operation, "payload": payload})
            call.done.wait()
        except OSError:
            raise TransferError(f"rank {rank} is lost") from None
        finally:
            with self._lock:
                del self._calls[number]
        if "error" in call.answer:
            raise TransferError(call.answer["error"])
        result: dict[str, Any] = call.answer["result"]
        return result

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                peer = key.data
                if peer is None:
                    self._welcome()
                    continue
                messages = peer.reader.receive()
                with self._lock:
                    for message in messages or []:
                        self._handle(peer, message)
                    if messages is None:
                        self._drop(peer)

    def _welcome(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # the peer left before it was its turn
            return
        sock.setblocking(True)
        self._selector.register(sock, selectors.EVENT_READ, _Peer(sock))

    def _handle(self, peer: _Peer, message: dict[str, Any]) -> None:
        if "join" in message:
            self._admit(peer, message["join"])
        elif "loaded" in message:
            peer.loaded = True
            self._check_ready()
        elif "answer" in message and message["answer"] in self._calls:
            call = self._calls[message["answer"]]
            call.answer = message
            call.done.set()

    def _admit(self, peer: _Peer, join: dict[str, Any]) -> None:
        """Take a process into the group, or say why not."""
        ranks = set(join["ranks"])
        refusal = self._objection(ranks, join["config"])
        if refusal:
            log.warning(f"{ranks_text(ranks)} was refused: {refusal}")
            self._send([peer], {"refused": refusal})
            return
        peer.ranks = ranks
        self._ranks |= ranks
        self._peers.append(peer)
        if len(self._ranks) == self.parallel.dp:
            self._send(self._peers, {"formed": True})
            self._joined.set()

    def _objection(self, ranks: set[int], config: dict[str, Any]) -> str | None:
        if self.lost:
            return f"the group has lost {self.lost}; restart all of its ranks together"
        different = [
            f"{key} {config.get(key)!r} instead of {value!r}"
            for key, value in self._config.items()
            if config.get(key) != value
        ]
        if different:
            return "Configuration mismatch detected, all DP workers must have identical: " + ", ".join(different)
        if self._joined.is_set():
            return f"the group of {self.parallel.dp} ranks is already formed; a rank cannot join it late"
        if ranks & self._ranks:
            return f"{ranks_text(ranks & self._ranks)} has joined already"
        return None

    def _check_ready(self) -> None:
        if self._self_loaded and self.lost is None and all(peer.loaded for peer in self._peers):
            self._send(self._peers, {"ready": True})
            self._ready.set()

    @staticmethod
    def _send(peers: list[_Peer], message: dict[str, Any]) -> None:
        for peer in peers:
            try:
                peer.send(message)
            except OSError as exc:  # its end of file comes next and drops it
                log.warning(f"{ranks_text(peer.ranks)} cannot be reached: {exc}")

    def _drop(self, peer: _Peer) -> None:
        """A process left: before the group was formed its place is free again, later the group is broken."""
        self._selector.unregister(peer.sock)
        peer.sock.close()
        if peer not in self._peers:
            return
        self._peers.remove(peer)
        if not self._joined.is_set():
            self._ranks -= peer.ranks
            log.warning(f"{ranks_text(peer.ranks)} left before the group was formed; waiting for it again")
            return
        self._lose(peer.ranks)
        self._send(self._peers, {"lost": sorted(peer.ranks)})
        for call in self._calls.values():
            if call.peer is peer:
                call.done.set()
        self._ready.set()  # wakes up a start that waits for the lost rank


class Member(Group):
    """A process with other ranks than 0."""

    def __init__(self, settings: Settings, perform: Perform) -> None:
        super().__init__(settings, perform)
        self._ready = threading.Event()
        self._sock: socket.socket | None = None
        self._lock = threading.Lock()

    def join(self) -> None:
        deadline = time.monotonic() + self._timeout
        self._sock = self._connect(deadline)
        reader = LineReader(self._sock)
        try:
            self._send({"join": {"ranks": list(self.parallel.ranks), "config": self._config}})
            messages: list[dict[str, Any]] | None = []
            while messages == []:
                self._sock.settimeout(max(0.1, deadline - time.monotonic()))
                messages = reader.receive()
        except OSError:
            messages = None
        if not messages:
            late = time.monotonic() >= deadline
            raise Refusal(
                f"{'TimeoutError' if late else 'ConnectionError'}: the data-parallel group at {self._place} was not "
                f"formed: {f'not all ranks joined within {self._timeout:g} seconds' if late else 'rank 0 went away'}"
            )
        if "refused" in messages[0]:
            raise Refusal(
                f"RuntimeError: the data-parallel group at {self._place} refuses {ranks_text(self.parallel.ranks)}: "
                f"{messages[0]['refused']}"
            )
        self._sock.settimeout(None)
        log.info(f"{ranks_text(self.parallel.ranks)} joined the data-parallel group at {self._place}")
        threading.Thread(target=self._serve, args=(reader, messages[1:]), name="data-parallel", daemon=True).start()

    def loaded(self) -> None:
        try:
            self._send({"loaded": True})
        except OSError as exc:  # the reading thread meets the same end and names who is lost
            log.warning(f"rank 0 cannot be reached: {exc}")
        self._ready.wait()
        if self.lost:
            raise self._lost_while_loading()

    def _connect(self, deadline: float) -> socket.socket:
        """upstream: ranks may start in any order, so a rank waits for rank 0 to listen."""
        pause = _FIRST_RETRY
        while True:
            try:
                return socket.create_connection((self.parallel.address, self.parallel.rpc_port), 5)
            except (OSError, OverflowError) as exc:
                if time.monotonic() >= deadline:
                    raise Refusal(
                        f"TimeoutError: no data-parallel head at {self._place} within {self._timeout:g} seconds: {exc}"
                    ) from None
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(pause * 2, _SLOWEST_RETRY)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._sock is not None
        with self._lock:
            self._sock.sendall(encode(message))

    def _serve(self, reader: LineReader, messages: list[dict[str, Any]] | None) -> None:
        while messages is not None:
            for message in messages:
                self._handle(message)
            messages = reader.receive()
        self._lose({0})
        self._ready.set()  # wakes up a start that waits for the others

    def _handle(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self._ready.set()
        elif "lost" in message:
            self._lose(set(message["lost"]))
            self._ready.set()
        elif "call" in message:
            threading.Thread(target=self._work, args=(message,), daemon=True).start()

    def _work(self, message: dict[str, Any]) -> None:
        try:
            result = self._perform(message["rank"], message["operation"], message["payload"])
            answer = {"answer": message["call"], "result": result}
        except TransferError as exc:
            answer = {"answer": message["call"], "error": str(exc)}
        try:
            self._send(answer)
        except OSError as exc:
            log.error(f"the answer to rank 0 was not sent: {exc}")


def make_group(settings: Settings, perform: Perform) -> Group:
    if not settings.parallel.spans_processes:
        return Group(settings, perform)
    return Head(settings, perform) if settings.parallel.first_rank == 0 else Member(settings, perform)

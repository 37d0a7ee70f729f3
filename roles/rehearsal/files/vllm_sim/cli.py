# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The life of one engine process: check, join, load, serve."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time

from vllm_sim import log
from vllm_sim.api import Api
from vllm_sim.engine import Engine
from vllm_sim.errors import Refusal, UsageError
from vllm_sim.group import make_group, ranks_text
from vllm_sim.host import Host, bind
from vllm_sim.options import DEFAULT_VERSION
from vllm_sim.settings import Settings
from vllm_sim.transfer import Workers
from vllm_sim.web import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SHARDS = 5
_THREAD_STACK = 256 * 1024


def main(argv: list[str]) -> int:
    """The ``vllm`` command. Returns its exit code; a serving engine ends by a signal or a fault."""
    try:
        if argv[:1] in (["--version"], ["-v"]):
            print(os.environ.get("SIM_VLLM_VERSION", DEFAULT_VERSION))
            return 0
        if argv[:1] != ["serve"]:
            raise UsageError(f"invalid choice: {argv[0] if argv else ''!r} (choose from 'serve')", prog="vllm")
        if {"-h", "--help"} & set(argv):
            print("usage: vllm serve [model_tag] [options]")
            return 0
        serve(argv[1:])
    except UsageError as exc:
        print(f"usage: vllm serve [model_tag] [options]\n{exc.prog}: error: {exc}", file=sys.stderr, flush=True)
        return exc.exit_code
    except Refusal as exc:
        log.error(str(exc))
        return exc.exit_code
    return 0


def serve(argv: list[str]) -> None:
    """Start an engine and serve for ever. Raises Refusal for whatever stops a real engine."""
    settings = Settings(argv, os.environ)
    parallel = settings.parallel
    host = Host(os.environ)
    faults = host.faults(None if parallel.headless else settings.port, parallel.first_rank)
    log.info(f"vLLM API server version {settings.version} (simulated), model {settings.model}")
    for warning in settings.warnings:
        log.warning(warning)
    if settings.kv.qos is not None:
        log.info(f"Injected comm_resource_config.qos={settings.kv.qos}")
    host.check(settings)
    threading.stack_size(_THREAD_STACK)
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, _terminate)
    # upstream: the API port is bound before the engine starts, so a busy one fails at once.
    api_socket = None if parallel.headless else _bind_api(settings, host)
    workers = Workers(settings, host)
    group = make_group(settings, workers.perform)
    group.join()
    _load(settings, faults)
    workers.start()  # upstream: the side channel opens when the KV caches exist, after loading
    group.loaded()
    if "die_after" in faults:
        threading.Thread(target=_die, args=(faults["die_after"],), daemon=True).start()
    if api_socket is None:
        log.info(f"headless engine of {ranks_text(parallel.ranks)} is ready")
        threading.Event().wait()
        return
    engine = Engine(settings, group)
    engine.unhealthy = faults.get("unhealthy", False)
    _listen_api(api_socket, settings)
    log.info(
        f"{settings.role} engine of {ranks_text(parallel.ranks)} ({settings.kv.connector.name}) serves "
        f"on {_address_of(api_socket)}:{settings.port}"
    )
    log.info("Application startup complete.")
    Server(api_socket, Api(engine, host.own_address(settings.host)).handle).serve_forever()


def _bind_api(settings: Settings, host: Host) -> socket.socket:
    try:
        return bind(host.bind_address(settings.host), settings.port)
    except OSError as exc:
        raise _port_error(exc, settings) from None


def _listen_api(sock: socket.socket, settings: Settings) -> None:
    try:
        sock.listen(512)
    except OSError as exc:  # another engine with this port was loading at the same time
        raise _port_error(exc, settings) from None


def _port_error(exc: OSError, settings: Settings) -> Refusal:
    return Refusal(
        f"OSError: [Errno {exc.errno}] {exc.strerror}: API port {settings.host or '0.0.0.0'}:{settings.port}"
    )


def _address_of(sock: socket.socket) -> str:
    address: str = sock.getsockname()[0]
    return address


def _load(settings: Settings, faults: dict[str, Any]) -> None:
    """Take the time of loading weights, with the progress lines of the real loader."""
    seconds = float(faults.get("load_seconds", settings.startup))
    for shard in range(_SHARDS + 1):
        log.info(f"Loading safetensors checkpoint shards: {100 * shard // _SHARDS:3d}% Completed | {shard}/{_SHARDS}")
        if "fail_start" in faults and shard == 1:
            raise Refusal(faults["fail_start"])
        if shard < _SHARDS:
            time.sleep(seconds / _SHARDS)


def _die(seconds: float) -> None:
    """The ordered fault: the engine dies as it does on a device error, without a word to anyone."""
    time.sleep(seconds)
    log.error("EngineCore encountered a fatal error: the NPU reported an uncorrectable error (ordered by faults.json)")
    os._exit(1)


def _terminate(number: int, frame: object) -> None:
    """upstream: an engine ends with 0 when it is told to end."""
    # Not through sys.stdout: the interrupted code may be in the middle of a write to it.
    os.write(1, f"INFO Received signal {number}. Shutting down\n".encode())
    os._exit(0)

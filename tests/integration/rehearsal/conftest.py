# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Simulated hosts on loopback addresses that no other test uses, and the processes that run on them."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from typing import Any

import pytest

FILES = pathlib.Path(__file__).parents[3] / "roles" / "rehearsal" / "files"
UPSTREAM = pathlib.Path(sys.prefix) / "share" / "pd_serving" / "upstream" / "0.23.0.post1"
CLAIM_PORT = 9
STARTUP_SECONDS = 15.0
LIBC = ctypes.CDLL(None)


class Address:
    """Hands out addresses of one 127.77.x.0/24, claimed against every other test process on this machine."""

    def __init__(self) -> None:
        self._claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for third in random.sample(range(256), 256):
            try:
                self._claim.bind((f"127.77.{third}.254", CLAIM_PORT))
            except OSError:
                continue
            self._third, self._fourth = third, 0
            return
        raise AssertionError("no free 127.77.x.0/24 is left")

    def next(self) -> str:
        self._fourth += 1
        return f"127.77.{self._third}.{self._fourth}"


@dataclasses.dataclass
class Reply:
    """An HTTP answer that was read to its end."""

    status: int
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The JSON events of a stream; its end must have come."""
        lines = [line[len("data: ") :] for line in self.body.splitlines() if line.startswith("data: ")]
        assert lines, f"not a stream: {self.body!r}"
        assert lines[-1] == "[DONE]", self.body
        return [json.loads(line) for line in lines[:-1]]

    @property
    def text(self) -> str:
        """What the model wrote, streamed or not, completion or chat."""
        chunks = self.events if self.body.startswith("data: ") else [self.json]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        return "".join(
            choice.get("text") or choice.get("delta", choice.get("message", {})).get("content") or ""
            for choice in choices
        )


def ask(
    address: str, port: int, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 20
) -> Reply:
    """GET a path, or POST a body (JSON unless it is text already)."""
    connection = HTTPConnection(address, port, timeout=timeout)
    try:
        data = body if body is None or isinstance(body, str) else json.dumps(body)
        connection.request("GET" if data is None else "POST", path, data, headers or {})
        response = connection.getresponse()
        return Reply(response.status, response.read().decode())
    finally:
        connection.close()


class Process:
    """A process of the rehearsal with its log and, when it serves, its HTTP interface."""

    def __init__(self, popen: subprocess.Popen[bytes], log: pathlib.Path, address: str, port: int | None) -> None:
        self.popen = popen
        self.log_path = log
        self.address = address
        self.port = port

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def request(self, path: str, body: Any = None, **options: Any) -> Reply:
        assert self.port is not None
        return ask(self.address, self.port, path, body, **options)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of a series that have these labels."""
        total, found = 0.0, False
        for line in self.request("/metrics").body.splitlines():
            match = re.fullmatch(r"([\w:]+)\{(.*)\} (\S+)", line)
            if match and match.group(1) == name:
                have = dict(re.findall(r'(\w+)="([^"]*)"', match.group(2)))
                if labels.items() <= have.items():
                    total, found = total + float(match.group(3)), True
        assert found, f"/metrics has no {name} with {labels}"
        return total

    def wait_for(self, text: str, seconds: float = STARTUP_SECONDS) -> Process:
        """Return when the log has the text."""
        deadline = time.monotonic() + seconds
        while text not in self.log:
            assert self.popen.poll() is None, f"exited with {self.popen.returncode}:\n{self.log}"
            assert time.monotonic() < deadline, f"no {text!r} within {seconds} s:\n{self.log}"
            time.sleep(0.02)
        return self

    def wait_ready(self) -> Process:
        return self.wait_for("startup complete" if self.port else "is ready")

    def wait_exit(self, seconds: float = 10.0) -> int:
        """The exit code; the last line of the log then says why."""
        return self.popen.wait(seconds)

    def stop(self) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            try:
                self.popen.wait(5)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()
                raise


class Host:
    """One simulated host: an address, a root folder with chips and a model."""

    def __init__(self, lab: Lab, root: pathlib.Path, address: str, chips: int) -> None:
        self.lab = lab
        self.root = root
        self.address = address
        (root / "dev").mkdir(parents=True)
        for name in ["davinci_manager", "hisi_hdc", "devmm_svm", *(f"davinci{chip}" for chip in range(chips))]:
            (root / "dev" / name).touch()
        (root / "models" / "m").mkdir(parents=True)
        (root / "models" / "m" / "config.json").write_text("{}")

    def faults(self, faults: dict[str, dict[str, Any]]) -> None:
        path = self.root / "opt" / "pd_rehearsal" / "faults.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(faults))

    def engine(self, *options: str, port: int | None = 7100, devices: str = "0", **env: Any) -> Process:
        """Start `vllm serve` on this host; without a port it must be a headless engine. ``env`` holds strings."""
        place = [] if port is None else ["--host", self.address, "--port", str(port)]
        argv = [sys.executable, "-I", "-S", "-X", f"pycache_prefix={self.lab.pycache}", str(FILES / "vllm_sim")]
        argv += ["serve", "/models/m", "--served-model-name", "demo", *place, *options]
        environment = {
            "PATH": os.environ["PATH"],
            "PD_REHEARSAL_ROOT": str(self.root),
            "VLLM_HOST_IP": self.address,
            "HCCL_IF_IP": self.address,
            "GLOO_SOCKET_IFNAME": "lo",
            "ASCEND_RT_VISIBLE_DEVICES": devices,
            "SIM_STARTUP": "0",
            "SIM_PREFILL_DELAY": "0.01",
            "SIM_TOKEN_DELAY": "0.001",
            **env,
        }
        return self.lab.start(argv, environment, self.address, port)

    def proxy(self, script: str, prefill: list[Process], decode: list[Process], port: int = 1999) -> Process:
        """Start one of upstream's own proxies."""
        path = UPSTREAM / "examples" / "disaggregated_prefill_v1" / script
        assert path.is_file(), f"{path} is missing: run `python {FILES / 'fetch_upstream.py'} {UPSTREAM}`"
        argv = [sys.executable, str(path), "--host", self.address, "--port", str(port)]
        for side, engines in (("prefiller", prefill), ("decoder", decode)):
            argv += [f"--{side}-hosts", *(engine.address for engine in engines)]
            argv += [f"--{side}-ports", *(str(engine.port) for engine in engines)]
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(FILES / "standin"), "HOME": str(self.root)}
        return self.lab.start(argv, env, self.address, port)


class Lab:
    """Makes hosts and ends everything that was started on them."""

    def __init__(self, folder: pathlib.Path, addresses: Address, pycache: pathlib.Path) -> None:
        self.pycache = pycache
        self._folder = folder
        self._addresses = addresses
        self._processes: list[Process] = []

    def host(self, chips: int = 4) -> Host:
        address = self._addresses.next()
        return Host(self, self._folder / address, address, chips)

    def instance(
        self,
        hosts: Sequence[Host],
        role: str,
        sizes: tuple[tuple[int, int], tuple[int, int]],
        *options: str,
        connector: str = "MooncakeConnectorV1",
        kv_port: int = 36000,
        internal: bool = False,
        kv: dict[str, Any] | None = None,
        **env: Any,
    ) -> list[Process]:
        """Start all processes of one instance. ``sizes`` are (dp, tp) of prefill and of decode."""
        dp, tp = sizes[0] if role == "prefill" else sizes[1]
        local = dp // len(hosts)
        options = (*options, "--kv-transfer-config", json.dumps(kv_config(role, sizes, connector, kv_port, kv or {})))
        options += ("--data-parallel-size", str(dp), "--tensor-parallel-size", str(tp))
        options += ("--data-parallel-address", hosts[0].address, "--data-parallel-rpc-port", "12321")
        if dp == 1:
            return [hosts[0].engine(*options, devices=device_list(0, tp), **env)]
        if not internal:
            return [
                hosts[rank // local].engine(
                    *options,
                    *("--data-parallel-rank", str(rank)),
                    port=7100 + rank % local,
                    devices=device_list(rank % local * tp, tp),
                    **env,
                )
                for rank in range(dp)
            ]
        options += ("--data-parallel-size-local", str(local))
        return [
            host.engine(
                *options,
                *(("--headless", "--data-parallel-start-rank", str(index * local)) if index else ()),
                port=None if index else 7100,
                devices=device_list(0, local * tp),
                **env,
            )
            for index, host in enumerate(hosts)
        ]

    def start(self, argv: list[str], env: dict[str, str], address: str, port: int | None) -> Process:
        path = self._folder / f"{len(self._processes)}.log"
        with path.open("wb") as log:
            popen = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent,
            )
        process = Process(popen, path, address, port)
        self._processes.append(process)
        return process

    def stop(self) -> None:
        for process in self._processes:
            process.popen.terminate()
        for process in self._processes:
            process.stop()


def end_with_parent() -> None:
    """Linux ends the child when the test process is gone, even when it was killed (PR_SET_PDEATHSIG)."""
    LIBC.prctl(1, signal.SIGKILL)


def device_list(first: int, count: int) -> str:
    return ",".join(str(index) for index in range(first, first + count))


def kv_config(
    role: str, sizes: tuple[tuple[int, int], tuple[int, int]], connector: str, kv_port: int, more: dict[str, Any]
) -> dict[str, Any]:
    extra = {side: {"dp_size": dp, "tp_size": tp} for side, (dp, tp) in zip(("prefill", "decode"), sizes, strict=True)}
    return {
        "kv_connector": connector,
        "kv_role": {"prefill": "kv_producer", "decode": "kv_consumer"}[role],
        "kv_port": str(kv_port),
        "kv_connector_extra_config": extra,
        **more,
    }


@pytest.fixture(scope="session")
def addresses() -> Address:
    return Address()


@pytest.fixture(scope="session")
def pycache(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("pycache")


@pytest.fixture
def lab(tmp_path: pathlib.Path, addresses: Address, pycache: pathlib.Path) -> Iterator[Lab]:
    """A lab of its own for one test."""
    lab = Lab(tmp_path, addresses, pycache)
    yield lab
    lab.stop()


@pytest.fixture(scope="module")
def shared_lab(tmp_path_factory: pytest.TempPathFactory, addresses: Address, pycache: pathlib.Path) -> Iterator[Lab]:
    """A lab for all tests of a module that break nothing."""
    lab = Lab(tmp_path_factory.mktemp("lab"), addresses, pycache)
    yield lab
    lab.stop()

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Asking a docker daemon, and what is said when it cannot be asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.ascend.pd_serving.plugins.module_utils import docker_socket
from ansible_collections.ascend.pd_serving.plugins.module_utils.docker_socket import (
    Container,
    Docker,
    DockerError,
    Image,
)
from ansible_collections.ascend.pd_serving.tests.unit.plugins.module_utils.fake_docker import (
    IMAGE_ID,
    FakeDocker,
    serving,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "docker.sock"


@pytest.fixture
def daemon(path: Path) -> Iterator[FakeDocker]:
    with serving(path) as fake:
        yield fake


def test_a_daemon_that_answers(daemon: FakeDocker, path: Path) -> None:
    docker = Docker(str(path))
    docker.ping()
    assert docker.version() == docker_socket.Version("28.2.2", "1.50")
    assert docker.root_folder() == "/var/lib/docker"
    digest = "quay.io/ascend/vllm-ascend@sha256:" + "a" * 64
    daemon.images = {"quay.io:5000/ascend/vllm-ascend:v0.23.0-a3", digest}
    assert docker.image("quay.io:5000/ascend/vllm-ascend:v0.23.0-a3") == Image(IMAGE_ID, {})
    daemon.image_labels = {"made": "of this"}
    assert docker.image(digest) == Image(IMAGE_ID, {"made": "of this"})
    assert docker.image("quay.io/ascend/vllm-ascend:v0.23.0-a3") is None
    assert docker.image("../odd name?x") is None


def test_containers(daemon: FakeDocker, path: Path) -> None:
    other = daemon.add("other", chips=[4, 5], privileged=True)
    daemon.add("a", cluster="demo", state="paused")
    daemon.add("old", chips=[1], state="exited")
    gone = daemon.add("gone")
    daemon.broken[f"/containers/{gone}/json"] = (404, b"{}")
    found = {one.name: one for one in Docker(str(path)).containers()}
    assert list(found) == ["a", "old", "other"]
    devices = ("/dev/davinci4", "/dev/davinci5", "/dev/davinci_manager")
    assert found["other"] == Container(other, "other", {}, "running", True, devices)
    assert (found["a"].labels, found["a"].held, found["a"].devices) == ({"pd_serving.cluster": "demo"}, True, ())
    assert (found["old"].held, found["old"].devices) == (False, ())
    assert not any(found["old"].id in place for place in daemon.asked), "only what holds devices is inspected"


def test_a_container_without_a_name_is_called_by_its_id() -> None:
    assert docker_socket.build_container({"Id": "0123456789abcdef", "Names": None}, {}).name == "0123456789ab"


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (500, b'{"message":"no space\\nleft"}', "answered HTTP 500 to /version: no space left"),
        (200, b"<html>", "answered HTTP 200 to /version: <html>"),
        (503, b"", "answered HTTP 503 to /version: nothing"),
        (400, b"[1]", "answered HTTP 400 to /version: [1]"),
    ],
)
def test_an_answer_that_is_none(daemon: FakeDocker, path: Path, status: int, body: bytes, words: str) -> None:
    daemon.broken["/version"] = (status, body)
    with pytest.raises(DockerError) as error:
        Docker(str(path)).version()
    assert str(error.value) == f"the docker daemon failed: {path} {words}"
    assert "journalctl" in error.value.fix


def test_something_else_behind_the_socket(daemon: FakeDocker, path: Path) -> None:
    daemon.broken["/_ping"] = (200, b"hello")
    with pytest.raises(DockerError, match="answered HTTP 200 to /_ping: hello"):
        Docker(str(path)).ping()


def message(path: Path, timeout: float = 5) -> str:
    with pytest.raises(DockerError) as error:
        Docker(str(path), timeout).ping()
    assert error.value.fix
    return str(error.value)


def test_no_daemon(path: Path) -> None:
    assert message(path) == f"the docker daemon is not installed or does not run: {path} does not exist"


def test_a_daemon_that_is_down(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    assert message(path) == f"the docker daemon is down: nobody listens on {path}"


def test_a_socket_that_may_not_be_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(docker_socket, "_user", lambda: "ops")
    assert message(path) == f"user ops may not use the docker daemon: {path}: permission denied"


def _answering(path: Path, act: Callable[[socket.socket], None]) -> threading.Thread:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        with server, server.accept()[0] as connection:
            connection.recv(4096)
            act(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_a_daemon_that_is_frozen(path: Path) -> None:
    done = threading.Event()
    thread = _answering(path, lambda connection: done.wait(5) and None)
    assert message(path, 0.1) == f"the docker daemon does not answer: nothing came from {path} within 0 s"
    done.set()
    thread.join()


def test_a_daemon_that_breaks_off(path: Path) -> None:
    thread = _answering(path, lambda connection: None)
    assert message(path).startswith(f"the docker daemon broke off: {path}: ")
    thread.join()


def test_the_user_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert docker_socket._user()
    monkeypatch.setattr(docker_socket.os, "geteuid", lambda: 987654321)
    assert docker_socket._user() == "987654321"

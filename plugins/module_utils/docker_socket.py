# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Ask the docker daemon of this host what it has. Reading only, over its socket, with the standard library.

Neither the docker command nor the library `requests` has to be there: whether they are is among what is checked.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import pwd
import socket
import typing as t
import urllib.parse

SOCKET = "/var/run/docker.sock"

TIMEOUT = 10.0
"""Seconds for each step of one question: a daemon that is frozen still lets its socket be opened."""

HELD_STATES = frozenset(("running", "paused", "restarting"))
"""States of a container that has its devices; in all others it is only a record."""


class DockerError(Exception):
    """The daemon could not be asked; the message can be read alone, *fix* says what to do."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


@dataclasses.dataclass(frozen=True)
class Version:
    """Who answered."""

    version: str
    api_version: str


@dataclasses.dataclass(frozen=True)
class Image:
    """An image of this host.

    *id* is the digest of the image's configuration, and so the same wherever the image is the same, also where it was
    loaded from an archive and has no digest of a registry. Empty when the daemon did not say.
    """

    id: str
    labels: t.Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Container:
    """A container of this host. Devices and privileges are only known of one that holds them."""

    id: str
    name: str
    labels: t.Mapping[str, str]
    state: str
    privileged: bool = False
    devices: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        """Whether it has processes, and so its devices and ports."""
        return self.state in HELD_STATES


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket. One connection for each question, so that none is ever found closed."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Docker:
    """The daemon behind one socket."""

    def __init__(self, path: str = SOCKET, timeout: float = TIMEOUT) -> None:
        self.path = path
        self._timeout = timeout

    def ping(self) -> None:
        """Make sure that it is a docker daemon that answers."""
        status, body = self._request("/_ping")
        if (status, body.strip()) != (200, b"OK"):
            raise self._strange("/_ping", status, body)

    def version(self) -> Version:
        """Its version, and that of its interface."""
        found = self._mapping("/version")
        return Version(str(found.get("Version", "?")), str(found.get("ApiVersion", "?")))

    def root_folder(self) -> str:
        """Where it keeps its images."""
        return str(self._mapping("/info").get("DockerRootDir") or "/var/lib/docker")

    def image(self, name: str) -> Image | None:
        """An image, asked for by repository and tag, digest, or id; None when it is not here."""
        found = self._get(f"/images/{urllib.parse.quote(name, safe='/:@')}/json")
        if not isinstance(found, dict):
            return None if found is None else Image("", {})
        config = found.get("Config")
        labels = config.get("Labels") if isinstance(config, dict) else None
        return Image(str(found.get("Id") or ""), labels if isinstance(labels, dict) else {})

    def containers(self) -> list[Container]:
        """All containers, also those that do not run."""
        listed = self._get("/containers/json?all=1")
        entries = listed if isinstance(listed, list) else []
        found = (self._container(entry) for entry in entries if isinstance(entry, dict))
        return sorted((one for one in found if one is not None), key=lambda one: one.name)

    def _container(self, listed: t.Mapping[str, t.Any]) -> Container | None:
        one = build_container(listed, {})
        if not one.held:
            return one
        inspected = self._get(f"/containers/{urllib.parse.quote(one.id)}/json")
        if inspected is None:
            return None  # it went away between the two questions
        return build_container(listed, inspected)

    # -- questions -----------------------------------------------------------------------------------------------------

    def _mapping(self, place: str) -> dict[str, t.Any]:
        found = self._get(place)
        return found if isinstance(found, dict) else {}

    def _get(self, place: str) -> t.Any:
        """What it answers to one question; None when it does not know what was asked for."""
        status, body = self._request(place)
        if status == 404:
            return None
        if status != 200:
            raise self._strange(place, status, body)
        try:
            return json.loads(body)
        except ValueError as error:
            raise self._strange(place, status, body) from error

    def _request(self, place: str) -> tuple[int, bytes]:
        connection = _Connection(self.path, self._timeout)
        try:
            connection.request("GET", place, headers={"Connection": "close"})
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def _unreachable(self, error: Exception) -> DockerError:
        start = "start it and see why it had ended: systemctl start docker; journalctl -u docker"
        if isinstance(error, PermissionError):
            return DockerError(
                f"user {_user()} may not use the docker daemon: {self.path}: permission denied",
                "let Ansible become root (ansible_become: true), or put that user into the group docker",
            )
        if isinstance(error, FileNotFoundError):
            return DockerError(
                f"the docker daemon is not installed or does not run: {self.path} does not exist",
                "install docker, or start it: systemctl start docker; journalctl -u docker",
            )
        if isinstance(error, ConnectionRefusedError):
            return DockerError(f"the docker daemon is down: nobody listens on {self.path}", start)
        if isinstance(error, socket.timeout):
            return DockerError(
                f"the docker daemon does not answer: nothing came from {self.path} within {self._timeout:.0f} s",
                "see what it hangs on, or restart it: journalctl -u docker; systemctl restart docker",
            )
        words = str(error) or type(error).__name__
        return DockerError(f"the docker daemon broke off: {self.path}: {words}", start)

    def _strange(self, place: str, status: int, body: bytes) -> DockerError:
        return DockerError(
            f"the docker daemon failed: {self.path} answered HTTP {status} to {place}: {_message(body)}",
            "see its log: journalctl -u docker",
        )


def build_container(listed: t.Mapping[str, t.Any], inspected: t.Mapping[str, t.Any]) -> Container:
    """A container out of its entry in the list and what inspecting it says."""
    # A container also has the names that others link to it by: /other/alias.
    names = sorted((str(name).lstrip("/") for name in listed.get("Names") or ()), key=lambda name: name.count("/"))
    settings = inspected.get("HostConfig") or {}
    return Container(
        id=str(listed.get("Id", "")),
        name=names[0] if names else str(listed.get("Id", ""))[:12],
        labels={str(name): str(value) for name, value in (listed.get("Labels") or {}).items()},
        state=str(listed.get("State", "")),
        privileged=bool(settings.get("Privileged")),
        devices=tuple(str(device.get("PathOnHost", "")) for device in settings.get("Devices") or ()),
    )


def _message(body: bytes) -> str:
    """What the daemon said, in one line of bounded length."""
    text = body.decode("utf-8", "replace")
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if isinstance(said, dict) and "message" in said:
        text = str(said["message"])
    return " ".join(text.split())[:200] or "nothing"


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What is found wrong with docker on a host."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.ascend.pd_serving.plugins.module_utils import docker_check
from ansible_collections.ascend.pd_serving.plugins.module_utils.docker_socket import Container

IMAGE = "quay.io/ascend/vllm-ascend:v0.23.0-a3"
OURS = ["pd-demo-decode", "pd-demo-proxy"]


def container(name: str, chips: list[int] | None = None, cluster: str | None = None, **more: Any) -> Container:
    labels = {} if cluster is None else {"pd_serving.cluster": cluster}
    devices = tuple(f"/dev/davinci{chip}" for chip in chips or ())
    return Container(**{"id": name, "name": name, "labels": labels, "state": "running", "devices": devices, **more})


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What an import of requests runs."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "requests.py"


def test_requests_is_there(library: Path) -> None:
    library.write_text("")
    assert docker_check.check_requests() == []


def test_requests_is_missing_and_there_are_three_ways_out(library: Path) -> None:
    library.write_text("raise ModuleNotFoundError(\"No module named 'requests'\")")
    (found,) = docker_check.check_requests()
    assert (found["check"], found["severity"], found["variable"]) == ("requests", "error", "host_requests_package")
    assert found["message"].startswith(f"{sys.executable} cannot import the Python library requests, which ")
    assert "ModuleNotFoundError" in found["message"]
    for way in ("package python3-requests", "dnf install ./FILE.rpm", "set host_requests_package"):
        assert way in found["fix"]


def test_a_broken_requests_is_no_traceback(library: Path) -> None:
    library.write_text("raise AttributeError('half installed')\n")
    (found,) = docker_check.check_requests()
    assert "(AttributeError: half installed)" in found["message"]


@pytest.mark.parametrize(
    ("does", "why"), [("import os; os._exit(3)", "exit code 3"), ("import time; time.sleep(30)", "timed out after")]
)
def test_a_requests_that_ends_or_hangs(library: Path, monkeypatch: pytest.MonkeyPatch, does: str, why: str) -> None:
    monkeypatch.setattr(docker_check, "IMPORT_PATIENCE", 3.0)
    library.write_text(does)
    (found,) = docker_check.check_requests()
    assert why in found["message"]


# -- containers --------------------------------------------------------------------------------------------------------


def test_chips_of_another_container() -> None:
    """DEV-03: DEV-03: it has chips 4-7, the plan wants 0-15."""
    other = container("other", [4, 5, 6, 7])
    (found,) = docker_check.check_chips("demo", [other], OURS, range(16))
    assert (found["check"], found["severity"], found["variable"]) == ("chip", "error", "pd_chips")
    assert (found["value"], found["message"]) == ([4, 5, 6, 7], "chips 4, 5, 6, 7 are held by container other")
    assert "docker stop other" in found["fix"]
    assert docker_check.check_chips("demo", [other], OURS, [0, 1, 2, 3]) == []
    assert docker_check.check_chips("demo", [container("other", [4], state="exited")], OURS, range(16)) == []


@pytest.mark.parametrize(
    ("one", "message", "severity"),
    [
        (container("pd-demo-decode", [0], "demo"), None, None),
        (container("pd-demo-decode", [0]), None, None),  # its name is what is wrong
        (container("pd-x-decode", [0], "x"), "chip 0 is held by container pd-x-decode of cluster x", "error"),
        (
            container("pd-demo-old", [0], "demo"),
            "chip 0 is held by container pd-demo-old of this cluster, which the plan no longer has",
            "error",
        ),
        (container("pd-demo-old", privileged=True, cluster="demo"), None, None),
        (container("big", privileged=True), "container big is privileged, so it can use every chip", "warning"),
        (container("big", [0], privileged=True), "chip 0 is held by container big", "error"),
        (container("big", privileged=True, state="exited"), None, None),
        (container("small", state="paused", chips=[1]), "chip 1 is held by container small", "error"),
        (container("web"), None, None),
    ],
)
def test_whose_chips_they_are(one: Container, message: str | None, severity: str | None) -> None:
    found = docker_check.check_chips("demo", [one], OURS, [0, 1])
    assert [each["severity"] for each in found] == ([] if severity is None else [severity])
    assert all(each["message"].startswith(message) for each in found)
    assert docker_check.check_chips("demo", [one], OURS, []) == []


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        (None, "was not made by this product (no label pd_serving.cluster)"),
        ("other", "belongs to cluster other"),
    ],
)
def test_a_name_that_somebody_else_has_taken(cluster: str | None, words: str) -> None:
    one = container("pd-demo-decode", cluster=cluster, state="exited")
    (found,) = docker_check.check_names("demo", [one, container("web")], OURS)
    assert found["message"] == f"container pd-demo-decode (exited) has a name that this cluster needs, and {words}"
    assert (found["check"], found["severity"], found["value"]) == ("container", "error", "pd-demo-decode")
    assert docker_check.check_names("demo", [container("pd-demo-decode", cluster="demo")], OURS) == []


# -- archives ----------------------------------------------------------------------------------------------------------


def write_archive(path: Path, *, tags: list[str] | None = None, layers: int = 2, manifest: bytes | None = None) -> Path:
    names = [f"blobs/{number}" for number in range(layers)]
    if manifest is None:
        manifest = json.dumps([{"Config": "config.json", "RepoTags": tags or [IMAGE], "Layers": names}]).encode()
    members = {**dict.fromkeys(names, b"x" * 3000), "config.json": b"{}", "manifest.json": manifest}
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def trouble(path: Path, image: str = IMAGE) -> str | None:
    return docker_check.archive_trouble(str(path), image)


def test_an_archive_that_fits(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.tar", tags=["other:1", IMAGE])
    assert trouble(path) is None
    assert trouble(path, "docker.io/library/other:1") is None
    assert trouble(path, "quay.io/ascend/vllm-ascend@sha256:" + "a" * 64) is None
    assert trouble(path, "other") == f"holds other:1, {IMAGE} instead"
    packed = tmp_path / "a.tar.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert trouble(packed, "whatever:1") is None


@pytest.mark.parametrize("size", [600, 4000, 9000])
def test_an_archive_that_is_cut_off(tmp_path: Path, size: int) -> None:
    path = write_archive(tmp_path / "a.tar")
    os.truncate(path, size)
    assert "cut off" in str(trouble(path))


def test_an_archive_that_is_cut_off_between_two_of_its_files(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.tar")
    with tarfile.open(path) as archive:
        place = archive.getmember("manifest.json").offset
    os.truncate(path, place)
    assert trouble(path) == "is no archive of an image, or is cut off: there is no manifest.json in it"


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (b"{", "is no archive of an image: its manifest.json does not list any"),
        (b"[1]", "is no archive of an image: its manifest.json does not list any"),
        (b'[{"Config":"x"}]', "is no archive of an image: its manifest.json does not list any"),
        (b'[{"Config":"x","RepoTags":null,"Layers":[]}]', "is damaged or cut off: x is not in it"),
        (b'[{"Config":"config.json","RepoTags":null,"Layers":[]}]', "holds an image without a name instead"),
        (b"[]", "holds an image without a name instead"),
    ],
)
def test_an_archive_with_an_odd_list(tmp_path: Path, manifest: bytes, words: str) -> None:
    assert trouble(write_archive(tmp_path / "a.tar", manifest=manifest)) == words


@pytest.mark.parametrize("content", [b"", b"<html>404</html>" * 100])
def test_a_file_that_is_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(content)
    assert str(trouble(path)).startswith("is no tar archive (")


# -- the image ---------------------------------------------------------------------------------------------------------


class Docker:
    """As much of a daemon as an archive needs."""

    def __init__(self, root_folder: str = "/") -> None:
        self.root_folder = lambda: root_folder


def check(root: Path, archive: str, docker: Docker | None = None) -> list[dict[str, Any]]:
    return docker_check.check_image(docker or Docker(), str(root), IMAGE, archive)  # type: ignore[arg-type]


def test_an_image_that_will_be_pulled_is_not_judged(tmp_path: Path) -> None:
    assert check(tmp_path, "") == []


def test_an_archive_that_is_not_there_or_not_readable(tmp_path: Path) -> None:
    (found,) = check(tmp_path, "/none.tar")
    assert found["message"] == f"image {IMAGE} is not on this host, and its archive /none.tar does not exist"
    assert (found["check"], found["variable"], found["value"]) == ("image", "image_archive", "/none.tar")
    (tmp_path / "folder").mkdir()
    (found,) = check(tmp_path, "/folder")
    assert found["message"].endswith("its archive /folder cannot be read: Is a directory")


def test_an_archive_that_fits_onto_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(tmp_path / "a.tar")
    assert check(tmp_path, "/a.tar") == []
    asked = []

    def statvfs(folder: str) -> Any:
        asked.append(folder)
        return SimpleNamespace(f_bavail=2, f_frsize=4096)

    monkeypatch.setattr(docker_check.os, "statvfs", statvfs)
    (found,) = check(tmp_path, "/a.tar", Docker("/data/docker"))
    assert asked == [f"{tmp_path}/data/docker"]
    assert (found["check"], found["severity"]) == ("space", "error")
    assert found["message"].startswith(
        f"the image does not fit: 0.0 MB are free in {tmp_path}/data/docker, its archive"
    )


def test_room_that_cannot_be_told_is_a_warning(tmp_path: Path) -> None:
    write_archive(tmp_path / "a.tar")
    (found,) = check(tmp_path, "/a.tar", Docker("/none"))
    assert (found["check"], found["severity"]) == ("space", "warning")


def test_sizes_for_people() -> None:
    assert docker_check._size(12_345_678_901) == "12.3 GB"
    assert docker_check._size(5_600_000) == "5.6 MB"


@pytest.mark.parametrize(
    ("image", "full"),
    [
        ("ubuntu", "ubuntu:latest"),
        ("docker.io/library/ubuntu:22.04", "ubuntu:22.04"),
        ("docker.io/ascend/x", "ascend/x:latest"),
        ("host:5000/x", "host:5000/x:latest"),
        ("host:5000/x:1", "host:5000/x:1"),
    ],
)
def test_names_of_images(image: str, full: str) -> None:
    assert docker_check.full_name(image) == full

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Module mooncake: the real wheel, a source tree with the same steps, and containers by a recording stand-in."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.ascend.pd_serving.plugins.modules import mooncake

SCRIPT = Path(__file__).resolve().parents[4] / "roles/mooncake/files/install_mooncake.sh"
FETCHED = Path(sys.prefix) / "share/pd_serving/mooncake/0.3.11.post1"

# What upstream's has, as far as the steps go: it records how it was called and wants a Go of its own.
DEPENDENCIES = """#!/bin/bash
GOVER=1.23.8
echo "dependencies.sh $*" >>"$RECORD"
{knows}
if [ "$(go version 2>/dev/null | awk '{{print $3}}')" = "go$GOVER" ]; then
    echo "go skipped" >>"$RECORD"
else
    echo "go from https://go.dev/dl/go$GOVER.tar.gz" >>"$RECORD"
fi
"""
CMAKELISTS = """cmake_minimum_required(VERSION 3.10)
project(standin NONE)
if(NOT USE_ASCEND_DIRECT)
  message(FATAL_ERROR "without USE_ASCEND_DIRECT there is no Ascend transport")
endif()
install(DIRECTORY mooncake DESTINATION /usr/local/lib64/python3.99/site-packages)
install(FILES libmooncake.so DESTINATION lib)
"""


def call(**args: Any) -> dict[str, Any]:
    out = io.StringIO()
    with patch_module_args(args), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        mooncake.main()
    result: dict[str, Any] = json.loads(out.getvalue())
    return result


class Place:
    """A host without a container engine: its commands record, its Python is this one."""

    def __init__(self, folder: Path, managers: tuple[str, ...]) -> None:
        self.folder = folder
        self.record = folder / "record"
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.record.touch()
        for name in managers:
            self.command(name, f'echo "{name} $*" >>"$RECORD"')
        needed = (
            "bash",
            "sh",
            "sed",
            "grep",
            "head",
            "awk",
            "tar",
            "find",
            "dirname",
            "mkdir",
            "rm",
            "ln",
            "printf",
            "chmod",
        )
        for name in (*needed, "cmake", "make", "cat", "uname", "gzip"):
            found = shutil.which(name)
            if found:
                (self.bin / name).symlink_to(found)
        self.command("python3", f'exec "{sys.executable}" "$@"')
        self.prefix = folder / "prefix"

    def command(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def run(self, **more: Any) -> dict[str, Any]:
        args: dict[str, Any] = {
            "runtime": "process",
            "prefix": str(self.prefix),
            "script": str(SCRIPT),
            "work": str(self.folder / "work"),
            "state": str(self.folder / "state"),
            "environment": {
                "PATH": str(self.bin),
                "RECORD": str(self.record),
                "LD_LIBRARY_PATH": str(FETCHED / "absent"),
            },
        }
        return call(**{**args, **more})

    def steps(self) -> list[str]:
        return self.record.read_text().splitlines()


def source_tree(folder: Path, knows: str = "") -> Path:
    """A tarball whose top folder has another name than the tag."""
    tree = folder / "Mooncake-1234abc"
    (tree / "mooncake").mkdir(parents=True)
    (tree / "dependencies.sh").write_text(DEPENDENCIES.format(knows=knows))
    (tree / "CMakeLists.txt").write_text(CMAKELISTS)
    (tree / "mooncake/__init__.py").touch()
    (tree / "mooncake/engine.py").write_text("class TransferEngine: pass\n")
    (tree / "libmooncake.so").touch()
    archive = folder / "mooncake.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tree, tree.name)
    return archive


def source(archive: Path, **more: Any) -> dict[str, Any]:
    return {"method": "source", "version": "0.3.9", "archive": str(archive), **more}


@pytest.fixture(autouse=True)
def _cmake() -> None:
    assert shutil.which("cmake") and shutil.which("make"), "install cmake and make"


def test_source_build_of_a_stand_in_tree(tmp_path: Path) -> None:
    place = Place(tmp_path, ("apt-get",))
    archive = source_tree(tmp_path)
    first = place.run(**source(archive, jobs=2))
    assert first.get("changed"), first
    assert place.steps() == [
        "apt-get update",
        "apt-get remove -y openmpi-bin libopenmpi-dev",
        "apt-get install -y mpich libmpich-dev",
        "dependencies.sh -y",
        "go skipped",
    ]
    package = place.prefix / "usr/local/lib64/python3.99/site-packages/mooncake"
    assert first["mooncake"]["error"] is None
    assert Path(first["mooncake"]["package"]).resolve() == package
    assert (place.prefix / "lib/libmooncake.so").exists()
    assert first["environment"] == {
        "PYTHONPATH": f"{place.prefix}/site-packages",
        "LD_LIBRARY_PATH": f"{place.prefix}/site-packages/mooncake:{place.prefix}/lib",
    }
    assert not (tmp_path / "work").exists(), "a build leaves nothing behind"

    again = place.run(**source(archive, jobs=4))
    assert not again["changed"] and len(place.steps()) == 5, "the number of jobs makes no other Mooncake"
    other = place.run(**source(archive, cmake_args=["-DX=1"]))
    assert other["changed"] and len(place.steps()) == 10


def test_go_from_a_mirror_where_it_is_asked_for(tmp_path: Path) -> None:
    place = Place(tmp_path, ("apt-get",))
    mirror = "https://golang.google.cn/dl/"
    assert place.run(**source(source_tree(tmp_path), install_go=True, go_mirror=mirror))["changed"]
    assert place.steps()[-1] == f"go from {mirror}go1.23.8.tar.gz"


def test_openeuler(tmp_path: Path) -> None:
    place = Place(tmp_path, ("dnf",))
    assert place.run(**source(source_tree(tmp_path, "# yum")))["changed"]
    assert place.steps()[:2] == ["dnf remove -y openmpi openmpi-devel", "dnf install -y mpich mpich-devel"]


def test_openeuler_with_a_script_that_knows_apt_only(tmp_path: Path) -> None:
    place = Place(tmp_path, ("dnf",))
    result = place.run(**source(source_tree(tmp_path)))
    assert result["failed"] and "knows apt-get only" in result["msg"]


def test_no_package_manager(tmp_path: Path) -> None:
    result = Place(tmp_path, ()).run(**source(source_tree(tmp_path)))
    assert result["failed"] and "neither apt-get nor dnf nor yum" in result["msg"]


def test_a_build_that_does_not_load_fails(tmp_path: Path) -> None:
    place = Place(tmp_path, ("apt-get",))
    archive = source_tree(tmp_path)
    with tarfile.open(archive, "w:gz") as tar:
        (tmp_path / "Mooncake-1234abc/mooncake/engine.py").write_text("raise ImportError('libascend_hal.so')\n")
        tar.add(tmp_path / "Mooncake-1234abc", "x")
    result = place.run(**source(archive))
    assert result["failed"] and "does not load" in result["msg"] and "libascend_hal.so" in result["msg"]


def test_an_archive_that_is_not_there(tmp_path: Path) -> None:
    result = Place(tmp_path, ("apt-get",)).run(**source(tmp_path / "none.tar.gz"))
    assert result["failed"] and "none.tar.gz cannot be read" in result["msg"]


def test_the_real_wheel_is_installed_and_loads(tmp_path: Path) -> None:
    """From the package index, by pip; the driver's libraries, absent here, are the rehearsal's stand-ins."""
    place = Place(tmp_path, ())
    place.command("python3", f'exec "{sys.executable}" "$@"')
    result = place.run(method="wheel", version="0.3.11.post1")
    assert result.get("changed"), result
    assert result["mooncake"]["version"] == "0.3.11.post1"
    assert result["mooncake"]["error"] is None
    assert os.access(place.prefix / "site-packages/mooncake/mooncake_master", os.R_OK)
    assert not place.run(method="wheel", version="0.3.11.post1")["changed"]


def test_bundled_is_asked_once_and_held_against_the_tables(tmp_path: Path, warned: list[str]) -> None:
    place = Place(tmp_path, ())
    site = tmp_path / "site"
    (site / "mooncake").mkdir(parents=True)
    (site / "mooncake/__init__.py").touch()
    (site / "mooncake/engine.py").write_text("class TransferEngine: pass\n")
    info = site / "mooncake_transfer_engine_npu-0.3.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mooncake-transfer-engine-npu\nVersion: 0.3.9\n")
    place.command("python3", f'echo asked >>"$RECORD"; PYTHONPATH={site} exec "{sys.executable}" "$@"')
    result = place.run(expected="0.3.9")
    assert not result["changed"] and result["mooncake"]["version"] == "0.3.9"
    asked = len(place.steps())
    assert warned == []
    place.run(expected="0.3.11.post1")
    (text,) = warned
    assert "0.3.9" in text and "0.3.11.post1 was expected" in text
    # Who python3 is was looked at again; Mooncake was not.
    assert len(place.steps()) == asked + 1


def test_nothing_bundled(tmp_path: Path) -> None:
    result = Place(tmp_path, ()).run()
    assert result["failed"] and "does not load" in result["msg"] and "No module named" in result["msg"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"method": "wheel", "version": "1", "prefix": ""}, "absolute path"),
        ({"method": "wheel", "version": "1", "prefix": "/"}, "absolute path"),
        ({"method": "wheel", "prefix": "/x"}, "a version"),
        ({"method": "source", "version": "1", "prefix": "/x", "jobs": 0}, "1 or more"),
        ({"method": "source", "version": "1", "target": "image"}, "needs runtime docker"),
        ({"method": "source", "version": "1", "target": "image", "runtime": "docker", "image": "a"}, "base image"),
        ({"runtime": "docker"}, "image is needed"),
    ],
)
def test_options_that_do_not_fit(args: dict[str, Any], says: str) -> None:
    result = call(**{"runtime": "process", **args})
    assert result["failed"] and says in result["msg"]


DOCKER = """
import json, os, sys
folder, words = os.environ["FAKE_DOCKER"], sys.argv[1:]
with open(folder + "/calls", "a") as stream:
    stream.write(json.dumps(words) + "\\n")
images = json.load(open(folder + "/images"))
def probe():
    print("PD_PROBE " + json.dumps({"python": "3.12", "version": "0.3.9", "package": "/p", "error": None}))
if words[:2] == ["image", "inspect"]:
    image = images.get(words[-1])
    if image is None:
        sys.exit(1)
    form = words[3]
    print(image["id"] if form == "{{.Id}}" else json.dumps(image["config"]) if "json" in form else image["label"])
elif words[0] == "run" and "probe" in words:
    probe()
elif words[0] == "run":
    sys.exit(int(os.environ.get("FAKE_EXIT", "0")))
elif words[0] == "commit":
    label = next(word.split("=", 1)[1] for word in words if word.startswith("LABEL"))
    images[words[-1]] = {"id": "sha256:made", "config": {}, "label": label}
    json.dump(images, open(folder + "/images", "w"))
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A docker command that records; it has one image, with a library path of its own."""
    config = {"Env": ["PATH=/bin", "LD_LIBRARY_PATH=/cann/lib"], "Entrypoint": None, "Cmd": ["/bin/bash"]}
    (tmp_path / "images").write_text(json.dumps({"base:v1": {"id": "sha256:b", "config": config, "label": ""}}))
    (tmp_path / "docker.py").write_text(DOCKER)
    command = tmp_path / "docker"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path}/docker.py" "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("FAKE_DOCKER", str(tmp_path))
    return tmp_path


def in_docker(folder: Path, **more: Any) -> dict[str, Any]:
    args: dict[str, Any] = {"image": "base:v1", "docker_command": str(folder / "docker"), "script": str(SCRIPT)}
    return call(**{**args, "work": str(folder / "work"), "state": str(folder / "state"), **more})


def calls(folder: Path, verb: str) -> list[list[str]]:
    lines = (folder / "calls").read_text().splitlines()
    return [words for words in map(json.loads, lines) if words[0] == verb]


def test_a_derived_image(docker: Path) -> None:
    """It keeps the base's command, finds the libraries by the image's Python, and is made once."""
    args = {"method": "wheel", "version": "0.3.9", "target": "image", "base_image": "base:v1", "image": "mine:v1"}
    assert in_docker(docker, **args)["changed"]
    (commit,) = calls(docker, "commit")
    assert commit[-1] == "mine:v1"
    path = "/usr/local/lib64/python3.12/site-packages/mooncake:/usr/local/lib:/usr/local/lib64:/cann/lib"
    assert f"ENV LD_LIBRARY_PATH={path}" in commit
    assert 'CMD ["/bin/bash"]' in commit and 'ENTRYPOINT [""]' in commit, "not the container's, which ran the installer"
    run = next(words for words in calls(docker, "run") if "--name" in words)
    assert "--env" not in run, "it would be the image's"
    assert not in_docker(docker, **args)["changed"]
    assert len(calls(docker, "commit")) == 1
    assert calls(docker, "rm")[-1][:2] == ["rm", "--force"], "the container goes away"


def test_a_prefix_is_filled_by_a_container_of_the_image(docker: Path) -> None:
    wheel = docker / "some.whl"
    wheel.write_text("x")
    prefix = docker / "prefix"
    result = in_docker(docker, method="wheel", wheel=str(wheel), prefix=str(prefix))
    assert result["changed"]
    run = next(words for words in calls(docker, "run") if "--name" in words)
    assert f"{prefix}:{prefix}" in run and f"{wheel}:{wheel}:ro" in run
    assert "PD_METHOD=wheel" in run and f"PD_PREFIX={prefix}" in run
    probe = next(words for words in calls(docker, "run") if "probe" in words)
    assert f"{prefix}:{prefix}:ro" in probe
    assert any(f'PYTHONPATH="{prefix}/site-packages' in word for word in probe)


def test_a_failed_installation_in_a_container(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_EXIT", "3")
    result = in_docker(docker, method="wheel", version="1", prefix=str(docker / "prefix"))
    assert result["failed"] and "base:v1 ended with code 3" in result["msg"]
    assert calls(docker, "rm")


def test_an_image_that_is_not_there(docker: Path) -> None:
    result = in_docker(docker, image="other:v1")
    assert result["failed"] and "other:v1 is not on this host" in result["msg"]


def test_check_mode_installs_nothing(docker: Path) -> None:
    result = in_docker(docker, method="wheel", version="1", prefix=str(docker / "prefix"), _ansible_check_mode=True)
    assert result["changed"] and not (docker / "prefix").exists()


def test_no_docker_command() -> None:
    result = call(image="a", docker_command="/no/such/docker")
    assert result["failed"] and "no command /no/such/docker" in result["msg"]

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Mooncake with a real container engine: another one below a prefix, and in a derived image; the KV pool's master."""

from __future__ import annotations

import ensurepip
import pathlib
import shlex
import typing as t
import zipfile

import pytest

from .conftest import IMAGE, Cluster, Deployed, Lab, inventory

VERSION = "0.3.12"
# The lab's image has neither pip nor a master; the real one has.
BASE = "example/vllm-ascend:v0.23.0-a3"
DERIVED = f"example/vllm-ascend-mooncake-{VERSION}:v0.23.0-a3"
PREFIX = f"/opt/mooncake/{VERSION}"
HOSTS = ("p1", "d1", "d2")
POOL = "pd-pd-kv-pool"
# What a run needs of the master: it takes connections. The real one is started by rehearsals.
MASTER = """#!/usr/bin/env python3
import socket, sys
options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:])
server = socket.create_server((options["rpc_address"], int(options["port"])))
print("master serves", flush=True)
while True:
    server.accept()[0].close()
"""


def write_wheel(folder: pathlib.Path) -> pathlib.Path:
    """A wheel of the published one's name, with what engines import of it."""
    about = f"mooncake_transfer_engine_npu-{VERSION}.dist-info"
    files = {
        "mooncake/__init__.py": "",
        "mooncake/engine.py": "class TransferEngine:\n    pass\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: mooncake-transfer-engine-npu\nVersion: {VERSION}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    path = folder / f"mooncake_transfer_engine_npu-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
    return path


@pytest.fixture(scope="module")
def cluster(
    lab: Lab, deployed: Deployed, tmp_path_factory: pytest.TempPathFactory
) -> t.Iterator[tuple[Cluster, dict[str, t.Any]]]:
    """The cluster of all tests, and what makes its runs install the wheel. Afterwards it is as it was."""
    folder = tmp_path_factory.mktemp("mooncake")
    (pip,) = (pathlib.Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    lab.put(pip, "p1", "/tmp/pip.whl")
    (folder / "mooncake_master").write_text(MASTER, encoding="utf-8")
    lab.put(folder / "mooncake_master", "p1", "/tmp/mooncake_master")
    add = (
        "python3 -m zipfile -e /in/pip.whl /usr/lib/python3/dist-packages; "
        "cp /in/mooncake_master /usr/local/bin; chmod 0755 /usr/local/bin/mooncake_master"
    )
    lab.sh(
        "p1",
        f"docker run --name base -v /tmp:/in:ro {IMAGE} sh -ec '{add}'; docker commit base {BASE}; docker rm base; "
        f"docker save -o /tmp/base.tar {BASE}; chmod a+r /tmp/base.tar",
    )
    # The same image everywhere, as from a registry.
    lab.get("p1", "/tmp/base.tar", folder / "base.tar")
    for host in HOSTS[1:]:
        lab.put(folder / "base.tar", host, "/tmp/base.tar")
        lab.sh(host, "docker load -q -i /tmp/base.tar; rm /tmp/base.tar")
    wheel = write_wheel(folder)
    more = {"mooncake_method": "wheel", "mooncake_controller_file": str(wheel), "pd_mooncake_version": VERSION}
    yield Cluster(lab, folder / "cluster", inventory(lab, image_archive="")), more
    deployed.cluster.site()
    assert lab.complete(deployed.url)
    for host in HOSTS:
        lab.sh(host, f"docker rmi {BASE}; docker rmi -f {DERIVED}; rm -rf /opt/mooncake")


SCRIPT = """
import glob, subprocess
for folder in glob.glob("/proc/[0-9]*"):
    words = open(folder + "/cmdline").read().split(chr(0))
    if "serve" in words:
        env = dict(entry.split("=", 1) for entry in open(folder + "/environ").read().split(chr(0)) if entry)
        what = "import importlib.metadata as m, mooncake.engine as e; print(m.version('mooncake-transfer-engine-npu'), e.__file__)"
        print(subprocess.check_output(["python3", "-c", what], env=env, text=True), end="")
"""


def loaded(lab: Lab, host: str) -> set[str]:
    """Which Mooncake the engines of a host would load, and from where: in their environment."""
    (engine,) = (name for name in lab.containers(host) if not name.endswith("-proxy"))
    return set(lab.sh(host, f"docker exec {engine} python3 -c {shlex.quote(SCRIPT)}").splitlines())


def test_below_a_prefix_that_engines_mount(
    lab: Lab, deployed: Deployed, cluster: tuple[Cluster, dict[str, t.Any]]
) -> None:
    installing, wheel = cluster
    more = {**wheel, "pd_image": BASE, "pd_mooncake_prefix": PREFIX}
    run = installing.site(**more)
    assert f"Mooncake {VERSION} (wheel" in run.stdout
    place = f"{PREFIX}/site-packages/mooncake/engine.py"
    assert loaded(lab, "p1") == loaded(lab, "d2") == {f"{VERSION} {place}"}
    assert lab.complete(deployed.url)
    assert installing.site(**more).changed() == {}


def test_in_a_derived_image(lab: Lab, deployed: Deployed, cluster: tuple[Cluster, dict[str, t.Any]]) -> None:
    installing, wheel = cluster
    more = {**wheel, "mooncake_target": "image", "mooncake_base_image": BASE, "pd_image": DERIVED}
    run = installing.site(**more)
    assert f"Mooncake {VERSION} (wheel" in run.stdout
    for host in ("p1", "d1"):
        ((version, place),) = (line.split() for line in loaded(lab, host))
        assert (version, place.startswith("/usr/")) == (VERSION, True)
    assert lab.complete(deployed.url)
    before = lab.ids(*HOSTS)
    assert installing.site(**more).changed() == {}
    assert lab.ids(*HOSTS) == before
    (engine,) = lab.containers("d1").values()
    assert engine["Name"] == "/pd-pd-decode", "what it was installed in is gone"
    assert not [entry for entry in engine["Config"]["Env"] if entry.startswith(("PD_", "PIP_"))]


def test_the_kv_pools_master(lab: Lab, deployed: Deployed, cluster: tuple[Cluster, dict[str, t.Any]]) -> None:
    """It is up before engines; an image without it is said to be without it, and harms none that serve."""
    installing, _wheel = cluster
    pooled = inventory(lab, image_archive="", pd_kv_pool={"backend": "mooncake"}, pd_image=BASE)
    pooled["all"]["children"]["kv_pool"] = {"hosts": {"p1": {}}}
    one = Cluster(lab, installing.folder / "pooled", pooled)
    one.site()
    master = lab.containers("p1")[POOL]
    assert master["State"]["Running"] and master["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    assert "kv pool" in one.run("status.yml").stdout and lab.complete(deployed.url)
    assert one.site().changed() == {}
    before = lab.ids("d1", "d2")
    lab.sh("p1", f"docker rm -f {POOL}")
    repair = one.site()
    assert set(repair.changed()) == {"p1"} and lab.ids("d1", "d2") == before

    lab.sh("p1", f"docker rm -f {POOL}")
    refused = one.run("site.yml", pd_image=IMAGE)
    assert "its launcher refused to start it: process master: command mooncake_master not found" in refused.stdout
    assert refused.rc != 0 and lab.ids("d1", "d2") == before
    status = one.run("status.yml", pd_image=IMAGE)
    assert status.rc != 0 and "command mooncake_master not found" in status.failures()["p1"]
    lab.sh("p1", f"docker rm -f {POOL}")

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Engine images as archives for ``docker load``, written without a container engine and without a registry.

Two layers. The big one is Python and a few tools out of the hosts' root file system, and the packages that upstream's
proxies import. The small one is what the product meets in a real image: the command ``vllm`` (the simulator), upstream's
examples at their path, and the settings that the real image leaves in ``~/.bashrc`` only. Equal content has an equal id.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from pdlab.place import CHECKOUT, DIR, SIMULATORS, LabError, key, run, write

REPOSITORY = "quay.io/ascend/vllm-ascend"
# Tag -> release. Tags of one release are one image; another release is another image, for upgrades.
TAGS = {"v0.23.0-a3": "v0.23.0", "v0.23.0": "v0.23.0", "v0.24.0rc1-a3": "v0.24.0rc1"}
ARCHIVES = DIR / "images"

TOOLS = (
    *("base-files", "bash", "coreutils", "dash", "findutils", "grep", "hostname", "procps", "sed"),
    *("python3", "libjemalloc2"),
)
# Of what these depend on, only libraries and Python: nothing in an image is ever installed or configured.
NEEDED = re.compile(r"lib|python3|zlib|media-types")
UNUSED = re.compile(r"/usr/share/(doc|info|lintian|locale|man|bug)|/usr/lib/[^/]+/gconv|.*/(lib2to3|pydoc_data)/")
PACKAGES = ("fastapi", "httpx", "uvicorn")  # in the versions of requirements.txt

VLLM = '#!/bin/sh\nexec python3 -I -S /usr/local/lib/pd_serving/vllm_sim "$@"\n'
BASHRC = """\
export LD_PRELOAD=/usr/lib/{triplet}/libjemalloc.so.2:$LD_PRELOAD
export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/usr/local/lib
"""
# Of the Mooncake that these releases carry: what tells its version, and what has to load.
MOONCAKE = "mooncake_transfer_engine_npu-0.3.11.post1"
CONFIG = {
    "Env": [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        *("TASK_QUEUE_ENABLE=1", "OMP_NUM_THREADS=1"),
    ],
    "WorkingDir": "/workspace",
    "Cmd": ["/bin/bash"],
}
EPOCH = "2026-01-01T00:00:00Z"


def archives(root: Path) -> list[Path]:
    """One archive per tag, from the hosts' root file system; only what is not there yet is made."""
    base = _base_layer(root)
    done = []
    for tag, release in TAGS.items():
        content = key(Path(__file__), base.name, SIMULATORS / "vllm_sim", SIMULATORS / "standin", _examples(), tag)
        archive, stamp = ARCHIVES / f"vllm-ascend-{tag}.tar", DIR / "stamps" / f"{tag}.txt"
        if not (archive.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == content):
            stamp.unlink(missing_ok=True)
            _write_archive(archive, f"{REPOSITORY}:{tag}", [base.read_bytes(), _engine_layer(release)])
            write(stamp, content)
        done.append(archive)
    return done


def _examples() -> Path:
    """Upstream's examples, where set-up of the checkout has put them."""
    upstream = CHECKOUT / ".venv/share/pd_serving/upstream"
    found = sorted(upstream.glob("*/examples"))
    if not found:
        raise LabError(f"upstream's examples are not in {upstream}: make setup")
    return found[-1]


def _base_layer(root: Path) -> Path:
    requirements = CHECKOUT / "requirements.txt"
    layer = DIR / f"python-{key(Path(__file__), root.name, requirements)}.tar"
    if layer.exists():
        return layer
    with tempfile.TemporaryDirectory(dir=DIR) as folder:
        staging = Path(folder)
        write(staging / "files", "".join(f"{path}\n" for path in _files(root)))
        for name in ("bin", "lib", "lib64", "sbin"):  # links that the files' paths go through
            (staging / "usr" / name).mkdir(parents=True)
            (staging / name).symlink_to(f"usr/{name}")
        run("sh", "-c", 'tar -C "$1" --no-recursion -T "$2/files" -c | tar -C "$2" -x', "sh", root, staging)
        (staging / "files").unlink()
        _settle(staging, root)
        python = next(path.name for path in (staging / "usr/bin").glob("python3.*"))
        packages = staging / f"usr/local/lib/{python}/dist-packages"
        run(
            *(CHECKOUT / ".venv/bin/python", "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary=:all:"),
            *("--python-version", python.removeprefix("python"), "--constraint", requirements),
            *("--target", packages, *PACKAGES),
        )
        shutil.rmtree(packages / "bin")  # scripts that name the checkout's Python
        for record in packages.glob("*.dist-info/RECORD"):  # with their checksums
            record.unlink()
        # Compiled here once: a container's first process would pay seconds for it. By content, since times are levelled.
        compiled = (f"/usr/lib/{python}", f"/usr/local/lib/{python}")
        options = ("-q", "--invalidation-mode", "unchecked-hash")
        run("chroot", staging, "python3", "-m", "compileall", *options, *compiled, env={"PYTHONHASHSEED": "0"})
        part = layer.with_suffix(".part")
        part.write_bytes(_tar(staging))
        for old in DIR.glob("python-*.tar"):
            old.unlink()
        part.rename(layer)
    return layer


def _files(root: Path) -> list[str]:
    """The files of the tools and of the libraries they need, as the root file system's package database knows them."""
    database = f"--admindir={root}/var/lib/dpkg"
    form = "${Package}\t${Pre-Depends}, ${Depends}\n"
    depends = {}
    for line in run("dpkg-query", database, "--show", f"--showformat={form}").splitlines():
        name, _, words = line.partition("\t")
        depends[name] = re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9.+-]+)", words)
    wanted, todo = set(), list(TOOLS)
    while todo:
        name = todo.pop()
        if name in depends and name not in wanted:
            wanted.add(name)
            todo += filter(NEEDED.match, depends[name])
    found = run("dpkg-query", database, "--listfiles", *sorted(wanted)).splitlines()
    present = (path for path in found if path.startswith("/") and not UNUSED.match(path))
    return sorted({f".{path}" for path in present if os.path.lexists(f"{root}{path}")})


def _settle(staging: Path, root: Path) -> None:
    """What maintainer scripts would do."""
    for folder, mode in (("tmp", 0o1777), ("root", 0o700), ("workspace", 0o755), ("dev", 0o755), ("proc", 0o555)):
        (staging / folder).mkdir(exist_ok=True)
        (staging / folder).chmod(mode)
    (staging / "usr/bin/python").symlink_to("python3")
    write(staging / "etc/passwd", "root:x:0:0:root:/root:/bin/bash\n")
    write(staging / "etc/group", "root:x:0:\n")
    write(staging / "etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
    shutil.copytree(root / "usr/lib/locale/C.utf8", staging / "usr/lib/locale/C.utf8", dirs_exist_ok=True)


def _engine_layer(release: str) -> bytes:
    with tempfile.TemporaryDirectory(dir=DIR) as folder:
        staging = Path(folder)
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(SIMULATORS / "vllm_sim", staging / "usr/local/lib/pd_serving/vllm_sim", ignore=ignore)
        shutil.copytree(SIMULATORS / "standin", staging / "usr/lib/python3/dist-packages", ignore=ignore)
        packages = staging / "usr/lib/python3/dist-packages"
        name, _dash, version = MOONCAKE.partition("-")
        write(packages / f"{MOONCAKE}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        write(packages / "mooncake/__init__.py", "")
        write(packages / "mooncake/engine.py", "class TransferEngine:\n    pass\n")
        installed = ("mooncake/__init__.py", "mooncake/engine.py", f"{MOONCAKE}.dist-info/METADATA")
        # By this pip removes it, where role mooncake installs another one.
        write(packages / f"{MOONCAKE}.dist-info/RECORD", "".join(f"{path},,\n" for path in installed))
        shutil.copytree(_examples(), staging / "vllm-workspace/vllm-ascend/examples", ignore=ignore)
        write(staging / "usr/local/bin/vllm", VLLM, 0o755)
        write(staging / "vllm-workspace/RELEASE", f"{release}\n")
        write(staging / "root/.bashrc", BASHRC.format(triplet=f"{platform.machine()}-linux-gnu"))
        (staging / "root").chmod(0o700)
        return _tar(staging)


def _tar(folder: Path) -> bytes:
    """The folder as a layer: sorted, root's own, all of one time, so that equal content is equal."""
    folder.chmod(0o755)
    name = folder.with_name(f"{folder.name}.tar")
    options = ("--sort=name", "--owner=0", "--group=0", "--numeric-owner", f"--mtime={EPOCH}")
    run("tar", "-C", folder, *options, "--format=gnu", "-cf", name, ".")
    content = name.read_bytes()
    name.unlink()
    return content


def _write_archive(archive: Path, name: str, layers: list[bytes]) -> None:
    """What ``docker save`` would write: layers, their configuration and a manifest that names the image."""
    digests = [hashlib.sha256(layer).hexdigest() for layer in layers]
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    config = json.dumps(
        {
            **{"architecture": machine, "os": "linux", "created": EPOCH, "config": CONFIG},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
            "history": [{"created": EPOCH}] * len(layers),
        }
    ).encode()
    image_id = hashlib.sha256(config).hexdigest()
    members = {f"{digest}/layer.tar": layer for digest, layer in zip(digests, layers, strict=True)}
    manifest = [{"Config": f"{image_id}.json", "RepoTags": [name], "Layers": list(members)}]
    members |= {f"{image_id}.json": config, "manifest.json": json.dumps(manifest).encode()}
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_suffix(".part")
    with tarfile.open(part, "w") as tar:
        for path, content in members.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    part.rename(archive)
    print(f"labctl: {name} is sha256:{image_id}", file=sys.stderr, flush=True)

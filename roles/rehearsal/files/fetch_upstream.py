#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Fetch the example proxies and the launcher of vLLM-Ascend from its source distribution.

Usage: python fetch_upstream.py [--version 0.23.0.post1] [--allow-unpinned] DEST

The archive comes from the package index that pip is configured for. Nothing of it is built or executed: pip insists on
metadata, which would mean a build with gigabytes of requirements, so a stub build backend answers with name and
version. The archive must have the known SHA-256; only the wanted files leave it. DEST gets ``examples/...`` and
``SOURCE.json`` (name, version, sha256, files with their checksums); a complete DEST is left as it is.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "vllm-ascend"
DEFAULT_VERSION = "0.23.0.post1"
PINNED = {
    "0.23.0.post1": "a3b9f4a5dd7aa50c37e03d1f35937c4ae5aeacc49b734cac74d59ce5757738e1",
}
WANTED = (
    "examples/disaggregated_prefill_v1/load_balance_proxy*_server_example.py",
    "examples/external_online_dp/*",
)
LARGEST_FILE = 4 << 20
PIP_TIMEOUT = 600
# Found as setuptools.build_meta before the real one.
STUB_BACKEND = """
import os


def get_requires_for_build_wheel(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    name, version = os.environ["PD_SDIST_NAME"], os.environ["PD_SDIST_VERSION"]
    info = "{}-{}.dist-info".format(name.replace("-", "_"), version)
    os.makedirs(os.path.join(metadata_directory, info))
    with open(os.path.join(metadata_directory, info, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: {}\\nVersion: {}\\n".format(name, version))
    return info
"""


class FetchError(Exception):
    """Why nothing was fetched, in one line."""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def is_complete(dest: pathlib.Path, version: str) -> bool:
    """Whether DEST already holds this version with every file unchanged."""
    try:
        source = json.loads((dest / "SOURCE.json").read_text(encoding="utf-8"))
        if (source["name"], source["version"]) != (NAME, version) or not source["files"]:
            return False
        if PINNED.get(version, source["sha256"]) != source["sha256"]:
            return False
        return all(digest((dest / path).read_bytes()) == sha256 for path, sha256 in source["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # missing or damaged: fetched again


def download(version: str, folder: pathlib.Path) -> pathlib.Path:
    """The source archive, by plain pip and without building it."""
    backend = folder / "backend" / "setuptools"
    backend.mkdir(parents=True)
    (backend / "__init__.py").touch()
    (backend / "build_meta.py").write_text(STUB_BACKEND, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(backend.parent), "PD_SDIST_NAME": NAME, "PD_SDIST_VERSION": version}
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--retries", "2", "--no-deps", "--ignore-requires-python"]
    command += ["--no-build-isolation", "--no-binary", ":all:"]
    command += ["--dest", str(folder / "archive"), f"{NAME}=={version}"]
    try:
        result = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PIP_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise FetchError(f"pip did not finish within {PIP_TIMEOUT} seconds") from None
    if result.returncode:
        raise FetchError(f"pip cannot download {NAME}=={version}: {pip_reason(result.stderr)}")
    archives = list((folder / "archive").glob("*.tar.gz"))
    if len(archives) != 1:
        raise FetchError(f"pip downloaded {len(archives)} source archives of {NAME}=={version} instead of one")
    return archives[0]


def pip_reason(stderr: str) -> str:
    """The line of pip's output that tells what is wrong: without a network its last one only says "no match"."""
    lines = stderr.splitlines()
    if any("after connection broken by" in line for line in lines):
        return "the package index cannot be reached"
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    return errors[-1] if errors else "no reason given"


def check_pin(version: str, sha256: str, allow_unpinned: bool) -> None:
    pinned = PINNED.get(version)
    if pinned is None and not allow_unpinned:
        raise FetchError(f"no checksum is known for {NAME} {version} (give --allow-unpinned to take it anyway)")
    if pinned is not None and pinned != sha256:
        raise FetchError(f"the archive of {NAME} {version} has SHA-256 {sha256} instead of {pinned}")


def read_wanted(archive: pathlib.Path) -> dict[str, bytes]:
    """The wanted regular files by their path below the archive's one top folder."""
    found: dict[str, bytes] = {}
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            top, _, path = member.name.partition("/")
            parts = path.split("/")
            if not member.isfile() or not top or ".." in (top, *parts) or "" in parts:
                continue
            # fnmatch's * also matches a slash, so the depth is compared as well.
            if not any(fnmatch.fnmatchcase(path, wish) and len(parts) == wish.count("/") + 1 for wish in WANTED):
                continue
            if member.size > LARGEST_FILE:
                raise FetchError(f"{path} in the archive has {member.size} bytes, more than any example should have")
            stream = tar.extractfile(member)
            if stream is not None:
                found[path] = stream.read()
    for wish in WANTED:
        if not fnmatch.filter(found, wish):
            raise FetchError(f"the archive has no {wish}")
    return found


def write_atomically(path: pathlib.Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)


def fetch(version: str, dest: pathlib.Path, allow_unpinned: bool) -> int:
    """Fill DEST. Returns the number of files."""
    if version not in PINNED:
        check_pin(version, "", allow_unpinned)
    with tempfile.TemporaryDirectory(prefix="pd-fetch-") as folder:
        archive = download(version, pathlib.Path(folder))
        sha256 = digest(archive.read_bytes())
        check_pin(version, sha256, allow_unpinned)
        found = read_wanted(archive)
    for path, data in found.items():
        write_atomically(dest / path, data)
    source: dict[str, Any] = {
        "name": NAME,
        "version": version,
        "sha256": sha256,
        "files": {path: digest(data) for path, data in sorted(found.items())},
    }
    # Last, so that its presence says that the rest is there.
    write_atomically(dest / "SOURCE.json", (json.dumps(source, indent=2) + "\n").encode())
    return len(found)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Fetch the example proxies of vLLM-Ascend; nothing of it is executed.")
    parser.add_argument("--version", default=DEFAULT_VERSION, help="version on the package index (%(default)s)")
    parser.add_argument("--allow-unpinned", action="store_true", help="take a version whose checksum is not known")
    parser.add_argument("dest", type=pathlib.Path, help="folder that gets examples/ and SOURCE.json")
    args = parser.parse_args(argv)
    if is_complete(args.dest, args.version):
        print(f"fetch_upstream: {NAME} {args.version} is complete in {args.dest}, nothing to do")
        return 0
    try:
        count = fetch(args.version, args.dest, args.allow_unpinned)
    except FetchError as exc:
        print(f"fetch_upstream: {exc}", file=sys.stderr)
        return 1
    except (OSError, tarfile.TarError) as exc:
        print(f"fetch_upstream: {NAME} {args.version} cannot be put into {args.dest}: {exc}", file=sys.stderr)
        return 1
    print(f"fetch_upstream: {NAME} {args.version}: {count} files fetched to {args.dest}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

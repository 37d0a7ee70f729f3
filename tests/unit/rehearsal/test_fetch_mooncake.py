# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Mooncake's master out of its wheel, and stand-ins for the libraries that a machine without a driver lacks."""

from __future__ import annotations

import ctypes
import json
import pathlib
import platform
import subprocess
import sys
import zipfile

import pytest

import fetch_mooncake

MACHINE = platform.machine()
FETCHED = pathlib.Path(sys.prefix) / "share" / "pd_serving" / "mooncake" / fetch_mooncake.VERSION

pytestmark = pytest.mark.skipif(MACHINE not in fetch_mooncake.PINNED, reason="no wheel for this machine")


def test_a_stand_in_is_a_library_that_loads_and_whose_functions_return_zero(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "libpd_test.so.1"
    path.write_bytes(fetch_mooncake.stand_in(path.name, {"one": "PD_1.0", "two": "PD_1.1", "three": ""}, MACHINE))
    library = ctypes.CDLL(str(path))
    assert [getattr(library, name)() for name in ("one", "two", "three")] == [0, 0, 0]
    with pytest.raises(AttributeError):
        library.four  # noqa: B018
    # An own reader sees the versions that the loader will look for.
    assert ctypes.CDLL(str(path)).two is not None


def test_a_stand_in_without_functions(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "libpd_empty.so"
    path.write_bytes(fetch_mooncake.stand_in(path.name, {}, MACHINE))
    ctypes.CDLL(str(path))


def test_what_a_program_needs_is_read_from_it() -> None:
    elf = fetch_mooncake.Elf(pathlib.Path(sys.executable).resolve().read_bytes())
    assert any(name.startswith("libc.so") for name in elf.needed())
    libraries = elf.wanted()
    assert all(name.startswith(("lib", "ld-")) for name in libraries)


def test_a_text_file_is_no_program() -> None:
    with pytest.raises(ValueError, match="no 64-bit"):
        fetch_mooncake.Elf(b"#!/bin/sh\n")


def test_a_library_that_is_there_gets_no_stand_in() -> None:
    assert fetch_mooncake.is_there("libc.so.6")
    assert not fetch_mooncake.is_there("libpd_not_there.so.7")


def test_another_archive_is_refused(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = tmp_path / "some.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("mooncake/mooncake_master", "x")
    assert fetch_mooncake.main(["--wheel", str(wheel), str(tmp_path / "dest")]) == 1
    assert "instead of" in capsys.readouterr().err
    assert not (tmp_path / "dest").exists()


def test_what_is_complete_is_left_alone(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mooncake").mkdir()
    (tmp_path / fetch_mooncake.MASTER).write_bytes(b"x")
    source = {
        "name": fetch_mooncake.NAME,
        "version": fetch_mooncake.VERSION,
        "layout": fetch_mooncake.LAYOUT,
        "files": {fetch_mooncake.MASTER: fetch_mooncake.digest(b"x")},
    }
    (tmp_path / "SOURCE.json").write_text(json.dumps(source))
    assert fetch_mooncake.is_complete(tmp_path)
    (tmp_path / fetch_mooncake.MASTER).write_bytes(b"y")
    assert not fetch_mooncake.is_complete(tmp_path)


def test_the_real_master_runs() -> None:
    """Set-up has fetched it; it loads with what the machine has and the stand-ins for the rest."""
    assert (FETCHED / "SOURCE.json").exists(), "make setup fetches the wheel"
    result = subprocess.run(
        [str(FETCHED / fetch_mooncake.MASTER), "--version"],
        env={"LD_LIBRARY_PATH": str(FETCHED / "absent")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "error while loading" not in result.stderr and "undefined symbol" not in result.stderr, result.stderr
    assert "no version information" not in result.stderr
    assert "mooncake_master" in result.stdout + result.stderr

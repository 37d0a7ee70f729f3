# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""fetch_upstream takes the wanted examples out of the right archive, and nothing else."""

from __future__ import annotations

import io
import json
import pathlib
import stat
import subprocess
import tarfile
from collections.abc import Callable

import pytest

import fetch_upstream

PREFIX = "vllm_ascend-9.9"
PROXY = "examples/disaggregated_prefill_v1/load_balance_proxy_server_example.py"
LAUNCHER = "examples/external_online_dp/launch_online_dp.py"
GOOD = {PROXY: b"proxy", LAUNCHER: b"launcher", "setup.py": b"never", "examples/other.py": b"never"}


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Callable[..., str]:
    """Makes pip "download" an archive of these files, and pins it. Returns its checksum."""

    def make(files: dict[str, bytes], links: dict[str, str] | None = None) -> str:
        archive = tmp_path / "made.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            for path, data in files.items():
                member = tarfile.TarInfo(path if path.startswith(("/", "../")) else f"{PREFIX}/{path}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
            for path, target in (links or {}).items():
                member = tarfile.TarInfo(f"{PREFIX}/{path}")
                member.type, member.linkname = tarfile.SYMTYPE, target
                tar.addfile(member)

        def fake_run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
            folder = pathlib.Path(command[command.index("--dest") + 1])
            folder.mkdir(parents=True)
            (folder / "made.tar.gz").write_bytes(archive.read_bytes())
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(subprocess, "run", fake_run)
        sha256 = fetch_upstream.digest(archive.read_bytes())
        monkeypatch.setitem(fetch_upstream.PINNED, "9.9", sha256)
        return sha256

    return make


def files_below(folder: pathlib.Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_it_extracts_the_wanted_files_only(
    serve: Callable[..., str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sha256 = serve(
        {
            **GOOD,
            "examples/external_online_dp/deep/er.py": b"never",
            "examples/external_online_dp/../../../escape.py": b"never",
            "../examples/external_online_dp/up.py": b"never",
            "/examples/external_online_dp/root.py": b"never",
        },
        {"examples/external_online_dp/link.py": "/etc/passwd"},
    )
    dest = tmp_path / "dest"
    assert fetch_upstream.main(["--version", "9.9", str(dest)]) == 0
    assert files_below(dest) == {PROXY, LAUNCHER, "SOURCE.json"}
    assert files_below(tmp_path) == {f"dest/{path}" for path in files_below(dest)} | {"made.tar.gz"}
    assert (dest / PROXY).read_bytes() == b"proxy"
    assert not stat.S_IMODE((dest / LAUNCHER).stat().st_mode) & 0o111, "nothing of it is meant to be executed by itself"
    source = json.loads((dest / "SOURCE.json").read_text())
    assert (source["name"], source["version"], source["sha256"]) == ("vllm-ascend", "9.9", sha256)
    assert source["files"][PROXY] == fetch_upstream.digest(b"proxy")
    assert capsys.readouterr().out == f"fetch_upstream: vllm-ascend 9.9: 2 files fetched to {dest}\n"


def test_a_complete_folder_is_left_alone(
    serve: Callable[..., str],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    serve(GOOD)
    dest = tmp_path / "dest"
    assert fetch_upstream.main(["--version", "9.9", str(dest)]) == 0
    (dest / PROXY).write_bytes(b"damaged")
    assert fetch_upstream.main(["--version", "9.9", str(dest)]) == 0
    assert (dest / PROXY).read_bytes() == b"proxy", "a damaged file is fetched again"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("downloaded again"))
    capsys.readouterr()
    assert fetch_upstream.main(["--version", "9.9", str(dest)]) == 0
    assert capsys.readouterr().out == f"fetch_upstream: vllm-ascend 9.9 is complete in {dest}, nothing to do\n"
    monkeypatch.setitem(fetch_upstream.PINNED, "9.9", "0" * 64)
    with pytest.raises(pytest.fail.Exception, match="downloaded again"):
        fetch_upstream.main(["--version", "9.9", str(dest)])


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": "vllm-ascend", "version": "9.9"}'])
def test_a_damaged_source_file_is_not_complete(tmp_path: pathlib.Path, content: str) -> None:
    (tmp_path / "SOURCE.json").write_text(content)
    assert not fetch_upstream.is_complete(tmp_path, "9.9")


def fails(args: list[str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> str:
    dest = tmp_path / "dest"
    assert fetch_upstream.main([*args, str(dest)]) == 1
    assert not dest.exists(), "nothing is left behind"
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


def test_another_archive_is_refused(
    serve: Callable[..., str],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sha256 = serve(GOOD)
    monkeypatch.setitem(fetch_upstream.PINNED, "9.9", "0" * 64)
    message = fails(["--version", "9.9"], tmp_path, capsys)
    assert f"has SHA-256 {sha256} instead of {'0' * 64}" in message


def test_an_unpinned_version_must_be_wanted(
    serve: Callable[..., str],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    serve(GOOD)
    monkeypatch.delitem(fetch_upstream.PINNED, "9.9")
    assert "no checksum is known for vllm-ascend 9.9" in fails(["--version", "9.9"], tmp_path, capsys)
    assert fetch_upstream.main(["--version", "9.9", "--allow-unpinned", str(tmp_path / "dest")]) == 0


def test_an_archive_without_the_proxies_is_refused(
    serve: Callable[..., str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve({LAUNCHER: b"launcher"})
    assert "the archive has no examples/disaggregated_prefill_v1/" in fails(["--version", "9.9"], tmp_path, capsys)
    serve({**GOOD, PROXY: bytes(fetch_upstream.LARGEST_FILE + 1)})
    assert "more than any example should have" in fails(["--version", "9.9"], tmp_path, capsys)


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        (
            "W: Retrying after connection broken by 'x'\nERROR: No matching distribution",
            "index cannot be reached",
        ),
        ("WARNING: w\nERROR: No matching distribution found\nnote", "ERROR: No matching distribution found"),
        ("Segmentation fault\n", "Segmentation fault"),
        ("", "no reason given"),
    ],
)
def test_pip_failures_have_one_reason(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stderr: str,
    reason: str,
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", stderr)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    message = fails([], tmp_path, capsys)
    assert message.startswith("fetch_upstream: pip cannot download vllm-ascend==0.23.0.post1: ")
    assert reason in message


def test_pip_may_not_hang(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hang(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(subprocess, "run", hang)
    assert "pip did not finish within 600 seconds" in fails([], tmp_path, capsys)


def test_the_real_version_is_pinned() -> None:
    assert fetch_upstream.PINNED[fetch_upstream.DEFAULT_VERSION] == (
        "a3b9f4a5dd7aa50c37e03d1f35937c4ae5aeacc49b734cac74d59ce5757738e1"
    )

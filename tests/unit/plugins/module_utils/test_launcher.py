# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The decisions of the launcher, as plain functions."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.ascend.pd_serving.plugins.module_utils import launcher

ENV = {
    "HOME": "/root",
    "LD_LIBRARY_PATH": "/own/lib:/own/lib64",
    "LD_PRELOAD": "",
    "ODD": ":/a::/b:",
    "PATH": "/usr/bin:/bin",
}


def spec(*processes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"schema": 1, "unit": "pd-t", "processes": list(processes) or [process()], **more}


def process(name: str = "rank0", **more: Any) -> dict[str, Any]:
    return {"name": name, "argv": ["sh", "-c", "true"], **more}


def devices(*lists: str) -> dict[str, Any]:
    return spec(*(process(f"rank{i}", env={"ASCEND_RT_VISIBLE_DEVICES": v}) for i, v in enumerate(lists)))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([], "the spec must be an object, not a list"),
        (None, "the spec must be an object, not null"),
        ({}, "schema null is not known"),
        (spec() | {"schema": 2}, "schema 2 is not known to this launcher, which reads schema 1"),
        (spec() | {"schema": True}, "schema true is not known"),
        (spec(argv=["x"]), 'the spec: unknown key "argv"; known are schema, unit,'),
        (spec(unit=""), "unit must be made of letters"),
        (spec(unit="../x"), "unit must be made of letters, digits, '_', '.' and '-', not \"../x\""),
        (spec(processes=[]), "processes must be a list with at least one process"),
        (spec(processes={"a": 1}), "processes must be a list with at least one process"),
        (spec(processes=["x"]), "process 1 must be an object, not a text"),
        (spec(process(), process()), "two processes are named rank0"),
        (spec(process(), process("a b")), "process 2: name must be made of letters"),
        (spec(process("x\n")), "process 1: name must be made of letters"),
        (spec(process(args=[])), 'process 1 (rank0): unknown key "args"; known are name, label, argv, env, health_url'),
        (spec(process(argv="vllm serve")), "process 1 (rank0): argv must be a list with at least the command"),
        (spec(process(argv=[])), "argv must be a list with at least the command"),
        (spec(process(argv=["sh", 1])), "argv[1] must be a text, not 1"),
        (spec(process(argv=["", "x"])), "argv[0] is the command and must not be empty"),
        (spec(process(argv=["sh", None])), "argv[1] must be a text, not null"),
        (spec(process(argv=["sh", "a\0b"])), "argv[1] holds a NUL byte"),
        (spec(process(argv=["sh", "\ud800"])), "argv[1] is no text that can be encoded"),
        (spec(process(label="a\nb")), "label must be one line of text"),
        (spec(process(env=["A=1"])), "env must be an object, not a list"),
        (spec(process(env={"A=B": "1"})), '"A=B" is no name for an environment variable'),
        (spec(process(env={"": "1"})), '"" is no name for an environment variable'),
        (spec(process(env={"1A": "1"})), '"1A" is no name'),
        (spec(process(env={"A\n": "1"})), '"A\\n" is no name'),
        (spec(process(env={"A": 1})), "env A must be a text or null, not 1"),
        (spec(process(env={"A": "x\0"})), "env A holds a NUL byte"),
        (spec(process(health_url="127.0.0.1:80")), "health_url must be http://host:port/path, tcp://host:port or null"),
        (spec(process(health_url="https://h:1/x")), "health_url must be http://"),
        (spec(process(health_url="http://h/x")), "health_url must be http://"),
        (spec(process(health_url="http://h:99999/x")), "health_url must be http://"),
        (spec(process(health_url=7)), "health_url must be http://"),
        (spec(stop_grace_seconds=-1), "stop_grace_seconds must be a number of seconds, 0 or more, not -1"),
        (spec(stop_grace_seconds="60"), 'stop_grace_seconds must be a number of seconds, 0 or more, not "60"'),
        (spec(fail_grace_seconds=True), "fail_grace_seconds must be a number of seconds"),
        (spec(fail_grace_seconds=float("inf")), "fail_grace_seconds must be a number of seconds"),
        (spec(log_max_bytes=0), "log_max_bytes must be a whole number, 1024 or more, not 0"),
        (spec(log_keep=1.5), "log_keep must be a whole number, 0 or more, not 1.5"),
        (spec(container=[]), "container must be an object, not a list"),
        (spec(container=None), "container must be an object, not null"),
        (devices(""), 'process rank0: ASCEND_RT_VISIBLE_DEVICES="" must be numbers with commas between'),
        (devices("0,"), "must be numbers with commas between"),
        (devices("0, 1"), "must be numbers with commas between"),
        (devices("npu0"), "must be numbers with commas between"),
        (devices("٣"), "must be numbers with commas between"),
        (devices("0,1,0"), "device 0 is already taken by itself"),
        (devices("0,1", "2,01"), 'rank1: ASCEND_RT_VISIBLE_DEVICES="2,01": device 1 is already taken by process rank0'),
    ],
)
def test_an_impossible_spec_is_refused_with_one_line(raw: Any, words: str) -> None:
    with pytest.raises(launcher.SpecError) as refusal:
        launcher.build_spec(raw)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["", "{", b"\xff\xfe\xfa", "[" * 100000])
def test_what_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(launcher.SpecError, match="not JSON"):
        launcher.parse_spec(text)


def test_defaults_of_a_spec() -> None:
    built = launcher.build_spec(spec())
    assert (built.stop_grace, built.fail_grace, built.log_max_bytes, built.log_keep) == (60.0, 3.0, 104857600, 3)
    assert built.processes[0].label == "rank0"
    assert built.processes[0].health_url is None


def test_device_lists_may_be_absent_or_unset() -> None:
    launcher.build_spec(spec(process("a"), process("b", env={"ASCEND_RT_VISIBLE_DEVICES": None})))
    launcher.build_spec(devices("0,1", "2,3"))


def test_the_checksum_ignores_how_the_json_is_written() -> None:
    raw = spec(process(env={"B": "ü", "A": "1"}))
    turned = json.loads(json.dumps(raw, indent=4, sort_keys=True, ensure_ascii=False))
    assert launcher.spec_sha256(raw) == launcher.spec_sha256(turned) == launcher.build_spec(raw).sha256
    assert launcher.spec_sha256(raw) != launcher.spec_sha256(spec(process(env={"B": "ü", "A": "2"})))


def test_the_settings_of_the_container_count_for_the_checksum_only() -> None:
    built = [launcher.build_spec(spec(**more)) for more in ({}, {"container": {}}, {"container": {"image": [1, None]}})]
    assert len({one.sha256 for one in built}) == 3
    assert all(one.processes == built[0].processes for one in built)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("LD_LIBRARY_PATH", "/x:$LD_LIBRARY_PATH", "/x:/own/lib:/own/lib64"),
        ("LD_LIBRARY_PATH", "${LD_LIBRARY_PATH}:/x", "/own/lib:/own/lib64:/x"),
        ("LD_LIBRARY_PATH", "${LD_LIBRARY_PATH:-}:/x", "/own/lib:/own/lib64:/x"),
        ("LD_LIBRARY_PATH", "$NO_SUCH:/x", "/x"),
        ("LD_LIBRARY_PATH", "/x:$NO_SUCH", "/x"),
        ("LD_LIBRARY_PATH", "/x:$NO_SUCH:/y", "/x:/y"),
        ("LD_LIBRARY_PATH", "$NO_SUCH", None),
        ("LD_LIBRARY_PATH", "$NO_SUCH:${LD_PRELOAD}", None),
        ("LD_PRELOAD", "/usr/lib/libjemalloc.so.2:$LD_PRELOAD", "/usr/lib/libjemalloc.so.2"),
        ("LD_LIBRARY_PATH", "$ODD:/x", "/a:/b:/x"),
        ("LD_LIBRARY_PATH", ":/x::$HOME:", "/x:/root"),
        ("PYTHONPATH", "$HOME/lib:$HOME", "$HOME/lib:/root"),
        ("PATH", "/opt:$PATH", "/opt:/usr/bin:/bin"),
        ("LD_LIBRARY_PATH", "/x:${NO_SUCH:-}:${LD_PRELOAD:-}", "/x"),
        ("PATH", "/opt:${PATH:-/bin}", "/opt:${PATH:-/bin}"),
        ("PATH", "/opt:$$PATH:\\$PATH:$(id):`id`", "/opt:$$PATH:\\$PATH:$(id):`id`"),
        ("TOPO_FILE_PATH", "$HOME", "/root"),
        ("MYPATH", "$HOME", "/root"),
        ("LD_LIBRARY_PATH", "::/x:", "::/x:"),
        ("PATH", "", ""),
        ("HCCL_NAME", "$HOME", "$HOME"),
        ("PATHS", "$HOME", "$HOME"),
        ("VLLM_HOST_IP", "${HOME}", "${HOME}"),
    ],
)
def test_expansion(name: str, value: str, expected: str | None) -> None:
    assert launcher.expand(name, value, ENV, lambda path: True) == expected


def test_child_environment_adds_replaces_and_unsets() -> None:
    result = launcher.child_environment(ENV, {"HOME": None, "NEW": "$HOME", "LD_LIBRARY_PATH": "$GONE", "gone": None})
    assert result == {"LD_PRELOAD": "", "ODD": ":/a::/b:", "PATH": "/usr/bin:/bin", "NEW": "$HOME"}
    assert ENV["HOME"] == "/root"


def test_text_goes_to_bytes_and_back_whatever_the_locale() -> None:
    odd = {b"A": b"\xff\xfe", "Ä".encode(): "ö\n".encode()}
    text = launcher.decode_environment(odd)
    assert {launcher.encode(k): launcher.encode(v) for k, v in text.items()} == odd


def test_find_command(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    assert launcher.find_command("tool", str(tool.parent), "/") is None
    tool.chmod(0o755)
    assert launcher.find_command("tool", f"/nowhere:{tool.parent}", "/") == str(tool)
    assert launcher.find_command("tool", "bin", str(tmp_path)) == str(tool)
    assert launcher.find_command("./bin/tool", "/usr/bin", str(tmp_path)) == f"{tmp_path}/./bin/tool"
    assert launcher.find_command(str(tool), None, "/") == str(tool)
    assert launcher.find_command("bin", str(tmp_path), "/") is None
    assert launcher.find_command("sh", None, "/") in ("/bin/sh", "/usr/bin/sh")


def test_check_names_the_command_and_the_path_it_was_sought_in(tmp_path: Path) -> None:
    raw = json.dumps(spec(process(argv=["no-such-tool"], env={"PATH": "/opt/x:$PATH"})))
    with pytest.raises(launcher.SpecError) as refusal:
        launcher.check(raw, {"PATH": "/bin"}, "/", None)
    assert str(refusal.value) == "process rank0: command no-such-tool not found in PATH=/opt/x:/bin"


def test_check_judges_the_log_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    text = json.dumps(spec())
    launcher.check(text, ENV, "/", str(tmp_path / "not" / "yet"))
    with pytest.raises(launcher.SpecError, match="is no folder"):
        launcher.check(text, ENV, "/", str(tmp_path / "file" / "logs"))
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(tmp_path))  # root may write anywhere
    with pytest.raises(launcher.SpecError, match=r"log folder .*/logs is not writable"):
        launcher.check(text, ENV, "/", str(tmp_path / "logs"))


@pytest.mark.parametrize(
    ("status", "words", "code"),
    [
        (0, "exited with code 0", 1),
        (3 << 8, "exited with code 3", 3),
        (9, "was killed by signal 9 (SIGKILL)", 137),
        (11 | 0x80, "was killed by signal 11 (SIGSEGV)", 139),
        (40, "was killed by signal 40 (signal 40)", 168),
    ],
)
def test_how_a_process_ended(status: int, words: str, code: int) -> None:
    assert launcher.describe_status(status) == words
    assert launcher.unit_exit_code(status) == code


def test_the_reason_names_label_pid_and_the_others() -> None:
    assert (
        launcher.end_reason("rank 17", 4242, 9, 15)
        == "rank 17 (pid 4242) was killed by signal 9 (SIGKILL); ending the other 15"
    )
    assert launcher.end_reason("proxy", 7, 256, 0) == "proxy (pid 7) exited with code 1"


@pytest.mark.parametrize(("statuses", "index"), [([0, 256, 9], 2), ([0, 256], 1), ([256, 512], 0), ([0], 0)])
def test_of_several_ends_the_telling_one_is_reported(statuses: list[int], index: int) -> None:
    assert launcher.blame(statuses) == index


@pytest.mark.parametrize(
    ("chunk", "room", "within_line", "most", "expected"),
    [
        (b"ab\n", 3, False, 99, 3),
        (b"ab\ncd\n", 5, False, 99, 3),
        (b"ab\ncd\n", 2, False, 99, 0),
        (b"ab\ncd\n", 2, True, 99, 3),
        (b"abcdef", 2, True, 99, 6),
        (b"abcdef", 2, True, 4, 4),
        (b"abcdef", 2, True, -1, 0),
        (b"abcdef", -5, False, 9, 0),
    ],
)
def test_where_a_log_is_split(chunk: bytes, room: int, within_line: bool, most: int, expected: int) -> None:
    assert launcher.split_at_limit(chunk, room, within_line, most) == expected


def read_logs(path: Path, keep: int) -> list[bytes]:
    names = [path.with_name(f"{path.name}.{n}") for n in range(keep, 0, -1)] + [path]
    return [name.read_bytes() for name in names if name.exists()]


def test_rotation_keeps_every_line_whole_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    log = launcher.RotatingLog(str(path), 1024, 50, pytest.fail)
    rng = random.Random(1)
    lines = [b"%06d %s\n" % (n, b"x" * rng.randrange(120)) for n in range(500)]
    whole = b"".join(lines)
    while whole:
        size = rng.randrange(1, 700)
        log.write(whole[:size])
        whole = whole[size:]
    log.close()
    parts = read_logs(path, 50)
    assert b"".join(parts) == b"".join(lines)
    assert len(parts) > 20
    assert all(part.endswith(b"\n") for part in parts)
    assert all(len(part) < 1024 + 130 for part in parts)


def test_only_so_many_logs_are_kept(tmp_path: Path) -> None:
    for keep in (0, 2):
        path = tmp_path / f"keep{keep}.log"
        log = launcher.RotatingLog(str(path), 1024, keep, pytest.fail)
        for n in range(100):
            log.write(b"%0100d\n" % n)
        log.close()
        parts = read_logs(path, 99)
        assert len(parts) == keep + 1
        assert b"".join(parts).endswith(b"98\n" + b"%0100d\n" % 99)


def test_output_without_line_ends_is_cut_at_last(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    log = launcher.RotatingLog(str(path), 1024, 9, pytest.fail)
    for _ in range(50):
        log.write(b"\r%099d" % 1)
    log.close()
    parts = read_logs(path, 9)
    assert sum(map(len, parts)) == 5000
    assert max(map(len, parts)) == 2048


def test_a_log_is_continued_and_the_runs_are_parted(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    path.write_bytes(b"cut of")
    log = launcher.RotatingLog(str(path), 1024, 1, pytest.fail)
    log.announce("started rank 0 as pid 7")
    log.write(b"hello\n")
    log.close()
    assert path.read_bytes() == b"cut of\n[launcher] started rank 0 as pid 7\nhello\n"
    assert path.stat().st_mode & 0o777 == 0o644  # an existing file keeps its mode


def test_a_full_disk_is_said_once_and_what_is_lost_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    path.symlink_to("/dev/full")
    said: list[str] = []
    log = launcher.RotatingLog(str(path), 1024, 1, said.append)
    for _ in range(5):
        log.write(b"0123456789\n")
    assert said == [f"log {path} cannot be written: No space left on device; the processes go on without it"]
    log.close()
    path.unlink()
    log.write(b"again\n")
    log.close()
    assert path.read_bytes() == b"\n[launcher] 55 bytes of output were lost here\nagain\n"
    assert len(said) == 1


def test_a_log_that_cannot_be_rotated_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    (tmp_path / "rank0.log.1" / "full").mkdir(parents=True)
    said: list[str] = []
    log = launcher.RotatingLog(str(path), 1024, 1, said.append)
    for n in range(100):
        log.write(b"%0100d\n" % n)
    log.close()
    assert path.stat().st_size == 10100
    assert len(said) == 1 and "cannot be rotated" in said[0]


def test_files_are_replaced_atomically_with_an_exact_mode(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    launcher.write_atomically(str(path), b"new", 0o640)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o640)
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    with pytest.raises(OSError):
        launcher.write_atomically(str(tmp_path / "no" / "f"), b"")


def test_stat_of_a_process_with_an_awkward_name() -> None:
    line = "77 (a) b (c) S 1 70 69 0 -1 4194560 " + " ".join(str(n) for n in range(10, 40))
    stat = launcher.parse_stat(line)
    assert (stat.pid, stat.state, stat.parent, stat.group, stat.session, stat.start) == (77, "S", 1, 70, 69, 22)
    own = launcher.read_stat(os.getpid())
    assert own is not None and (own.parent, own.group) == (os.getppid(), os.getpgrp())
    assert launcher.read_stat(0) is None


def test_descendants_are_found_at_any_depth() -> None:
    def stat(pid: int, parent: int) -> launcher.Stat:
        return launcher.Stat(pid, "S", parent, pid, pid, 0)

    table = {s.pid: s for s in (stat(1, 0), stat(2, 1), stat(3, 2), stat(4, 3), stat(5, 1))}
    assert launcher.descendants(table, 2) == {3, 4}
    assert launcher.descendants(table, 5) == set()


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health?deep=1" else 503)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


def test_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    server = HTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{silent.getsockname()[1]}/health"
        assert launcher.probe(closed, 1) == ("loading", "connection refused")
        silent.listen()
        assert launcher.probe(closed, 0.1)[0] == "unhealthy"
    answers = launcher.probe_all([base + "/health?deep=1", base + "/health", base + "/health"])
    assert answers == {base + "/health?deep=1": ("ready", "HTTP 200"), base + "/health": ("unhealthy", "HTTP 503")}
    assert launcher.probe_all([]) == {}
    server.shutdown()
    server.server_close()


def test_signal_names() -> None:
    assert launcher.signal_name(signal.SIGTERM) == "SIGTERM"


@pytest.mark.parametrize(
    ("value", "there", "left"),
    [
        (
            "/usr/lib/aarch64-linux-gnu/x.so:/usr/lib64/x.so",
            "/usr/lib/aarch64-linux-gnu/x.so",
            "/usr/lib/aarch64-linux-gnu/x.so",
        ),
        ("/usr/lib/aarch64-linux-gnu/x.so:/usr/lib64/x.so", "/usr/lib64/x.so", "/usr/lib64/x.so"),
        ("/usr/lib64/x.so:$LD_PRELOAD", "", None),
        ("/usr/lib64/x.so:$LD_PRELOAD", "/own.so", "/own.so"),
        ("libx.so", "", "libx.so"),
    ],
)
def test_only_libraries_that_are_there_are_preloaded(value: str, there: str, left: str | None) -> None:
    """IMG-03: vllm-ascend#5609: with a wrong path every command prints a loader error; an empty part is never left."""
    environ = {"LD_PRELOAD": "/own.so"} if there == "/own.so" else {}
    assert launcher.expand("LD_PRELOAD", value, environ, lambda path: path == there) == left


def test_probe_of_a_port_without_a_page() -> None:
    """The KV pool's master speaks its own protocol: it is ready when it takes connections."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert launcher.probe(url, 1) == ("loading", "connection refused")
        server.listen()
        assert launcher.probe(url, 1) == ("ready", "takes connections")
    assert launcher.probe("tcp://no-such-host.invalid:1", 1)[0] == "unhealthy"

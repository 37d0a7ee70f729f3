# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Reading /proc."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

from ansible_collections.ascend.pd_serving.plugins.module_utils import procfs

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1BBC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4001 1 0 100 0 0 10 0
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4002 1 0 100 0 0 10 0
   2: 0100007F:1BBC 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 4003 1 0 100 0 0 10 0
   3: broken
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when
   0: 00000000000000000000000000000000:07CF 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 4004 1 0
   1: 0000000000000000FFFF00000100007F:07D0 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 4005 1 0
   2: 00000000000000000000000001000000:07D1 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 4006 1 0
"""


@pytest.mark.skipif(sys.byteorder != "little", reason="the tables above are of a little-endian machine")
def test_the_kernels_tables() -> None:
    assert [(str(each), each.inode, each.wildcard) for each in procfs.parse_listeners(TCP)] == [
        ("127.0.0.1:7100", 4001, False),
        ("0.0.0.0:22", 4002, True),
    ]
    assert [(str(each), each.inode, each.wildcard) for each in procfs.parse_listeners(TCP6)] == [
        ("[::]:1999", 4004, True),
        ("127.0.0.1:2000", 4005, False),
        ("[::1]:2001", 4006, False),
    ]
    assert procfs.parse_listeners("") == []


@pytest.mark.parametrize(
    ("address", "plain"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::FFFF:10.0.0.1", "10.0.0.1"),
        ("[2001:DB8::0:1]", "2001:db8::1"),
        ("localhost", "localhost"),
        ("", ""),
    ],
)
def test_one_spelling_per_address(address: str, plain: str) -> None:
    assert procfs.plain_address(address) == plain


def test_a_listener_of_this_process_is_found_with_its_owner() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        (found,) = [each for each in procfs.listeners() if each.port == port and each.address == "127.0.0.1"]
        assert found.inode in procfs.sockets_of(os.getpid())
        assert procfs.socket_owners([found.inode]) == {found.inode: os.getpid()}
    assert procfs.socket_owners([]) == {}
    assert procfs.socket_owners([found.inode]) == {}


def test_pipes_of_a_process() -> None:
    reader, writer = os.pipe()
    assert os.fstat(writer).st_ino in procfs.pipes_of(os.getpid())
    os.close(reader)
    os.close(writer)
    assert procfs.pipes_of(0) == set()


ID = "0f" * 32


@pytest.mark.parametrize(
    ("groups", "found"),
    [
        (f"0::/system.slice/docker-{ID}.scope\n", {ID}),
        (f"12:memory:/docker/{ID}\n11:cpu:/docker/{ID}\n0::/\n", {ID}),
        (f"0::/machine.slice/libpod-{'a' * 64}.scope/container/docker/{ID}/init\n", {ID, "a" * 64}),
        ("0::/user.slice/user-0.slice/session-1.scope\n", set()),
        (f"0::/x/{ID}0\n", set()),
        ("", set()),
    ],
)
def test_containers_in_the_names_of_control_groups(groups: str, found: set[str]) -> None:
    assert procfs.parse_container_ids(groups) == found


def test_containers_of_a_process() -> None:
    with open("/proc/self/cgroup", encoding="utf-8") as stream:
        assert procfs.container_ids(os.getpid()) == procfs.parse_container_ids(stream.read())
    assert procfs.container_ids(0) == set()


def test_command_lines() -> None:
    process = subprocess.Popen(["sleep", "300"])
    try:
        for _ in range(100):  # for an instant after the start a process has only its short name
            if procfs.command_line(process.pid) == "sleep 300":
                break
            time.sleep(0.01)
        assert procfs.command_line(process.pid) == "sleep 300"
        assert procfs.command_line(process.pid, 8) == "sleep..."
    finally:
        process.kill()
        process.wait()
    assert procfs.command_line(process.pid) == "?"
    assert procfs.innermost_pid(os.getpid()) == os.getpid()
    assert procfs.innermost_pid(0) == 0

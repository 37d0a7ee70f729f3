# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Listeners that go away by themselves, and connections to them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ansible_collections.ascend.pd_serving.plugins.module_utils import port_probe, procfs
from ansible_collections.ascend.pd_serving.plugins.module_utils.port_probe import Endpoint, Target

# Tests that run at the same time do not meet.
ADDRESS = f"127.83.{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250 + 1}"
COLLECTIONS = str(Path(__file__).parents[4] / ".ansible" / "collections")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    """A simulated host; whatever a test left listening there is ended."""
    yield str(tmp_path)
    for run in ("", "one", "two"):
        port_probe.done("demo", str(tmp_path), run)
    assert port_probe.listener_pids("demo", str(tmp_path)) == set()


def free_ports(count: int, address: str = ADDRESS) -> list[Endpoint]:
    """Ports on which nobody listens just now, outside of what the kernel gives to outgoing connections."""
    found = []
    with ExitStack() as stack:
        for port in range(20000 + os.getpid() % 5000, 32000):
            server = stack.enter_context(socket.socket())
            try:
                server.bind((address, port))
            except OSError:
                continue
            found.append(Endpoint(address, port))
            if len(found) == count:
                return found
    raise AssertionError("no free port")


def states(endpoints: list[Endpoint], timeout: float = 3.0) -> list[str]:
    targets = [Target("other", *endpoint) for endpoint in endpoints]
    return [str(one["state"]) for one in port_probe.probe(targets, timeout, 64, 10)]


def listening(root: str, endpoints: list[Endpoint], run: str = "", lifetime: float = 60) -> port_probe.Listening:
    return port_probe.listen("demo", root, run, endpoints, lifetime)


def the_pid(root: str) -> int:
    (pid,) = port_probe.listener_pids("demo", root)
    return pid


def wait_until_gone(root: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while port_probe.listener_pids("demo", root):
        assert time.monotonic() < deadline, "the listener is still there"
        time.sleep(0.05)


# -- listening ---------------------------------------------------------------------------------------------------------


def test_what_listens_can_be_reached_until_it_is_told_to_end(root: str) -> None:
    endpoints = free_ports(3)
    found = listening(root, endpoints[:2])
    assert found[:3] == (endpoints[:2], [], [])
    assert states(endpoints) == ["open", "open", "refused"]
    assert states(endpoints[:2] * 40) == ["open"] * 80
    assert port_probe.done("demo", root, "") == 1
    assert states(endpoints) == ["refused"] * 3, "its ports are free when done returns"
    wait_until_gone(root, 5)


def test_each_run_ends_what_no_other_needs(root: str) -> None:
    first, second = free_ports(2)
    (name,) = listening(root, [first], run="one").listeners
    listeners = listening(root, [first, second], run="two").listeners
    assert len(listeners) == 2 and name in listeners, "the other run's, which is kept for this one, and its own"
    assert port_probe.done("demo", root, "two") == 2
    assert states([first, second]) == ["open", "refused"], "the other run still needs its own"
    assert port_probe.done("demo", root, "one") == 1
    assert states([first, second]) == ["refused"] * 2, "ports are free when it has ended"
    with socket.create_server(first):
        assert listening(root, [first]).listeners == [], "somebody else's port needs none"


def test_a_listener_has_left_its_callers_session_and_pipes(root: str) -> None:
    """Ansible, ssh and sudo wait until nobody holds their pipes any more."""
    (endpoint,) = free_ports(1)
    code = (
        "import sys; from ansible_collections.ascend.pd_serving.plugins.module_utils import port_probe as p;"
        "found = p.listen('demo', sys.argv[1], '', [p.Endpoint(sys.argv[2], int(sys.argv[3]))], 60); print(len(found.bound))"
    )
    command = [sys.executable, "-c", code, root, endpoint.address, str(endpoint.port)]
    environment = {**os.environ, "PYTHONPATH": COLLECTIONS}
    started = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)
    assert time.monotonic() - started < 20, "it waited for the listener"
    pid = the_pid(root)
    assert os.getsid(pid) != os.getsid(0)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert Path(f"/proc/{pid}/comm").read_text() == "pd-listen\n"
    held = [os.readlink(f"/proc/{pid}/fd/{name}") for name in sorted(os.listdir(f"/proc/{pid}/fd"), key=int)]
    assert held[:3] == [os.devnull] * 3
    assert all(name.startswith(("socket:", "anon_inode:[eventpoll]")) for name in held[3:]), held
    assert len(procfs.sockets_of(pid)) == 2, "its own name and one port"
    assert states([endpoint]) == ["open"]


def test_it_ends_by_itself(root: str) -> None:
    endpoints = free_ports(1)
    listening(root, endpoints, lifetime=2)
    assert states(endpoints) == ["open"]
    wait_until_gone(root, 8)
    assert states(endpoints) == ["refused"]


def test_no_port_is_left_in_time_wait(root: str) -> None:
    """An engine that binds its port right after preflight may not allow for one that is (no SO_REUSEADDR)."""
    endpoints = free_ports(1)
    listening(root, endpoints)
    assert states(endpoints * 20) == ["open"] * 20
    port_probe.done("demo", root, "")
    with socket.socket() as engine:
        engine.bind(endpoints[0])
        engine.listen()


def test_what_somebody_listens_on_is_left_alone(root: str) -> None:
    (special,) = free_ports(1)
    with socket.create_server(special) as engine, socket.create_server(("", 0)) as everywhere:
        on_all = Endpoint(ADDRESS, everywhere.getsockname()[1])
        found = listening(root, [special, on_all])
        assert found[:3] == ([], [special, on_all], [])
        assert port_probe.listener_pids("demo", root) == set(), "no process without a port"
        assert states([special, on_all]) == ["open", "open"]
        engine.settimeout(5)
        connection, _peer = engine.accept()
        with connection, pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_why_a_port_cannot_be_bound(root: str) -> None:
    (taken,) = free_ports(1)
    with socket.socket() as outgoing:
        outgoing.bind(taken)  # as a connection does that got a planned port
        found = listening(root, [taken, Endpoint("192.0.2.77", 7100)])
    assert (found.bound, found.live) == ([], [])
    whys = [why for _endpoint, why in found.failed]
    assert f"{taken.address}:{taken.port} is in use without anybody listening there" in whys[0]
    assert "net.ipv4.ip_local_reserved_ports" in whys[0]
    assert whys[1] == "192.0.2.77 is no address of this host"


def test_one_run_does_not_end_what_another_one_needs(root: str) -> None:
    first, second = free_ports(2)
    assert listening(root, [first], "one", 60).bound == [first]
    assert listening(root, [first, second], "two", 60)[:3] == ([second], [first], [])
    assert len(port_probe.listener_pids("demo", root)) == 2
    port_probe.done("demo", root, "one")
    assert states([first, second]) == ["open", "open"]
    port_probe.done("demo", root, "two")
    assert states([first, second]) == ["refused", "refused"]


def test_a_second_run_keeps_the_first_ones_listener_alive(root: str) -> None:
    (endpoint,) = free_ports(1)
    listening(root, [endpoint], "one", 2)
    listening(root, [endpoint], "two", 60)
    time.sleep(2.3)
    assert states([endpoint]) == ["open"]


def test_listeners_of_other_hosts_and_clusters_are_not_ours(root: str) -> None:
    (endpoint,) = free_ports(1)
    listening(root, [endpoint])
    for cluster, other in (("demo", f"{root}/x"), ("else", root)):
        assert port_probe.listener_pids(cluster, other) == set()
        assert port_probe.done(cluster, other, "") == 0
    assert states([endpoint]) == ["open"]


def test_nonsense_does_not_end_a_listener(root: str) -> None:
    (endpoint,) = free_ports(1)
    listening(root, [endpoint])
    (name,) = port_probe._controls(port_probe.site_name("demo", root))
    for line in ("", "done", "hold x y", "hold x", "\xff", "done a b", "x" * 1000):
        port_probe._tell(name, line, 1)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.connect("\0" + name)
        assert states([endpoint]) == ["open"], "somebody who says nothing does not stop it for long"


def test_a_listener_that_does_not_come_up_is_an_error(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_probe, "_detach", lambda _work, _kept: None)
    monkeypatch.setattr(port_probe, "START_PATIENCE", 0.1)
    endpoints = free_ports(1)
    with pytest.raises(port_probe.ProbeError, match="did not come up"):
        listening(root, endpoints)
    assert states(endpoints) == ["refused"], "and nothing is left"


def test_the_kernels_list_of_unix_sockets() -> None:
    table = (
        "Num       RefCount Protocol Flags    Type St Inode Path\n"
        "0000000000000000: 00000002 00000000 00010000 0001 01 4001 @pd_serving.listen.a.1\n"
        "0000000000000000: 00000003 00000000 00000000 0001 03 4002 @pd_serving.listen.a.1\n"
        "0000000000000000: 00000002 00000000 00010000 0001 01 4003 /run/pd_serving.listen.a.2\n"
        "0000000000000000: 00000002 00000000 00010000 0001 01 4004 @pd_serving.listen.b.1\n"
        "0000000000000000: 00000002 00000000 00010000 0001 01 4005\n"
    )
    assert port_probe.parse_unix(table, "pd_serving.listen.a.") == {"pd_serving.listen.a.1": 4001}


# -- what is asked for -------------------------------------------------------------------------------------------------


def test_all_that_is_wrong_is_told_at_once() -> None:
    entries = [
        {"address": "host", "port": 1},
        {"address": "::FFFF", "port": 0},
        {"address": "192.0.2.1", "port": 65536},
    ]
    with pytest.raises(port_probe.ProbeError) as raised:
        port_probe.check(entries, "endpoints", 1)
    assert str(raised.value) == (
        "endpoints: 'host' is no IP address; port 0 of ::FFFF is not within 1-65535; port 65536 of 192.0.2.1 is not "
        "within 1-65535; 2 entries are more than 1"
    )
    with pytest.raises(port_probe.ProbeError, match="lifetime is 601, it must be 1 to 600"):
        port_probe.check_range("lifetime", 601, 1, 600)


# -- probing -----------------------------------------------------------------------------------------------------------


def test_a_port_whose_packets_are_dropped_is_a_timeout() -> None:
    """Linux drops the first packet of a connection to a listener whose queue is full, as a firewall does."""
    with socket.create_server((ADDRESS, 0), backlog=0) as server, ExitStack() as stack:
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        started = time.monotonic()
        assert states([Endpoint(*server.getsockname())] * 5, timeout=0.5) == ["timeout"] * 5
        assert 0.4 < time.monotonic() - started < 2, "all at once"


IN_A_NAMESPACE = """
set -e
ip link add x type veth peer name y
ip link set x arp off
ip link set x up
ip link set y up
ip addr add 192.0.2.1/24 dev x
ip route add prohibit 203.0.113.0/24
exec "$0" -c '
import json
from ansible_collections.ascend.pd_serving.plugins.module_utils import port_probe as p
targets = [p.Target("t", address, 7100) for address in ("192.0.2.2", "198.51.100.1", "203.0.113.1", "2001:db8::1")]
print(json.dumps([one["state"] for one in p.probe(targets, 0.5, 8, 5)]))
'
"""


@pytest.mark.skipif(not (shutil.which("unshare") and shutil.which("ip")), reason="needs unshare and ip")
def test_a_network_that_swallows_packets_and_one_without_a_route() -> None:
    environment = {**os.environ, "PYTHONPATH": COLLECTIONS}
    probing = subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False)
    if probing.returncode:
        pytest.skip("this user cannot make network namespaces")
    command = ["unshare", "-rn", "sh", "-c", IN_A_NAMESPACE, sys.executable]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["timeout", "unreachable", "unreachable", "unreachable"]


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (0, "open"),
        (errno.ECONNRESET, "open"),
        (errno.ECONNREFUSED, "refused"),
        (errno.ETIMEDOUT, "timeout"),
        (errno.EHOSTUNREACH, "unreachable"),
        (errno.ENETUNREACH, "unreachable"),
        (errno.EACCES, "unreachable"),
        (errno.EADDRNOTAVAIL, "unknown"),
        (errno.EMFILE, "unknown"),
    ],
)
def test_what_the_kernels_numbers_mean(code: int, state: str) -> None:
    assert port_probe._state(code) == state


def test_what_there_is_no_time_for_is_unknown() -> None:
    with socket.create_server((ADDRESS, 0), backlog=0) as server, ExitStack() as stack:
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        target = Target("t", *server.getsockname())
        started = time.monotonic()
        found = port_probe.probe([target] * 10, 0.4, 2, 1.0)
        assert time.monotonic() - started < 2
    told = [one["state"] for one in found]
    # Two at a time, 0.4 s each: the third pair would need longer than the second that there is.
    assert told == sorted(told) and set(told) == {"timeout", "unknown"} and told.count("timeout") <= 4


def test_results_keep_names_and_order() -> None:
    first, second = free_ports(2)
    with socket.create_server(second):
        found = port_probe.probe([Target("a", *first), Target("b", *second)], 3, 1, 10)
    assert found == [
        {"to": "a", "address": ADDRESS, "port": first.port, "state": "refused"},
        {"to": "b", "address": ADDRESS, "port": second.port, "state": "open"},
    ]
    assert port_probe.probe([], 3, 1, 10) == []


def test_ipv6() -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6")
    with server:
        endpoint = Endpoint("::1", server.getsockname()[1])
        assert str(endpoint) == f"[::1]:{endpoint.port}"
        assert states([endpoint]) == ["open"]
    assert states([endpoint]) == ["refused"]

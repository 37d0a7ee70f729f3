# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The parts of the lab that can be judged without root: names, archives, the shim, what ssh is told, the relay."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
LAB = ROOT / "molecule" / "lab"
sys.path.insert(0, str(LAB))

from pdlab import cli, command, driver, hosts, image, network, place


@pytest.fixture
def clamp() -> ModuleType:
    spec = importlib.util.spec_from_file_location("oci_clamp", LAB / "host" / "oci_clamp.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("spec", "meaning"),
    [("p1", ("p1", 16, False)), ("h1:8", ("h1", 8, False)), ("d1:16:bare", ("d1", 16, True)), ("x:0", ("x", 0, False))],
)
def test_host_specifications(spec: str, meaning: tuple[str, int, bool]) -> None:
    assert hosts.parse(spec) == meaning


@pytest.mark.parametrize("spec", ["", "p1:", "p1:many", "p1:8:naked", "p1:8:bare:x", "../p1", "p 1"])
def test_what_is_no_host_is_refused(spec: str) -> None:
    with pytest.raises(place.LabError, match="is no host"):
        hosts.parse(spec)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda command: None if command in ("podman", "ip") else f"/bin/{command}")
    with pytest.raises(place.LabError, match=r"apt-get install .*podman iproute2$"):
        cli.check_machine()


def test_the_lab_says_that_it_needs_root(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert cli.main(["status"]) == 1
    assert "needs root" in capsys.readouterr().err


def test_an_archive_is_what_docker_loads(tmp_path: Path) -> None:
    layers = [b"first layer", b"second layer"]
    for name in ("one.tar", "two.tar"):
        image._write_archive(tmp_path / name, "registry/name:tag", layers)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes(), "equal content, equal id"

    with tarfile.open(tmp_path / "one.tar") as tar:
        members = {member.name: tar.extractfile(member) for member in tar}
        content = {name: file.read() for name, file in members.items() if file is not None}
    (manifest,) = json.loads(content["manifest.json"])
    assert manifest["RepoTags"] == ["registry/name:tag"]
    assert [content[name] for name in manifest["Layers"]] == layers
    config = content[manifest["Config"]]
    assert manifest["Config"] == f"{hashlib.sha256(config).hexdigest()}.json"
    assert json.loads(config)["rootfs"]["diff_ids"] == [
        f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers
    ]


def test_equal_folders_are_equal_layers(tmp_path: Path) -> None:
    for name in ("b", "a"):
        place.write(tmp_path / name / "usr" / "file", "text", 0o755)
    first, second = image._tar(tmp_path / "a"), image._tar(tmp_path / "b")
    assert first == second
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        assert [(member.name, member.uid, member.mode) for member in tar if member.isfile()] == [
            ("./usr/file", 0, 0o755)
        ]


def test_keys_follow_content(tmp_path: Path) -> None:
    place.write(tmp_path / "module.py", "x = 1\n")
    before = place.key(tmp_path, "suite")
    place.write(tmp_path / "__pycache__" / "module.pyc", "by-product")
    assert place.key(tmp_path, "suite") == before
    place.write(tmp_path / "module.py", "x = 2\n")
    assert place.key(tmp_path, "suite") != before


def test_the_shim_lowers_what_cannot_be_had(clamp: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10, 100))
    process = {
        "capabilities": {"bounding": ["CAP_KILL", "CAP_SYS_RESOURCE"]},
        "rlimits": [
            {"type": "RLIMIT_MEMLOCK", "hard": -1, "soft": -1},
            {"type": "RLIMIT_NOFILE", "hard": 50, "soft": 20},
        ],
        "oomScoreAdj": -1000,
    }
    clamp.clamp(process)
    assert process["capabilities"] == {"bounding": ["CAP_KILL"]}
    assert [(limit["soft"], limit["hard"]) for limit in process["rlimits"]] == [(100, 100), (20, 50)]
    assert process["oomScoreAdj"] == int(Path("/proc/self/oom_score_adj").read_text(encoding="ascii"))


@pytest.mark.parametrize(
    ("words", "bundle"),
    [(["create", "--bundle", "/b", "id"], "/b"), (["run", "-b=/b"], "/b"), (["create", "id"], None)],
)
def test_the_shim_finds_the_bundle(clamp: ModuleType, words: list[str], bundle: str | None) -> None:
    assert clamp.option(words, "--bundle", "-b") == bundle


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lab in a folder of the test's own, and root's rights as far as labctl asks for them."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda command: f"/bin/{command}")
    state = tmp_path / "labs" / "test"
    for module in (cli, place):
        monkeypatch.setattr(module, "DIR", tmp_path)
    for module in (hosts, network, place):
        monkeypatch.setattr(module, "STATE", state)
    monkeypatch.setattr(hosts, "INVENTORY", state / "hosts.json")
    monkeypatch.setattr(command, "LOCK", tmp_path / "locks" / "test")
    monkeypatch.setattr(network, "inside_controller", lambda: False)
    return state


def a_host(name: str, index: int) -> hosts.Host:
    return hosts.Host(name, index, 8, False, "/driver:/rootfs")


class Podman:
    """Notes what is asked of it, and holds the INPUT rules of both hosts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **states: str) -> None:
        self.states = states
        self.asked: list[str] = []
        self.rules: dict[str, list[str]] = {}
        monkeypatch.setattr(hosts, "podman", self)
        monkeypatch.setattr(hosts, "state", lambda host: self.states[host.name])
        monkeypatch.setattr(network, "plug", lambda index, up: self.asked.append(f"h{index} {'up' if up else 'down'}"))

    def __call__(self, verb: str, *words: str, check: bool = True) -> str:
        if verb == "exec":
            container, _, _, action, *rule = words
            rules = self.rules.setdefault(container, [])
            if action == "--list-rules":
                return "".join(rules)
            line = f"-A INPUT -s {rule[2]}/32 -j DROP\n"
            if action == "--append":
                rules.append(line)
            else:
                rules.remove(line)
        else:
            self.states[words[0].rpartition("-")[2]] = {"pause": "paused", "unpause": "running"}[verb]
        self.asked.append(verb)
        return ""


def test_faults_can_be_ordered_twice(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts.save({"p1": a_host("p1", 11), "d1": a_host("d1", 12)})
    podman = Podman(monkeypatch, p1="running", d1="running")
    for verb, result in (("pause", "paused"), ("resume", "running")):
        assert [cli.main([verb, "p1"]), cli.main([verb, "p1", "d1"]), cli.main([verb, "p1", "d1"])] == [0, 0, 0]
        assert podman.states == {"p1": result, "d1": result}
    assert podman.asked == ["pause", "pause", "unpause", "unpause"]

    for verb, count in (("cut", 1), ("mend", 0)):
        assert [cli.main([verb, "p1", "d1"]), cli.main([verb, "d1", "p1"])] == [0, 0]
        assert [len(rules) for rules in podman.rules.values()] == [count, count]


@pytest.mark.parametrize("verb", ["pause", "resume", "cut", "mend"])
def test_faults_of_a_host_that_is_off_are_refused(
    verb: str, lab: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.save({"p1": a_host("p1", 11), "d1": a_host("d1", 12)})
    podman = Podman(monkeypatch, p1="running", d1="off")
    assert [cli.main([verb, "d1"]), cli.main([verb, "p1", "d1"])] == [1, 1]
    assert capsys.readouterr().err == "labctl: d1 is off; first: labctl on d1\n" * 2
    assert podman.asked == []


def test_up_leaves_a_cut_cable_out(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    podman = Podman(monkeypatch, p1="running")
    monkeypatch.setattr(hosts, "podman", lambda *_words, check: "running\n")
    monkeypatch.setattr(hosts, "_mount", lambda host: host.folder / "root")
    assert hosts._boot(a_host("p1", 11), "") is None
    assert podman.asked == []


def test_an_unfinished_disk_is_made_anew(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = a_host("p1", 11)
    mounted: list[str] = []
    monkeypatch.setattr(hosts, "run", lambda *words: mounted.append(str(words[0])))

    def interrupted(_: hosts.Host, upper: Path) -> None:
        place.write(upper / "etc/half", "")
        raise KeyboardInterrupt

    monkeypatch.setattr(hosts, "_personalise", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hosts._mount(host)
    assert mounted == []

    monkeypatch.setattr(hosts, "_personalise", lambda _, upper: place.write(upper / "etc/whole", ""))
    hosts._mount(host)
    assert [path.name for path in (host.folder / "upper/etc").iterdir()] == ["whole"]
    monkeypatch.setattr(hosts, "_personalise", interrupted)
    hosts._mount(host)  # a finished one stays
    assert mounted == ["mount", "mount"]


def test_mounts_are_found_below_a_folder_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "none /a\\040lab tmpfs rw 0 0\nnone /a\\040lab/disk overlay rw 0 0\nnone /a\\040labour tmpfs rw 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda _self, encoding: lines)
    assert hosts.mounts(Path("/a lab")) == [Path("/a lab"), Path("/a lab/disk")]


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write(tmp_path / "hosts.json", "before")

    def interrupted(_self: Path, _mode: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "chmod", interrupted)
    with pytest.raises(KeyboardInterrupt):
        place.write(tmp_path / "hosts.json", "after")
    assert (tmp_path / "hosts.json").read_text(encoding="utf-8") == "before"


def test_a_namespace_that_is_not_whole_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def run(*words: str | Path, check: bool = True) -> str:
        done.append(" ".join(map(str, words)))
        return ""  # no default route

    monkeypatch.setattr(network, "run", run)
    monkeypatch.setattr(network, "exists", lambda _: True)
    network.ensure_controller()
    made = done.index(f"ip netns add {place.NAME}")
    assert f"ip netns del {place.NAME}" in done[:made]
    assert done[-1] == f"ip -n {place.NAME} route add unreachable default", "the mark of a whole one comes last"

    done.clear()
    monkeypatch.setattr(network, "run", lambda *words, check=True: done.append("run") or "unreachable default\n")
    network.ensure_controller()
    assert done == ["run"]


def test_one_lab_is_not_two_commands(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with command.claimed(["make", "something"], alone=True):
        assert cli.main(["run", "true"]) == 1
        said = capsys.readouterr().err
        assert "another `labctl run` has lab" in said
        assert "make something)" in said
        assert "LAB_NAME" in said
    with command.claimed(["watch"], alone=False), command.claimed(["look"], alone=False):  # on hosts that are there
        assert cli.main(["run", "--alone", "true"]) == 1
    with command.claimed(["again"], alone=True):
        pass


SUPERVISE = """
import os, signal, sys
sys.path.insert(0, {lab!r})
from pdlab import command
for number in command.INTERRUPTIONS:  # the tests themselves may run under nohup
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
command.GRACE, command.LAST_GRACE = 0.5, 1.0
with command.supervised(sys.argv[1:], os.environ) as (code, interruption):
    print(code, interruption.name if interruption else None)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_outlives_an_interrupted_command(number: signal.Signals, tmp_path: Path) -> None:
    """Neither what ignores the signal nor what lost its parent by it."""
    script = textwrap.dedent("""\
        import signal, subprocess, sys, time
        stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(300)"
        child = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE, start_new_session=True)
        child.stdout.readline()
        open(sys.argv[1], "w").write(f"{child.pid}\\n")
        time.sleep(300)
    """)
    noted = tmp_path / "pid"
    words = [sys.executable, "-c", SUPERVISE.format(lab=str(LAB)), sys.executable, "-c", script, str(noted)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        deadline = time.monotonic() + 30
        while not (noted.exists() and noted.read_text(encoding="ascii").endswith("\n")):
            assert time.monotonic() < deadline, "the command has not begun"
            time.sleep(0.05)
        process.send_signal(number)
        said, _ = process.communicate(timeout=30)
    code, name = said.split()
    assert name == number.name
    assert int(code) != 0
    stat = Path("/proc", noted.read_text(encoding="ascii").strip(), "stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_command_that_ends_by_itself_keeps_its_exit_code() -> None:
    for script, expected in (("exit 3", 3), ("kill -9 $$", 137)):
        with command.supervised(["sh", "-c", script], {}) as (code, interruption):
            assert (code, interruption) == (expected, None)


@pytest.mark.parametrize("interruption", [None, signal.SIGTERM])
def test_an_interrupted_command_takes_its_own_hosts_with_it(
    interruption: signal.Signals | None, lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.save({"p1": a_host("p1", 11)})
    monkeypatch.setattr(network, "ensure_controller", lambda: None)
    removed: list[str] = []
    monkeypatch.setattr(hosts, "remove", lambda found: removed.extend(host.name for host in found))

    @contextlib.contextmanager
    def supervised(*_: object) -> Iterator[tuple[int, signal.Signals | None]]:
        hosts.save({**hosts.load(), "d1": a_host("d1", 12)})
        yield 5, interruption

    monkeypatch.setattr(command, "supervised", supervised)
    assert cli.main(["run", "true"]) == (143 if interruption else 5)
    assert removed == (["d1"] if interruption else [])


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh client")
def test_every_connection_goes_through_the_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to an address that the lab does not know: a playbook may not leave by the machine's own interfaces."""
    monkeypatch.setattr(network, "STATE", tmp_path)
    monkeypatch.setattr(network, "SSH_CONFIG", tmp_path / "ssh_config")
    place.write(tmp_path / "key.pub", "ssh-ed25519 AAAA p1\n")
    network.write_ssh_files({"p1": ("198.18.0.11", tmp_path / "key.pub")})

    assert (tmp_path / "known_hosts").read_text(encoding="ascii") == "p1,198.18.0.11 ssh-ed25519 AAAA\n"
    for host, address in (("p1", "198.18.0.11"), ("192.0.2.1", "192.0.2.1")):
        told = subprocess.run(
            ["ssh", "-G", "-F", str(tmp_path / "ssh_config"), host], capture_output=True, text=True, check=True
        ).stdout
        options = dict(line.split(" ", 1) for line in told.splitlines())
        assert options["hostname"] == address
        assert options["proxycommand"].startswith(f"nsenter --net=/run/netns/{place.NAME} -- ")
        assert options["stricthostkeychecking"] == "true"


def test_the_relay_passes_bytes_both_ways_and_the_end() -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def echo() -> None:
        connection, _ = server.accept()
        with connection:
            while chunk := connection.recv(65536):
                connection.sendall(chunk)

    threading.Thread(target=echo, daemon=True).start()
    command = [sys.executable, "-I", "-S", str(LAB / "relay.py"), "127.0.0.1", str(server.getsockname()[1])]
    sent = bytes(range(256)) * 4096
    done = subprocess.run(command, input=sent, capture_output=True, timeout=30, check=True)
    assert done.stdout == sent


def test_the_relay_says_whom_it_cannot_reach() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    command = [sys.executable, "-I", "-S", str(LAB / "relay.py"), "127.0.0.1", port]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert f"127.0.0.1 port {port}" in done.stderr


def test_every_verb_is_documented() -> None:
    page = (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")
    verbs = cli.parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    assert verbs is not None
    assert [verb for verb in verbs if f"`{verb}" not in page] == []


def test_the_drivers_tools_work_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container mounts hccn_tool and npu-smi as single files; its chips are device nodes, its addresses hccn.conf."""
    monkeypatch.setattr(driver, "DIR", tmp_path)
    layer = driver.layer()
    (tmp_path / "root/dev").mkdir(parents=True)
    (tmp_path / "root/dev/davinci4").touch()
    (tmp_path / "root/etc").mkdir()
    (tmp_path / "root/etc/hccn.conf").write_text(place.npus.hccn_conf(11, "a2", 8))
    for tool, words, said in (
        (
            "usr/local/Ascend/driver/tools/hccn_tool",
            ("-i", "4", "-ip", "-g"),
            "ipaddr:10.20.11.5\nnetmask:255.255.0.0\n",
        ),
        ("usr/local/bin/npu-smi", ("info", "-m"), "Ascend 910B4"),
    ):
        environment = {**os.environ, "PD_REHEARSAL_ROOT": str(tmp_path / "root")}
        command = [str(layer / tool), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert said in done.stdout
        assert done.stderr == ""


def test_chips_of_the_labs_hosts_ping_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All hosts' states lie in one folder that each host has; the path of its own leads there."""
    monkeypatch.setattr(driver, "DIR", tmp_path)
    tool = driver.layer() / driver.TOOLS[place.SIMULATORS / "npu_sim/hccn_tool"]
    fleet = tmp_path / "p1" / hosts.NPUS_THERE
    for name, index in (("p1", 11), ("d1", 12)):
        place.npus.build(fleet / name, fleet, index, "a3", 16)
    hosts.own_npus("p1", tmp_path / "p1")
    (tmp_path / "p1/dev").mkdir()
    (tmp_path / "p1/dev/davinci0").touch()
    environment = {**os.environ, "PD_REHEARSAL_ROOT": str(tmp_path / "p1")}
    for target, received in ((f"{place.npus.vnic_net(12)}.16", 3), (f"{place.npus.vnic_net(13)}.1", 0)):
        command = [str(tool), "-i", "0", "-hccs_ping", "-g", "address", target]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert f"3 packets transmitted, {received} received" in done.stdout
    assert (fleet / "p1/calls.log").read_text().count("\n") == 2

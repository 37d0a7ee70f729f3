# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The simulated hccn_tool and npu-smi answer in the words of the real tools, healthy and with every fault.

tests/unit/data/tool_outputs holds outputs of real tools (addresses replaced) or composed from their format strings.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.module_utils.npu.npu_smi import parse_info
from ansible_collections.ascend.pd_serving.plugins.plugin_utils import npus
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.preflight import faults as preflight_faults
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.preflight import fleets

SIMULATORS = pathlib.Path(__file__).parents[3] / "roles" / "rehearsal" / "files" / "npu_sim"
SAMPLES = pathlib.Path(__file__).parents[1] / "data" / "tool_outputs"
CHIPS = {"a2": 8, "a3": 16, "a5": 8}
NO_ADDRESS = "Get ipconf failed, because no ip was preset there!\n"
COMMAND_FAILED = "Command execute failed!\n"
UNSUPPORTED = "The command is not supported on this product.\n"
BUSY = "hccn_tool is busy, please try again.\n"


class Answer(t.NamedTuple):
    code: int
    out: str


class Host:
    """A simulated host as a rehearsal has it, side by side with others in one folder."""

    def __init__(self, fleet: pathlib.Path, name: str, generation: str) -> None:
        self.generation = generation
        self.root = fleet / "hosts" / name
        self.state = self.root / npus.DIRECTORY
        for chip in range(CHIPS[generation]):
            self.path(f"dev/davinci{chip}").touch()
        self.path("dev/davinci_manager").touch()
        self.number = npus.claim(fleet / "npu_fleet", self.state)
        npus.build(self.state, fleet / "npu_fleet", self.number, generation, CHIPS[generation])
        self.path("etc/hccn.conf").write_text(npus.hccn_conf(self.number, generation, CHIPS[generation]))

    def path(self, name: str) -> pathlib.Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def faults(self, *lines: str) -> None:
        (self.state / "faults").write_text("".join(f"{line}\n" for line in lines))

    def hccn(self, words: str) -> Answer:
        return self.call("hccn_tool", words)

    def smi(self, words: str) -> Answer:
        return self.call("npu-smi", words)

    def call(self, tool: str, words: str, **environment: str) -> Answer:
        done = subprocess.run(**self.command(tool, words, **environment), timeout=30, check=False)
        assert done.returncode != 70, done.stderr
        assert done.stderr == b""
        return Answer(done.returncode, done.stdout.decode())

    def command(self, tool: str, words: str, **environment: str) -> dict[str, t.Any]:
        return {
            "args": ["sh", str(SIMULATORS / tool), *words.split()],
            "env": {"PD_REHEARSAL_ROOT": str(self.root), "PATH": os.environ["PATH"], **environment},
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }

    def address(self, chip: int) -> str:
        return f"{npus.roce_net(self.number)}.{chip + 1}"

    def vnic(self, chip: int) -> str:
        return f"{npus.vnic_net(self.number)}.{chip + 1}"

    def calls(self) -> list[list[str]]:
        """START END EXIT TOOL ARGUMENTS of every call."""
        return [line.split(maxsplit=4) for line in (self.state / "calls.log").read_text().splitlines()]


@pytest.fixture
def fleet(tmp_path: pathlib.Path) -> t.Callable[[str, str], Host]:
    return lambda name, generation: Host(tmp_path, name, generation)


@pytest.fixture
def a2(tmp_path: pathlib.Path) -> Host:
    return Host(tmp_path, "p1", "a2")


@pytest.fixture
def a3(tmp_path: pathlib.Path) -> Host:
    return Host(tmp_path, "p1", "a3")


@pytest.fixture
def a5(tmp_path: pathlib.Path) -> Host:
    return Host(tmp_path, "p1", "a5")


@pytest.fixture(params=["a2", "a3"])
def host(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Host:
    return Host(tmp_path, "p1", request.param)


def sample(name: str) -> str:
    return (SAMPLES / f"{name}.txt").read_text(encoding="utf-8")


# The handed outputs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "generation", "faults", "command", "code"),
    [
        ("hccn-err-conf-access", "a2", ["error ip 0 conf"], "-i 0 -ip -g", 1),
        ("hccn-err-device-absent", "a2", [], "-i 8 -link -g", 1),
        ("hccn-gateway-not-set", "a2", ["gateway 0 unset"], "-i 0 -gateway -g", 13),
        ("hccn-gateway-ok", "a2", ["gateway 0 192.0.2.1"], "-i 0 -gateway -g", 0),
        ("hccn-hccsping-unsupported", "a2", [], "-i 0 -hccs_ping -g address 192.0.2.201", 1),
        ("hccn-hccsping-a3-ok", "a3", ["vnic 4 192.0.2.201"], "-i 0 -hccs_ping -g address 192.0.2.201", 0),
        ("hccn-ip-a2-ok", "a2", ["address 0 192.0.2.80", "netmask 0 255.255.255.0"], "-i 0 -ip -g", 0),
        ("hccn-ip-not-set", "a2", ["address 3 unset"], "-i 3 -ip -g", 13),
        ("hccn-link-down", "a2", ["link 0 down"], "-i 0 -link -g", 0),
        ("hccn-link-up", "a2", [], "-i 0 -link -g", 0),
        ("hccn-netdetect-a5", "a5", ["netdetect 0 192.0.2.1"], "-g -netdetect -i 0", 0),
        ("hccn-nethealth-detect-ip-set", "a2", ["net_health 2 Detect ip set"], "-i 2 -net_health -g", 0),
        ("hccn-nethealth-success", "a2", [], "-i 0 -net_health -g", 0),
        ("hccn-vnic-a3-up", "a3", ["vnic 0 192.0.2.199", "roce_netmask 255.255.255.0"], "-i 0 -vnic -g", 0),
        ("hccn-tls-full-with-cert", "a2", ["tls 0 on cert"], "-i 0 -tls -g", 0),
        ("npusmi-fail-8005", "a2", ["error info * 8005"], "info", 1),
        ("npusmi-fail-8020", "a2", ["error info * 8020"], "info", 1),
        ("npusmi-m-a3", "a3", [], "info -m", 0),
        ("npusmi-procmem-bad-name", "a2", ["process 0 123 - 456"], "info -t proc-mem -i 0 -c 0", 0),
        ("npusmi-spod-a3-ok", "a3", ["server_index 4"], "info -t spod-info -i 0 -c 0", 0),
        ("npusmi-spod-other-pod", "a3", ["server_index 4", "superpod 1"], "info -t spod-info -i 0 -c 0", 0),
        ("npusmi-spod-unpadded", "a3", ["server_index 4", "spod_form unpadded"], "info -t spod-info -i 0 -c 0", 0),
    ],
)
def test_handed_outputs(
    fleet: t.Callable[[str, str], Host], name: str, generation: str, faults: list[str], command: str, code: int
) -> None:
    host = fleet("p1", generation)
    host.faults(*faults)
    answer = host.call("npu-smi" if name.startswith("npusmi") else "hccn_tool", command)
    assert answer == (code, sample(name))


def test_handed_ping(fleet: t.Callable[[str, str], Host]) -> None:
    """Times of the second and third packet are the simulator's own."""
    one, other = fleet("p1", "a2"), fleet("p2", "a2")
    other.faults("address 1 192.0.2.81")
    code, out = one.hccn("-i 0 -ping -g address 192.0.2.81")
    assert code == 0
    masked = r"time=0\.\d{6}ms"
    assert re.sub(masked, "time", out) == re.sub(masked, "time", sample("hccn-ping-a2-ok"))


def test_handed_tls_of_all_chips(a2: Host) -> None:
    switches = [a2.hccn(f"-i {chip} -tls -g").out.splitlines()[0] for chip in range(8)]
    assert switches == sample("hccn-tls-a2-all-off").splitlines()


def test_handed_configuration(a2: Host) -> None:
    """Live addresses without a driver's state, as in an engine's container, are those of hccn.conf."""
    shutil.rmtree(a2.state)
    a2.path("etc/hccn.conf").write_text(sample("hccn-conf-a2-ok"))
    assert a2.hccn("-i 7 -ip -g") == (0, "ipaddr:192.0.2.87\nnetmask:255.255.255.0\n")
    assert a2.hccn("-i 0 -net_health -g").out == "net health status: Init\n", "no netdetect address there"
    assert a2.smi("info")[0] == 0


def as_faults(table: str) -> list[str]:
    """The faults that make the simulated table of `npu-smi info` this one."""
    lines, chip = [], -1
    version = re.search(r"Version: (\S+)", table)
    assert version is not None
    lines.append(f"layout {version[1]}")
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines() if line[0] == "|"]
    per_card = 2 if "Phy-ID" in table else 1
    for first, second in itertools.pairwise(rows):
        if len(first) == 3 and second[1].startswith("0000:"):
            card, name = first[0].split()
            chip = int(second[0].split()[-1]) if per_card == 2 else int(card)
            power, temperature = first[2].split()[:2]
            aicore, *_, used, total = second[2].replace("/", " ").split()
            lines += [f"name {chip} {name}", f"health {chip} {first[1]}", f"bus {chip} {second[1]}"]
            lines += [f"power {chip} {power}", f"temperature {chip} {temperature}", f"aicore {chip} {aicore}"]
            lines += [f"hbm {chip} {used}", f"hbm_total {chip} {total}"]
    for row in rows:
        if len(row) in (4, 5) and row[1].isdigit():
            card, die = row[0].split()
            inside = row[4] if len(row) == 5 and row[4] != "NA" else ""
            lines.append(f"process {int(card) * per_card + int(die)} {row[1]} {row[2] or '-'} {row[3]} {inside}")
    return lines


@pytest.mark.parametrize(
    ("name", "generation", "chips"),
    [
        ("npusmi-a2-24.1.rc3-subset-0347", "a2", {0, 3, 4, 7}),
        ("npusmi-a2-25.2.0-one-process", "a2", set(range(8))),
        ("npusmi-a2-26.0.rc1-wide-blank-name", "a2", {0, 1}),
        ("npusmi-a2-26.1.0-wide-na", "a2", set(range(8))),
        ("npusmi-a3-24.1.rc3.7-idle", "a3", set(range(16))),
    ],
)
def test_handed_tables(fleet: t.Callable[[str, str], Host], name: str, generation: str, chips: set[int]) -> None:
    host = fleet("p1", generation)
    host.faults(*as_faults(sample(name)))
    for chip in set(range(CHIPS[generation])) - chips:
        host.path(f"dev/davinci{chip}").unlink()
    assert host.smi("info") == (0, sample(name))


def test_handed_process_block(a3: Host) -> None:
    block = sample("npusmi-a3-process-block-26.x")
    a3.faults(*as_faults("Version: 26.1.0\n" + block.replace("\n\n", "\n") + "| Phy-ID |\n"))
    for chip in range(4, 16):
        a3.path(f"dev/davinci{chip}").unlink()
    assert a3.smi("info").out.endswith(block)


# Queries --------------------------------------------------------------------------------------------------------------


def test_a_healthy_chip(host: Host) -> None:
    conf = dict(line.split("=") for line in host.path("etc/hccn.conf").read_text().splitlines())
    answers = {
        "-link": "link status: UP\n",
        "-net_health": "net health status: Success\n",
        "-netdetect": f"netdetect address: {conf['netdetect_5']}\n",
        "-gateway": f"default gateway:{conf['gateway_5']}, Iface:eth5\n",
        "-ip": f"ipaddr:{conf['address_5']}\nnetmask:{conf['netmask_5']}\n",
    }
    for query, answer in answers.items():
        assert host.hccn(f"-i 5 {query} -g") == (0, answer)
    assert "\tIfname: 400GE1/1/3:2\n" in host.hccn("-i 5 -lldp -g").out
    tls = host.hccn("-i 5 -tls -g").out
    assert tls.startswith(
        "dev_id:5, tls switch[0](0:disable, 1:enable), tls preconfigured[1](0:non-preset, 1:preset), "
    )
    assert "No certificate found, please set certs firstly!" in tls


def test_virtual_addresses_are_an_a3_thing(host: Host) -> None:
    answer = host.hccn("-i 1 -vnic -g")
    if host.generation == "a3":
        assert answer == (
            0,
            f"vnic link status: UP\nvnic ipaddr: {host.vnic(1)}\nvnic netmask: 255.255.0.0\n",
        )
    else:
        assert answer == (1, UNSUPPORTED)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "-link -g",
        "-i x -link -g",
        "-i 0 -link",
        "-i 0 -link -g now",
        "-i 0 -nothing -g",
        "-i 0 -ping -g",
        "-i 0 -ping -g address",
        "-i 0 -ping -g address 10.20.1",
        "-i 0 -ping -g address 10.20.1.256",
        "-i 0 -ping -g address host",
        "-i 0 -ping -g address 10.20.1.1 cnt 3",
        "-i 0 -hccs_ping -g address 10.120.1.1 cnt 0",
        "-i 0 -hccs_ping -g address 10.120.1.1 sdid 4",
        "-i 0 -tls -s enable 2",
        "-i 0 -ip -s address 10.0.0.1",
        "-g -link -i 0",
        "-i 0 -g -link",
    ],
)
def test_what_is_not_understood(host: Host, words: str) -> None:
    assert host.hccn(words) == (1, COMMAND_FAILED)


def test_the_tables_are_straight(host: Host) -> None:
    for layout in ("24.1.rc3", "25.2.0", "26.1.0"):
        host.faults(f"layout {layout}", "process 2 4242 python3 3000", "process 2 4243 VLLM::Worker 113 77")
        lines = host.smi("info").out.splitlines()
        assert {len(line) for line in lines} == {98 if layout < "26" else 116}
        assert host.smi("-v").out == f"npu-smi version: {layout}\n"
        assert sum("4242" in line or "4243" in line for line in lines) == 2
        assert sum("No running processes found" in line for line in lines) == 7
        rows = [line for line in lines if "0000:" in line]
        assert len(rows) == len({row.split("|")[2] for row in rows}) == CHIPS[host.generation], "a bus id each"
        used = {"a2": 2843, "a3": 3433}[host.generation]
        assert sum(str(used + 3113) in row for row in rows) == 1, "what a process holds is used"


def test_running_engines_are_processes(a3: Host) -> None:
    """An engine of a rehearsal holds its chips' files locked; a clean fleet that serves is not idle."""
    with a3.path("dev/davinci5").open("rb") as chip:
        fcntl.flock(chip, fcntl.LOCK_EX)
        out = a3.smi("info").out
        row = [cell.strip() for line in out.splitlines() if f" {os.getpid()} " in line for cell in line.split("|")]
        assert row[1].split() == ["2", "1"], "card and chip"
        assert row[2:5:2] == [str(os.getpid()), "54737"]
        assert f"Process id:{os.getpid()} " in a3.smi("info -t proc-mem -i 2 -c 1").out
    assert str(os.getpid()) not in a3.smi("info").out.split("Process id", 1)[1]
    assert a3.smi("info -t proc-mem -i 2 -c 1") == (0, "")


def test_running_engines_fit_into_a_chip(host: Host) -> None:
    """Else the table is one that no driver prints, and preflight cannot read it."""
    with host.path("dev/davinci1").open("rb") as chip:
        fcntl.flock(chip, fcntl.LOCK_EX)
        read = parse_info(host.smi("info").out)
    assert len(read["rows"]) == CHIPS[host.generation]
    assert all(row["hbm_used_mb"] < row["hbm_total_mb"] for row in read["rows"])


def test_the_table_of_an_a5(a5: Host) -> None:
    """Form of upstream's A5 rows: a bar after the id, an empty cell below it."""
    a5.faults("power 0 195.6", "temperature 0 56", "bus 0 0000:61:00.0", "process 0 77 python3 100", "hbm 0 5239")
    lines = a5.smi("info").out.splitlines()
    assert (
        "| NPU ID | Name             | Health        | Power(W)    Temp(C)           Hugepages-Usage(page) |" in lines
    )
    assert (
        "| 0      | Ascend950PR      | OK            | 195.6       56                0     / 0             |" in lines
    )
    assert (
        "|        |                  | 0000:61:00.0  | 0           0    / 0          5239  / 131072        |" in lines
    )
    assert (
        "| NPU ID                    | Process id    | Process name             | Process memory(MB)       |" in lines
    )
    assert {len(line) for line in lines} == {99}


def test_the_table_of_an_a5_is_read(a5: Host) -> None:
    a5.faults("process 3 77 python3 100", "health 5 Alarm")
    read = parse_info(a5.smi("info").out)
    assert read["state"] == "ok", read
    assert [(row["card"], row["name"], row["health"]) for row in read["rows"]] == [
        (card, "Ascend950PR", "Alarm" if card == 5 else "OK") for card in range(8)
    ]
    assert [(process["card"], process["pid"]) for process in read["processes"]] == [(3, 77)]


def test_health_and_names(a3: Host) -> None:
    a3.faults("health 3 Alarm", "health 5 -", "name * 910C1")
    lines = a3.smi("info").out.splitlines()
    assert [row.split("|")[2].strip() for row in lines if "910C1" in row] == [
        {3: "Alarm", 5: "-"}.get(chip, "OK") for chip in range(16)
    ]
    assert "Health Status                  : Alarm" in a3.smi("info -t health -i 1 -c 1").out


def test_the_map_follows_the_chips_that_are_there(a2: Host) -> None:
    for chip in (1, 2, 5, 6):
        a2.path(f"dev/davinci{chip}").unlink()
    rows = [re.split(r"\s{2,}", line.strip()) for line in a2.smi("info -m").out.splitlines()[1:]]
    assert [row[2:4] for row in rows if row[4] != "Mcu"] == [["0", "0"], ["1", "3"], ["2", "4"], ["3", "7"]]
    assert "Total Count                    : 4" in a2.smi("info -l").out


def test_a_container_sees_its_chips(a3: Host) -> None:
    out = a3.call("npu-smi", "info -m", PD_REHEARSAL_CHIPS="4,5").out
    assert [line.split()[3] for line in out.splitlines()[1:]] == ["4", "5", "-"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("info -t spod-info -i 8 -c 0", "Error parameter of -i\n"),
        ("info -t spod-info -i 15 -c 1", "Error parameter of -i\n"),
        ("info -t spod-info -i 0 -c 2", "Error parameter of -c\n"),
        ("info -t spod-info -c 0", "Error parameter of -i\n"),
        ("info -t weather -i 0", "Error parameter of -t\n"),
        ("info -x", "Error parameter of -x\n"),
    ],
)
def test_wrong_pairs_fail(a3: Host, words: str, said: str) -> None:
    """The tutorial's loop over -i 0..15 fails for one half on A3, where -i is the card."""
    assert a3.smi(words) == (1, said)


def test_super_pods(fleet: t.Callable[[str, str], Host]) -> None:
    hosts = [fleet("p1", "a3"), fleet("d1", "a3")]
    told = [
        host.smi(f"info -t spod-info -i {card} -c {die}").out for host in hosts for card in range(8) for die in (0, 1)
    ]
    fields = [dict(re.findall(r"\t(.*?) +: (\d+)\n", text)) for text in told]
    assert len({field["SDID"] for field in fields}) == 32
    assert {field["Super Pod ID"] for field in fields} == {"0"}
    assert len({field["Server Index"] for field in fields}) == 2
    hosts[0].faults("superpod 9", "sdid 1 77", "spod_form table")
    out = hosts[0].smi("info -t spod-info -i 0 -c 1").out
    assert "| SDID : 77 | Super Pod Size : 384 |\n| Super Pod ID : 9 | Server Index : 1 |\n" in out


def test_super_pods_of_other_generations(a2: Host, fleet: t.Callable[[str, str], Host]) -> None:
    assert a2.smi("info -t spod-info -i 0 -c 0") == (1, "This device does not support querying spod-info.\n")
    a5 = fleet("d1", "a5")
    out = a5.smi("info -t spod-info -i 0 -c 0").out
    assert "SDID" not in out
    assert "Super Pod Type" in out
    assert "Server Index" in out
    a5.faults("spod_form chassis")
    assert "Chassis ID" in a5.smi("info -t spod-info -i 0 -c 0").out


def test_the_syntax_of_an_a5(a5: Host) -> None:
    ports = "".join(f"port {port} : UP\n" for port in range(9))
    assert a5.hccn("-g -link -i 0") == (0, f"link status : UP\n{ports}")
    a5.faults("port 0 3 initial", "link 1 na", "tls 2 on device")
    assert a5.hccn("-g -link -i 0").out == f"link status : PARTIAL LINK\n{ports}".replace("3 : UP", "3 : INITIAL")
    assert a5.hccn("-g -link -i 0 -u 0 -p 3").out == "link status : INITIAL\n"
    assert a5.hccn("-g -link -i 1").out.startswith("link status : NA\nport 0 : NA\n")
    assert a5.hccn("-g -tls -i 2 -host").out.startswith("device 2, tls switch[1](0:disable, 1:enable), ")
    assert a5.hccn("-g -ip -i 0") == (13, "Get ip failed, because no ip was preset there!\n")
    assert "| 0       | 3       | 400 " in a5.hccn("-g -dev_info -i 0").out
    assert a5.hccn("-g -dev_info") == a5.hccn("-g -dev_info -i 0")
    assert a5.hccn("-i 0 -link -g") == (1, COMMAND_FAILED), "the older syntax"
    assert a5.hccn("-g -link -i 0 -p 9") == (1, COMMAND_FAILED)


def test_pings_of_an_a5(fleet: t.Callable[[str, str], Host]) -> None:
    one, other = fleet("p1", "a5"), fleet("d1", "a5")
    words = "-t -ping -i 0 -src_address 192.0.2.1 -dst_address 192.0.2.2"
    one.faults("address 0 192.0.2.1")
    code, out = one.hccn(words)
    assert code == 0
    assert out.splitlines()[1] == "recv time out seq:0"
    other.faults("address 0 192.0.2.2")
    assert "3 packets transmitted, 3 received, 0.00% packet loss" in one.hccn(words).out


# Pings ----------------------------------------------------------------------------------------------------------------


def received(answer: Answer) -> int:
    """How many packets came back. The exit code is 0 whatever came."""
    assert answer.code == 0
    footer = re.search(r"^3 packets transmitted, (\d) received, (\d+\.\d\d)% packets? loss$", answer.out, re.MULTILINE)
    assert footer is not None
    assert footer[2] == {"0": "100.00", "1": "66.67", "2": "33.33", "3": "0.00"}[footer[1]]
    return int(footer[1])


def test_pings_reach_the_fleet_and_nothing_else(fleet: t.Callable[[str, str], Host]) -> None:
    one, other = fleet("p1", "a2"), fleet("d1", "a2")
    assert received(one.hccn(f"-i 0 -ping -g address {other.address(7)}")) == 3
    assert received(one.hccn(f"-i 0 -ping -g address {one.address(1)}")) == 3
    assert received(one.hccn(f"-i 0 -ping -g address {npus.gateway(1)}")) == 3
    for nowhere in (other.address(8), f"{npus.roce_net(3)}.1", "192.0.2.9", other.vnic(0)):
        lost = one.hccn(f"-i 0 -ping -g address {nowhere}")
        assert received(lost) == 0
        assert "recv time out seq=2" in lost.out


def test_hccs_pings_take_virtual_addresses(fleet: t.Callable[[str, str], Host]) -> None:
    one, other = fleet("p1", "a3"), fleet("d1", "a3")
    assert received(one.hccn(f"-i 3 -hccs_ping -g address {other.vnic(15)}")) == 3
    assert received(one.hccn(f"-i 0 -hccs_ping -g address {one.vnic(1)}")) == 3
    for wrong in (other.address(15), "127.16.1.1"):
        lost = one.hccn(f"-i 3 -hccs_ping -g address {wrong}")
        assert received(lost) == 0
        assert "This pkt check recv msg fail!\nrecv seq 0, time = 0.000us, L1 plane check result = 0x0\n" in lost.out
        assert lost.out.endswith("TP95 time 0.000us\nCmd executed successfully!\n"), "success only in words"
    sdid = re.search(r"SDID +: (\d+)", other.smi("info -t spod-info -i 7 -c 1").out)
    assert sdid is not None
    assert f"PING {other.vnic(15)}\n" in one.hccn(f"-i 0 -hccs_ping -g sdid {sdid[1]} pkt 64 interval 10 timeout 5").out
    assert "5 packets transmitted, 5 received" in one.hccn(f"-i 0 -hccs_ping -g address {other.vnic(0)} cnt 5").out


def test_dies_of_one_card_do_not_meet_over_roce(fleet: t.Callable[[str, str], Host]) -> None:
    one, other = fleet("p1", "a3"), fleet("d1", "a3")
    assert received(one.hccn(f"-i 2 -ping -g address {one.address(3)}")) == 0
    assert received(one.hccn(f"-i 2 -ping -g address {one.address(2)}")) == 3
    assert received(one.hccn(f"-i 2 -ping -g address {one.address(4)}")) == 3
    assert received(one.hccn(f"-i 2 -ping -g address {other.address(3)}")) == 3


def test_what_takes_a_chip_out_of_the_network(fleet: t.Callable[[str, str], Host]) -> None:
    one, other = fleet("p1", "a3"), fleet("d1", "a3")
    roce, hccs = f"-i 0 -ping -g address {other.address(5)}", f"-i 0 -hccs_ping -g address {other.vnic(5)}"
    for fault, reached in {
        "link 5 down": (0, 3),
        "address 5 unset": (0, 3),
        "vnic_link 5 down": (3, 0),
        "vnic 5 192.0.2.7": (3, 0),
        "absent 5": (0, 0),
        "link 6 down": (3, 3),
    }.items():
        other.faults(fault)
        assert (received(one.hccn(roce)), received(one.hccn(hccs))) == reached, fault
    other.faults()
    for fault, reached in {"link 0 down": (0, 3), "address 0 unset": (0, 3), "vnic_link 0 down": (3, 0)}.items():
        one.faults(fault)
        assert (received(one.hccn(roce)), received(one.hccn(hccs))) == reached, fault
    one.faults()
    other.path("dev/davinci5").unlink()
    assert (received(one.hccn(roce)), received(one.hccn(hccs))) == (0, 0)


def test_lost_packets(fleet: t.Callable[[str, str], Host]) -> None:
    one, other, third = fleet("p1", "a3"), fleet("d1", "a3"), fleet("d2", "a3")
    one.faults(f"ping 2 lost 33 to {other.vnic(2)}", "ping 3 lost 66", "ping 4 plane 0x1", "ping 5 occupied")
    assert received(one.hccn(f"-i 2 -hccs_ping -g address {other.vnic(2)}")) == 2
    assert received(one.hccn(f"-i 2 -hccs_ping -g address {third.vnic(2)}")) == 3
    assert received(one.hccn(f"-i 3 -ping -g address {other.address(3)}")) == 1
    assert "L1 plane check result = 0x1" in one.hccn(f"-i 4 -hccs_ping -g address {other.vnic(2)}").out
    assert one.hccn(f"-i 5 -hccs_ping -g address {other.vnic(2)}") == (
        1,
        "The device is occupied. Please try again later.\n",
    )


@pytest.mark.parametrize(
    ("query", "fate", "said"),
    [
        ("ping", "unreachable", "Destination Host Unreachable"),
        ("ping", "too_long", "Message too long"),
        ("ping", "timeout", "recv time out seq=0"),
        ("hccs_ping", "not_started", "This pkt ping not start to send!"),
        ("hccs_ping", "send_fail", "This pkt send fail!"),
        ("hccs_ping", "recv_fail", "This pkt check recv msg fail!"),
    ],
)
def test_words_of_failed_pings(a3: Host, query: str, fate: str, said: str) -> None:
    a3.faults(f"ping 0 {fate}")
    answer = a3.hccn(f"-i 0 -{query} -g address {a3.vnic(4)}")
    assert received(answer) == 0
    assert said in answer.out.splitlines()


# Faults ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "words", "answer"),
    [
        ("link 5 down", "-i 5 -net_health -g", (0, "net health status: Fault\n")),
        ("netdetect 5 unset", "-i 5 -net_health -g", (0, "net health status: Init\n")),
        ("netdetect 5 unset", "-i 5 -netdetect -g", (0, "netdetect address: 0.0.0.0\n")),
        ("netdetect_form addr", "-i 5 -netdetect -g", (0, "netdetect addr: 10.20.0.1\n")),
        ("lldp 5 none", "-i 5 -lldp -g", (0, "")),
        ("absent 5", "-i 5 -tls -g", (1, "The device is not exist!\n")),
        ("error link 5 denied", "-i 5 -link -g", (1, "permission denied: pls check this cmd run permission.\n")),
        ("error * 5 control_link", "-i 5 -link -g", (1, "Control link unreachable.\n")),
        ("error * * vm", "-i 5 -gateway -g", (1, "The VM does not support this command.\n")),
        ("garbled link 5", "-i 5 -link -g", (0, "link st")),
        ("garbled link 5 empty", "-i 5 -link -g", (0, "")),
        ("garbled link 5 crlf", "-i 5 -link -g", (0, "link status: UP\r\n")),
        ("garbled ip 5 reversed", "-i 5 -ip -g", (0, "netmask:255.255.0.0\nipaddr:10.20.1.6\n")),
        ("garbled gateway 5 digits", "-i 5 -gateway -g", (0, "default gateway:##.##.#.#, Iface:eth#\n")),
        (
            "garbled link 5 noise",
            "-i 5 -link -g",
            (0, "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\nlink status: UP\n"),
        ),
        ("tls 5 silent", "-i 5 -tls -g", (0, "No certificate found, please set certs firstly!\n")),
    ],
)
def test_faults(a2: Host, fault: str, words: str, answer: tuple[int, str]) -> None:
    a2.faults("# one line", fault)
    healthy = a2.hccn(words.replace("-i 5", "-i 6"))
    assert a2.hccn(words) == answer
    if " 5" in fault:
        assert healthy != answer, "the other chips are well"
        assert healthy.code == 0
    a2.faults()
    assert a2.hccn(words) != answer, "faults end with their lines"


def test_old_drivers_and_certificates(a2: Host) -> None:
    a2.faults("tls * old", "tls 1 on expired", "tls 2 near")
    assert a2.hccn("-i 0 -tls -g").out.startswith(
        "dev_id:0, tls switch[0](0:disable, 1:enable), tls alarm time threshold[60]days\n"
    )
    assert "tls expiration status[2]" in a2.hccn("-i 1 -tls -g").out
    assert "tls expiration status[1]" in a2.hccn("-i 2 -tls -g").out


def test_any_output_at_all(a2: Host) -> None:
    (a2.state / "strange").write_text("链路状态: 正常\n", encoding="utf-8")
    a2.faults("answer link 3 strange 7", "answer info * strange")
    assert a2.hccn("-i 3 -link -g") == (7, "链路状态: 正常\n")
    assert a2.smi("info") == (0, "链路状态: 正常\n")
    assert a2.hccn("-i 2 -link -g").code == 0


def test_configuration_files_that_are_none(a2: Host) -> None:
    conf = a2.path("etc/hccn.conf")
    conf.unlink()
    for _ in range(2):
        answer = a2.hccn("-i 0 -ip -g")
        assert answer == (1, sample("hccn-err-conf-access"))
        assert a2.hccn("-i 0 -link -g").code == 0
        conf.mkdir(exist_ok=True)


def test_a_fault_nobody_knows_is_no_pass(a2: Host) -> None:
    for line in ("linked 3 down", "link x down", "link 16 down", "garbled Link 3", "superpod"):
        a2.faults(line)
        done = subprocess.run(**a2.command("hccn_tool", "-i 0 -link -g"), check=False)
        assert done.returncode == 70, line
        assert b"simulator:" in done.stderr
        assert done.stdout == b""


def test_later_lines_win(a2: Host) -> None:
    a2.faults("link * down", "link 3 up")
    assert [a2.hccn(f"-i {chip} -link -g").out for chip in (2, 3)] == ["link status: DOWN\n", "link status: UP\n"]


# One at a time --------------------------------------------------------------------------------------------------------


def test_two_at_once(fleet: t.Callable[[str, str], Host]) -> None:
    one, other = fleet("p1", "a2"), fleet("d1", "a2")
    one.faults("delay_ms 1500")
    with subprocess.Popen(**one.command("hccn_tool", "-i 0 -link -g")) as first:
        until(lambda: locked(one))
        assert one.hccn("-i 1 -link -g") == (1, BUSY)
        assert other.hccn("-i 1 -link -g").code == 0, "a lock per host"
        assert first.communicate()[0] == b"link status: UP\n"
    one.faults()
    assert one.hccn("-i 1 -link -g").code == 0
    assert [call[2] for call in one.calls()] == ["1", "0", "0"]
    start, end = map(float, one.calls()[1][:2])
    assert end - start >= 1.5


def test_of_many_at_once_one_has_it(a2: Host) -> None:
    a2.faults("delay_ms 1000")
    with contextlib.ExitStack() as stack:
        calls = [
            stack.enter_context(subprocess.Popen(**a2.command("hccn_tool", f"-i {chip} -link -g"))) for chip in range(8)
        ]
        said = sorted(call.communicate()[0].decode() for call in calls)
    assert said == [BUSY] * 7 + ["link status: UP\n"]
    a2.faults()
    assert a2.hccn("-i 1 -link -g").code == 0


def test_a_killed_holder_holds_nothing(a2: Host) -> None:
    for fault, query in (("hang 3", "link"), ("hang 3 tls", "tls"), ("delay_ms 60000", "link")):
        a2.faults(fault)
        with subprocess.Popen(**a2.command("hccn_tool", f"-i 3 -{query} -g"), start_new_session=True) as hanging:
            until(lambda: locked(a2))
            assert a2.hccn("-i 0 -link -g") == (1, BUSY)
            # The tool alone: whoever gives up on it may not know of its children.
            hanging.kill()
            hanging.wait()
            a2.faults()
            assert a2.hccn("-i 0 -link -g").code == 0, fault
            if fault.startswith("delay"):
                os.killpg(hanging.pid, signal.SIGKILL)
    assert sum(call[2] == "hang" for call in a2.calls()) == 2


def locked(host: Host) -> bool:
    """Looked at, not tried: trying would itself make a call busy."""
    lock = host.state / "lock"
    owner = lock.read_text().partition("\n")[0] if lock.exists() else ""
    return owner != "" and pathlib.Path("/proc", owner).exists()


def until(ready: t.Callable[[], bool]) -> None:
    for _ in range(500):
        if ready():
            return
        time.sleep(0.02)
    pytest.fail("it never happened")


def test_busy_for_a_while(a2: Host) -> None:
    a2.faults("busy 2")
    assert [a2.hccn("-i 0 -link -g").out for _ in range(4)] == [BUSY, BUSY, "link status: UP\n", "link status: UP\n"]
    a2.faults()
    assert a2.hccn("-i 0 -link -g").code == 0
    a2.faults("busy 2")
    assert a2.hccn("-i 0 -link -g") == (1, BUSY), "counted anew"


# Calls and setters ----------------------------------------------------------------------------------------------------


def test_every_call_is_logged(a3: Host) -> None:
    a3.hccn("-i 3 -link -g")
    a3.hccn("-i 99 -link -g")
    a3.smi("info -t spod-info -i 0 -c 1")
    assert [call[2:] for call in a3.calls()] == [
        ["0", "hccn_tool", "-i 3 -link -g"],
        ["1", "hccn_tool", "-i 99 -link -g"],
        ["0", "npu-smi", "info -t spod-info -i 0 -c 1"],
    ]
    moments = [float(moment) for call in a3.calls() for moment in call[:2]]
    assert moments == sorted(moments)


def tree(root: pathlib.Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "calls.log"}


def test_queries_change_nothing_and_setters_do(a3: Host) -> None:
    a3.hccn("-i 0 -link -g")
    before = tree(a3.root)
    for query in ("link", "net_health", "netdetect", "gateway", "ip", "vnic", "tls", "lldp"):
        a3.hccn(f"-i 3 -{query} -g")
    a3.smi("info")
    assert tree(a3.root) == before
    for words in (
        "-i 3 -tls -s enable 1",
        "-i 3 -ip -s address 192.0.2.3 netmask 255.255.255.0",
        "-i 3 -gateway -s gateway 192.0.2.1",
        "-i 3 -netdetect -s address 192.0.2.2",
    ):
        assert a3.hccn(words) == (0, "Cmd executed successfully!\n")
    assert "tls switch[1]" in a3.hccn("-i 3 -tls -g").out
    assert a3.hccn("-i 3 -ip -g").out == "ipaddr:192.0.2.3\nnetmask:255.255.255.0\n"
    conf = a3.path("etc/hccn.conf").read_text()
    for line in ("address_3=192.0.2.3", "gateway_3=192.0.2.1", "netdetect_3=192.0.2.2", f"address_4={a3.address(4)}"):
        assert conf.splitlines().count(line) == 1
    assert len(conf.splitlines()) == 64
    assert a3.hccn("-i 3 -link -s down").code == 0
    assert a3.hccn("-i 3 -link -g").out == "link status: DOWN\n"
    assert a3.smi("set -t reset -i 0 -c 0").code == 0
    assert sum(" -s " in call[4] or call[4].startswith("set ") for call in a3.calls()) == 6


def test_a_call_takes_milliseconds(a3: Host, record_property: t.Callable[[str, object], None]) -> None:
    """Told, not judged: a loaded machine is no fault of the simulators (pytest -s shows it)."""
    for tool, words in (("hccn_tool", "-i 3 -link -g"), ("npu-smi", "info"), ("npu-smi", "info -m")):
        took = []
        for _ in range(10):
            start = time.perf_counter()
            assert a3.call(tool, words).code == 0
            took.append(time.perf_counter() - start)
        record_property(f"{tool} {words} ms", round(min(took) * 1000, 1))
        print(f"{tool} {words}: {min(took) * 1000:.1f} ms at best, {sorted(took)[5] * 1000:.1f} ms in the middle")


# What preflight tells people to type ----------------------------------------------------------------------------------

PLACEHOLDERS = {
    "N": "0",
    "A": "192.0.2.9",
    "M": "255.255.255.0",
    "ADDRESS": "192.0.2.9",
    "GATEWAY": "192.0.2.1",
    "NETMASK": "255.255.255.0",
    "UDIE": "0",
    "PORT": "1",
    "...": "enable 0",
}


def typed(fixes: t.Iterable[str]) -> t.Iterator[str]:
    """Every whole command of hccn_tool in these texts, with placeholders and loops filled in."""
    for fix in fixes:
        for command in re.findall(r"`([^`]*)`", fix):
            loop = re.search(r"for i in ([0-9 ]+); do", command)
            for call in re.findall(r"hccn_tool ([^`;]+)", command):
                for chip in loop[1].split() if loop else ["0"]:
                    words = (PLACEHOLDERS.get(word, word) for word in call.replace("$i", chip).split())
                    yield " ".join(words)


def a5_faults() -> t.Iterator[fleets.Case]:
    """Each thing that can be wrong with what A5's tool says: of one chip, of all of a host, of half the fleet."""
    changes: list[tuple[str, dict[str, t.Any]]] = [
        *((query, {"state": state}) for query in ("dev_info", "link", "tls") for state in ("unsupported", "failed")),
        *(("link", {"link": word}) for word in ("DOWN", "PARTIAL LINK")),
        ("tls", {"tls_switch": 1}),
        *(("tls", {"tls_switch": 1, "cert_expiration": word}) for word in ("1", "2")),
    ]
    for query, fields in changes:
        for hosts, chips in ((("d1",), (5,)), (("d1",), range(8)), (("d1", "d2"), range(8))):
            case = fleets.good("a5")
            for host in hosts:
                for chip in chips:
                    case.query(host, chip, query).update(fields)
            yield case


def other_faults(generation: str) -> t.Iterator[fleets.Case]:
    for one in preflight_faults.FAULTS:
        if generation in one.hardware:
            case = fleets.good(generation)
            one.apply(case, "d1")
            yield case


@pytest.mark.parametrize("generation", ["a2", "a3", "a5"])
def test_fixes_of_preflight_are_commands_of_the_generation(generation: str, tmp_path: pathlib.Path) -> None:
    cases = a5_faults() if generation == "a5" else other_faults(generation)
    reports = [case.judge() for case in cases]
    fixes = {text for report in reports for one in report.verdicts for text in (one.fix, one.fix_zh)}
    commands = sorted(set(typed(fixes)))
    assert len(commands) > 10
    host = Host(tmp_path, "h1", generation)
    not_understood = [words for words in commands if COMMAND_FAILED in host.hccn(words).out]
    assert not_understood == []
    assert not [fix for fix in fixes if "CARD" in fix or "-c CHIP" in fix]


def test_a_five_is_asked_by_the_number_that_npu_smi_has_for_a_chip() -> None:
    case = fleets.good("a5")
    case.query("d1", 2, "tls")["tls_switch"] = 1
    case.smi("d1", 2)["card"] = 6
    (verdict,) = case.judge().verdicts
    assert "chip 2 of d1" in verdict.message
    assert "`hccn_tool -s -tls -i 6 enable 0`" in verdict.fix
    assert "`hccn_tool -s -tls -i 6 enable 0`" in verdict.fix_zh

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The stand-ins for npu-smi and hccn_tool answer in the words of the real tools."""

from __future__ import annotations

import pathlib
import re
import subprocess

import pytest

FILES = pathlib.Path(__file__).parents[3] / "roles" / "rehearsal" / "files"
CONF = "address_0=29.1.137.205\nnetmask_0=255.255.0.0\nnetdetect_0=29.1.0.1\ngateway_0=29.1.0.1\n"


def run(script: str, root: pathlib.Path, *words: str) -> tuple[int, str]:
    command = ["sh", str(FILES / script), *words]
    result = subprocess.run(command, env={"PD_REHEARSAL_ROOT": str(root)}, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout


@pytest.fixture(params=[8, 16], ids=["a2", "a3"])
def root(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "dev").mkdir()
    for chip in range(request.param):
        (tmp_path / "dev" / f"davinci{chip}").touch()
    return tmp_path


def chips(root: pathlib.Path) -> int:
    return len(list((root / "dev").iterdir()))


def test_npu_smi_info(root: pathlib.Path) -> None:
    code, out = run("npu_smi_sim.sh", root, "info")
    lines = out.splitlines()
    assert code == 0
    assert {len(line) for line in lines} == {98}, "a straight table"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    health = [row for row in rows if len(row) == 3 and row[1] == "OK"]
    memory = [row for row in rows if len(row) == 3 and row[1].startswith("0000:")]
    assert len(health) == len(memory) == chips(root)
    assert len({row[1] for row in memory}) == chips(root), "every chip has its own bus id"
    assert out.count("No running processes found in NPU") == 8
    if chips(root) == 16:
        assert [row[0].split() for row in memory[:3]] == [["0", "0"], ["1", "1"], ["0", "2"]]
        assert "Chip  Phy-ID" in out


def test_npu_smi_mapping(root: pathlib.Path) -> None:
    code, out = run("npu_smi_sim.sh", root, "info", "-m")
    rows = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()[1:]]
    assert code == 0
    assert [row[3] for row in rows if row[4] != "Mcu"] == [str(chip) for chip in range(chips(root))]
    assert sum(row[4] == "Mcu" for row in rows) == 8


def test_npu_smi_failures(tmp_path: pathlib.Path, root: pathlib.Path) -> None:
    assert run("npu_smi_sim.sh", root, "info", "-t", "board")[0] == 1
    code, out = run("npu_smi_sim.sh", tmp_path / "nothing", "info")
    assert (code, out.splitlines()[-1]) == (1, "dcmi module initialize failed. ret is -8005")


def test_hccn_tool_of_a_configured_chip(root: pathlib.Path) -> None:
    (root / "etc").mkdir()
    (root / "etc" / "hccn.conf").write_text(CONF)
    answers = {
        "-link": "link status: UP\n",
        "-net_health": "net health status: Success\n",
        "-netdetect": "netdetect address: 29.1.0.1\n",
        "-gateway": "default gateway:29.1.0.1, Iface:eth0\n",
        "-ip": "ipaddr:29.1.137.205\nnetmask:255.255.0.0\n",
    }
    for query, answer in answers.items():
        assert run("hccn_tool_sim.sh", root, "-i", "0", query, "-g") == (0, answer)
    code, out = run("hccn_tool_sim.sh", root, "-i", "0", "-tls", "-g")
    assert code == 0
    assert out.startswith(
        "dev_id:0, tls switch[0](0:disable, 1:enable), tls preconfigured[1](0:non-preset, 1:preset), "
    )
    assert "Ifname: 400GE1/1/1:1" in run("hccn_tool_sim.sh", root, "-i", "0", "-lldp", "-g")[1]


def test_hccn_tool_without_configuration(root: pathlib.Path) -> None:
    assert run("hccn_tool_sim.sh", root, "-i", "1", "-net_health", "-g") == (0, "net health status: Init\n")
    missing = {
        "-ip": "Get ipconf failed, because no ip was preset there!\n",
        "-gateway": "Get gateway failed, because no gateway was preset there!\n",
    }
    for query, answer in missing.items():
        assert run("hccn_tool_sim.sh", root, "-i", "1", query, "-g") == (13, answer)


def test_hccn_tool_virtual_addresses_are_an_a3_thing(root: pathlib.Path) -> None:
    code, out = run("hccn_tool_sim.sh", root, "-i", "1", "-vnic", "-g")
    if chips(root) == 16:
        assert (code, out.splitlines()[:2]) == (0, ["vnic link status: UP", "vnic ipaddr: 192.168.2.101"])
    else:
        assert (code, out) == (1, "The command is not supported on this product.\n")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["-i", "16", "-link", "-g"], "The device is not exist!\n"),
        (["-link", "-g"], "Command execute failed!\n"),
        (["-i", "x", "-link", "-g"], "Command execute failed!\n"),
        (["-i", "0", "-link"], "Command execute failed!\n"),
        (["-i", "0", "-tls", "-s", "enable", "0"], "Command execute failed!\n"),
    ],
)
def test_hccn_tool_failures(root: pathlib.Path, words: list[str], answer: str) -> None:
    assert run("hccn_tool_sim.sh", root, *words) == (1, answer)

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""hccn.conf and the files of versions, as they lie on a host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.ascend.pd_serving.plugins.module_utils.npu import answers, hccn, hccn_conf, versions
from ansible_collections.ascend.pd_serving.tests.unit.plugins.module_utils.npu.samples import DATA


def gather(root: Path) -> dict[str, Any]:
    return versions.gather(lambda path: f"{root}{path}")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")


def test_states_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "hccn.conf"
    assert hccn_conf.read(str(path))["state"] == "missing"
    path.mkdir()
    assert hccn_conf.read(str(path)) == {"state": "is_directory", "chips": {}, "lines_not_understood": [], "text": ""}
    path.rmdir()
    write(path, (DATA / "hccn-conf-a2-ok.txt").read_text())
    assert len(hccn_conf.read(str(path))["chips"]) == 8
    path.write_bytes(b"\xff\xfe\x00")
    assert hccn_conf.read(str(path))["state"] == "malformed"
    path.unlink()
    path.symlink_to(path)
    assert hccn_conf.read(str(path))["state"] == "unreadable"


@pytest.mark.parametrize(
    "line", ["address_0 =192.0.2.1", " address_0=192.0.2.1", "address_0=192.0.2.1 ", "address_0=", "x"]
)
def test_lines_that_the_tool_would_take_otherwise(line: str) -> None:
    assert hccn_conf.parse(f"{line}\n")["lines_not_understood"] == [line]


def test_comments_and_the_same_line_twice_are_no_fault() -> None:
    text = "# set by hand\n\naddress_3=192.0.2.1\nnetmask_3=255.255.255.0\naddress_3=192.0.2.1\n"
    assert hccn_conf.parse(text)["state"] == "ok"


def test_versions_of_a_host(tmp_path: Path) -> None:
    write(tmp_path / "usr/local/Ascend/driver/version.info", (DATA / "driver-version-info.txt").read_text())
    write(tmp_path / "usr/local/Ascend/firmware/version.info", (DATA / "firmware-version-info.txt").read_text())
    install = "UserName=HwHiAiUser\nDriver_Install_Path_Param=/usr/local/Ascend\nDriver_Install_Status=complete\n"
    write(tmp_path / "etc/ascend_install.info", install)
    assert gather(tmp_path) == {
        "driver": "25.3.rc1",
        "firmware": "7.5.0.1.129",
        "driver_package": "25.3.rc1",
        "firmware_package": "24.1.rc3",
        "compatible_firmware": "[7.0.0,8.9.9]",
        "compatible_driver": "[23.0.0,23.0.0.],[24.0,24.0.]",
        "install": {
            "UserName": "HwHiAiUser",
            "Driver_Install_Path_Param": "/usr/local/Ascend",
            "Driver_Install_Status": "complete",
        },
        "files": {"driver": "ok", "firmware": "ok", "install": "ok"},
    }


def test_the_driver_lies_where_the_installation_says(tmp_path: Path) -> None:
    write(tmp_path / "etc/ascend_install.info", "Driver_Install_Path_Param=/opt/ascend/\r\n")
    write(tmp_path / "opt/ascend/driver/version.info", "Version=25.2.0\r\n")
    found = gather(tmp_path)
    assert (found["driver"], found["firmware"]) == ("25.2.0", None)
    assert found["files"] == {"driver": "ok", "firmware": "missing", "install": "ok"}


def test_a_file_that_says_nothing_is_no_version(tmp_path: Path) -> None:
    write(tmp_path / "usr/local/Ascend/driver/version.info", "Version=\nVersion=25.2.0\nnonsense\n")
    (tmp_path / "usr/local/Ascend/firmware/version.info").mkdir(parents=True)
    write(tmp_path / "etc/ascend_install.info", "nonsense")
    found = gather(tmp_path)
    assert (found["driver"], found["firmware"]) == (None, None)
    assert found["files"] == {"driver": "malformed", "firmware": "is_directory", "install": "malformed"}


@pytest.mark.parametrize(
    ("mask", "good"),
    [
        ("255.255.255.0", True),
        ("255.255.240.0", True),
        ("255.255.255.252", True),
        ("255.255.255.25", False),
        ("255.255.255.", False),
        ("0.0.0.0", False),
        ("255.0.255.0", False),
    ],
)
def test_netmasks(mask: str, good: bool) -> None:
    assert answers.is_netmask(mask) is good


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1",
        "224.0.0.1",
        "0.1.2.3",
        "240.0.0.1",
        "255.255.255.255",
        "",
        "-.-.-.-",
        "0.0.0.0",
        "192.0.2",
        "192.0.2.256",
        "192.0.2.01",
        "192.0.2.1,",
        "2001:db8::1",
        "\uff11.1.1.1",
    ],
)
def test_what_is_no_address(text: str) -> None:
    assert not answers.is_address(text)


@pytest.mark.parametrize(
    ("ip", "mask", "good"),
    [
        ("10.86.1.80", "255.255.255.0", True),
        ("10.86.1.0", "255.255.0.0", True),
        ("10.86.1.255", "255.255.255.0", False),
        ("10.86.1.0", "255.255.255.0", False),
        ("10.86.1.1", "255.255.255.254", True),
        ("10.86.1.1", "255.255.255.255", True),
        ("127.0.0.1", "255.0.0.0", False),
        ("224.0.0.1", "255.0.0.0", False),
    ],
)
@pytest.mark.parametrize("query", ["ip", "vnic"])
def test_an_address_that_no_chip_can_have_is_shown_and_never_good(ip: str, mask: str, good: bool, query: str) -> None:
    """FAB-03."""
    text = f"ipaddr:{ip}\nnetmask:{mask}\n"
    if query == "vnic":
        text = f"vnic link status: UP\nvnic ipaddr: {ip}\nvnic netmask: {mask}\n"
    result = hccn.QUERIES[query](text, 0)
    assert result["state"] == (answers.OK if good else answers.UNKNOWN)
    assert result["ipaddr"] == ip


@pytest.mark.parametrize("state", ["UP", "DOWN"])
def test_a_vnic_without_lines_of_an_address_has_none(state: str) -> None:
    result = hccn.parse_vnic(f"vnic link status: {state}\n")
    assert result == {"state": "not_configured", "ipaddr": None, "link": state, "text": f"vnic link status: {state}"}


def test_a_switch_of_tls_that_lost_its_digit_is_not_taken_for_a_missing_certificate() -> None:
    line = "dev_id:0, tls switch[](0:disable, 1:enable), tls preconfigured[1](0:non-preset, 1:preset)"
    result = hccn.parse_tls(f"{line}\nNo certificate found, please set certs firstly!\n", 0)
    assert result["state"] == answers.UNKNOWN and "tls_switch" not in result
    assert hccn.parse_tls("No certificate found, please set certs firstly!\n", 0)["state"] == answers.NOT_CONFIGURED

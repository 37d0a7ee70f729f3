# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What the simulated hccn_tool and npu-smi of one host know: addresses, super pod, driver files. Rehearsal and lab use it.

Imports nothing of this collection, so that the lab can load it by its path.
"""

from __future__ import annotations

import os
import pathlib
import shutil

DIRECTORY = "opt/pd_rehearsal/npu"
VERSION = "25.2.0"
FIRMWARE = "7.7.0.6.236"
_SUBNETS, _PER_SUBNET = 50, 250
MAX_HOSTS = _SUBNETS * _PER_SUBNET
# In the words of the driver package's own files. What a parser needs is in them; they are not complete.
DRIVER_FILES = {
    "usr/local/Ascend/driver/version.info": (
        f"Version={VERSION}\nascendhal_version=7.35.23\naicpu_version=1.0\ntdt_version=1.0\nlog_version=1.0\n"
        "prof_version=2.0\ndvppkernels_version=1.1\ntsfw_version=1.0\nInnerversion=V100R001C22SPC001B220\n"
        f"compatible_version_fw=[7.0.0,7.7.99]\npackage_version={VERSION}\n"
    ),
    "usr/local/Ascend/firmware/version.info": (
        f"Version={FIRMWARE}\nfirmware_version=1.0\npackage_version={VERSION}\ncompatible_version_drv=[25.2.0,25.2.0.]\n"
    ),
    "etc/ascend_install.info": (
        "UserName=HwHiAiUser\nUserGroup=HwHiAiUser\nDriver_Install_Type=full\n"
        "Driver_Install_Path_Param=/usr/local/Ascend\nDriver_Install_For_All=no\n"
        "Firmware_Install_Type=full\nFirmware_Install_Path_Param=/usr/local/Ascend\n"
    ),
}


def _net(first: int, number: int) -> str:
    """The first three bytes of all addresses of one plane of a host; numbers count from 1 to MAX_HOSTS."""
    if not 1 <= number <= MAX_HOSTS:
        raise ValueError(f"host number {number} is not in 1 to {MAX_HOSTS}")
    subnet, place = divmod(number - 1, _PER_SUBNET)
    return f"10.{first + subnet}.{place + 1}"


def roce_net(number: int) -> str:
    """Chip N has the address <this>.<N + 1>."""
    return _net(20, number)


def vnic_net(number: int) -> str:
    return _net(120, number)


def gateway(number: int) -> str:
    return f"{roce_net(number).rsplit('.', 1)[0]}.0.1"


def hccn_conf(number: int, generation: str, chips: int) -> str:
    """/etc/hccn.conf as the chips' live addresses are. A5 needs no addresses on its default path."""
    if generation == "a5":
        return ""
    return "".join(
        f"address_{chip}={roce_net(number)}.{chip + 1}\nnetmask_{chip}=255.255.0.0\n"
        f"netdetect_{chip}={gateway(number)}\ngateway_{chip}={gateway(number)}\n"
        for chip in range(chips)
    )


def host_file(number: int, generation: str, chips: int) -> str:
    """The state file `host`; its format is that of the faults."""
    lines = [
        f"generation {generation}",
        f"chips {chips}",
        f"roce {roce_net(number)}",
        f"vnic_net {vnic_net(number)}",
        f"roce_gateway {gateway(number)}",
        f"server_index {number}",
        f"layout {VERSION}",
        *(["address * unset", "gateway * unset"] if generation == "a5" else []),
    ]
    return "\n".join(lines) + "\n"


def claim(fleet: pathlib.Path, state: pathlib.Path) -> int:
    """A number no other host of the fleet has. Kept by the link of the addresses, so that two runs never share one.

    Raises ValueError when there are more hosts than addresses.
    """
    fleet.mkdir(parents=True, exist_ok=True)
    # Two links per host: one for each plane.
    number = sum(1 for _ in fleet.iterdir()) // 2 + 1
    while not _link(fleet / roce_net(number), state):
        number += 1
    return number


def _link(link: pathlib.Path, goal: pathlib.Path) -> bool:
    try:
        # Relative: a state folder may be moved.
        link.symlink_to(os.path.relpath(goal, link.parent))
    except FileExistsError:
        return False
    return True


def build(state: pathlib.Path, fleet: pathlib.Path, number: int, generation: str, chips: int) -> None:
    """Write a host's state and make it known to the fleet. Faults, changes and the log of a host that is there stay."""
    state.mkdir(parents=True, exist_ok=True)
    fleet.mkdir(parents=True, exist_ok=True)
    (state / "host").write_text(host_file(number, generation, chips), encoding="utf-8")
    for net in (roce_net(number), vnic_net(number)):
        _link(fleet / net, state)
    _link(state / "fleet", fleet)
    for name in ("faults", "calls.log"):
        (state / name).touch()


def forget(state: pathlib.Path, fleet: pathlib.Path, number: int) -> None:
    """Take a host out of the fleet."""
    for net in (roce_net(number), vnic_net(number)):
        (fleet / net).unlink(missing_ok=True)
    shutil.rmtree(state, ignore_errors=True)


def number_of(state: pathlib.Path) -> int | None:
    """The number a built host has; None when there is none yet."""
    try:
        lines = (state / "host").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("server_index ")), None)

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Reads which Ascend driver and firmware a host has: version.info of both and /etc/ascend_install.info."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils.npu import hccn_conf

INSTALL_INFO = "/etc/ascend_install.info"
DEFAULT_INSTALL_PATH = "/usr/local/Ascend"

_ENTRY = re.compile(r"([A-Za-z]\w*)[ \t]*=[ \t]*(.*)", re.ASCII)
_VERSION = re.compile(r"[0-9A-Za-z]+(?:[.\w-]*\w)?", re.ASCII)


def parse(text: str) -> dict[str, str]:
    """``key=value`` lines; what is none, or is said twice differently, is left out."""
    found: dict[str, str] = {}
    torn = set()
    for line in text.replace("\r\n", "\n").split("\n"):
        match = _ENTRY.fullmatch(line.strip())
        if match is None:
            continue
        key, value = match.group(1), match.group(2).strip()
        if found.setdefault(key, value) != value:
            torn.add(key)
    return {key: value for key, value in found.items() if key not in torn}


def version(values: t.Mapping[str, str], *keys: str) -> str | None:
    """The first of *keys* that holds a version."""
    return next((values[key] for key in keys if _VERSION.fullmatch(values.get(key, ""))), None)


def gather(under: t.Callable[[str], str]) -> dict[str, t.Any]:
    """Versions of driver and firmware. *under* turns a path of the host into one that can be opened here."""
    install_state, text = hccn_conf.read_file(under(INSTALL_INFO))
    install = parse(text) if install_state == "ok" else {}
    folder = install.get("Driver_Install_Path_Param", "").rstrip("/")
    if not folder.startswith("/"):
        folder = DEFAULT_INSTALL_PATH
    driver_state, driver_text = hccn_conf.read_file(under(f"{folder}/driver/version.info"))
    firmware_state, firmware_text = hccn_conf.read_file(under(f"{folder}/firmware/version.info"))
    driver = parse(driver_text) if driver_state == "ok" else {}
    firmware = parse(firmware_text) if firmware_state == "ok" else {}
    return {
        # The package's version is what npu-smi shows and release notes speak of; old packages have only the other key.
        "driver": version(driver, "Version", "package_version"),
        "firmware": version(firmware, "Version", "package_version"),
        "driver_package": version(driver, "package_version", "Version"),
        "firmware_package": version(firmware, "package_version"),
        "compatible_firmware": driver.get("compatible_version_fw"),
        "compatible_driver": firmware.get("compatible_version_drv"),
        "install": install,
        "files": {
            "driver": _state(driver_state, driver),
            "firmware": _state(firmware_state, firmware),
            "install": _state(install_state, install),
        },
    }


def _state(state: str, values: t.Mapping[str, str]) -> str:
    return hccn_conf.MALFORMED if state == "ok" and not values else state

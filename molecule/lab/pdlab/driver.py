# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What stands in for the Ascend driver on a host: a thin layer over the root file system, made anew in no time."""

from __future__ import annotations

import shutil
from pathlib import Path

from pdlab.place import DIR, LAB, SIMULATORS, key, npus, write

# File here, place on the host.
FILES = {
    LAB / "host/ascend-boot": "usr/local/sbin/ascend-boot",
    LAB / "host/ascend-boot.service": "etc/systemd/system/ascend-boot.service",
    LAB / "host/oci_clamp.py": "usr/sbin/runc",
}
TOOLS = {
    SIMULATORS / "npu_sim/npu-smi": "usr/local/bin/npu-smi",
    SIMULATORS / "npu_sim/hccn_tool": "usr/local/Ascend/driver/tools/hccn_tool",
}
SHARED = SIMULATORS / "npu_sim/common.sh"
TEXTS = {
    **npus.DRIVER_FILES,
    "usr/local/Ascend/driver/lib64/libascend_hal.so": "",
    "usr/local/dcmi/libdcmi.so": "",
    "models/m/config.json": '{"architectures": ["LabForCausalLM"], "num_experts": 8}\n',
}
LINKS = {
    "usr/bin/hccn_tool": "/usr/local/Ascend/driver/tools/hccn_tool",
    "etc/systemd/system/sysinit.target.wants/ascend-boot.service": "../ascend-boot.service",
}


def layer() -> Path:
    """A driver's files at their real places, and what makes device nodes at boot."""
    target = DIR / f"driver-{key(Path(__file__), str(TEXTS), SHARED, *TOOLS, *FILES)}"
    if target.exists():
        return target
    part = target.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    for source, path in FILES.items():
        write(part / path, source.read_text(encoding="utf-8"), 0o644 if source.suffix == ".service" else 0o755)
    for source, path in TOOLS.items():
        # One file each: containers mount the tools alone.
        write(part / path, SHARED.read_text(encoding="utf-8") + source.read_text(encoding="utf-8"), 0o755)
    for path, text in TEXTS.items():
        write(part / path, text)
    for path, goal in LINKS.items():
        (part / path).parent.mkdir(parents=True, exist_ok=True)
        (part / path).symlink_to(goal)
    part.rename(target)
    return target

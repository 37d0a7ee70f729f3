# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What an engineer needs to run a rank by hand: run_dp_template.sh and the line of upstream's launcher.

The template takes the seven values that upstream's launch_online_dp.py passes. Everything is quoted by shlex; nothing
of the product reads these files back, unless pd_engine_launcher is upstream.
"""

from __future__ import annotations

import re
import shlex

from . import command
from .model import Cluster, Placement

TEMPLATE = "run_dp_template.sh"
LAUNCHER = "/vllm-workspace/vllm-ascend/examples/external_online_dp/launch_online_dp.py"
# What differs from rank to rank, as the launcher passes it; everything else is the same on one host.
_POSITIONS = {
    "--port": '"$2"',
    "--data-parallel-size": '"$3"',
    "--data-parallel-rank": '"$4"',
    "--data-parallel-address": '"$5"',
    "--data-parallel-rpc-port": '"$6"',
    "--tensor-parallel-size": '"$7"',
}
_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-)?\})\Z")


def launcher_arguments(placement: Placement) -> list[str]:
    """Arguments of upstream's launcher for one host. The RPC port is always passed: its default ends every child."""
    instance = placement.instance
    values = {
        "--dp-size": instance.dp_size,
        "--tp-size": instance.tp_size,
        "--dp-size-local": placement.dp_size_local,
        "--dp-rank-start": placement.dp_rank_start,
        "--dp-address": instance.dp_address,
        "--dp-rpc-port": instance.dp_rpc_port,
        "--vllm-start-port": instance.api_port,
    }
    return [word for name, value in values.items() for word in (name, str(value))]


def launcher_refuses(placement: Placement) -> str | None:
    """Why upstream's launcher cannot start this share; None when it can."""
    instance = placement.instance
    if not instance.external:
        return "internal data parallelism has one process per host"
    if instance.pp_size * instance.pcp_size > 1:
        return f"it gives a rank {instance.tp_size} chips, but pp and pcp make it {instance.rank_width} wide"
    devices = [int(d) for process in placement.processes for d in process.visible_devices.split(",")]
    if devices != list(range(len(devices))):
        return f"it counts devices from 0 on, but this share has {','.join(map(str, devices))}"
    return None


def template(cluster: Cluster, placement: Placement) -> str:
    """The script, with what a person needs to know on top."""
    process = placement.processes[0]
    refusal = launcher_refuses(placement)
    line = shlex.join(["python3", LAUNCHER, *launcher_arguments(placement)])
    head = [
        "#!/bin/bash",
        f"# Instance {placement.instance.name} of cluster {cluster.name} on {placement.host}: one rank by hand.",
        "#   bash run_dp_template.sh DEVICES PORT DP_SIZE DP_RANK DP_ADDRESS DP_RPC_PORT TP_SIZE",
        *(
            f"#   {shlex.join(['bash', TEMPLATE, *_positional(placement, number)])}"
            for number in range(len(placement.processes))
        ),
        "# Upstream's launcher starts all of them (from this folder, inside the container):"
        if refusal is None
        else f"# Upstream's launcher cannot start them: {refusal}.",
        *([f"#   {line}"] if refusal is None else []),
        "# Written by the product at every change; edit the inventory instead.",
    ]
    env = [_export(name, value) for name, value in process.env.items() if name != command.DEVICES_VARIABLE]
    devices = f'export {command.DEVICES_VARIABLE}="$1"'
    return "\n".join([*head, *env, devices, f"exec {_with_positions(process.argv)}"]) + "\n"


def _positional(placement: Placement, number: int) -> list[str]:
    instance, process = placement.instance, placement.processes[number]
    values = (
        process.visible_devices,
        process.api_port if process.api_port is not None else 0,
        instance.dp_size,
        process.dp_rank,
        instance.dp_address,
        instance.dp_rpc_port,
        instance.tp_size,
    )
    return [str(value) for value in values]


def _export(name: str, value: str | None) -> str:
    if value is None:
        return f"unset {name}"
    return f"export {name}={_value(name, value)}"


def _value(name: str, value: str) -> str:
    """Quoted, but for references to other variables in path lists, which the launcher expands as well."""
    if not (name.endswith("PATH") or name == "LD_PRELOAD"):
        return shlex.quote(value)
    parts = []
    for part in value.split(":"):
        match = _REFERENCE.match(part)
        parts.append(f'"${{{match[1] or match[2]}:-}}"' if match else shlex.quote(part))
    return ":".join(parts)


def _with_positions(argv: list[str]) -> str:
    words, replaced = [], None
    for word in argv:
        words.append(_POSITIONS[replaced] if replaced else shlex.quote(word))
        replaced = word if replaced is None and word in _POSITIONS else None
    return " ".join(words)

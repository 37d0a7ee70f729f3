# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Kernel parameters that the engines need, merged with what is there."""

from __future__ import annotations

import dataclasses
import os
import re
import typing as t

RESERVED_PORTS = "net.ipv4.ip_local_reserved_ports"
HUGEPAGES = "vm.nr_hugepages"
HEADER = "# Written by ascend.pd_serving. Ports that other tools had reserved are part of the value.\n"


class KernelError(Exception):
    """A value the kernel cannot have; the text says why."""


@dataclasses.dataclass(frozen=True)
class Change:
    """What holds now and what should; before and after are the file's content with the running values."""

    file: str
    values: dict[str, str]
    running: dict[str, str]
    before: str
    after: str

    @property
    def needed(self) -> bool:
        return self.before != self.after or self.values != self.running


def parse_ports(text: str) -> list[tuple[int, int]]:
    """7100-7115,12321 as pairs of first and last."""
    pairs = []
    for part in text.strip().split(",") if text.strip() else ():
        match = re.fullmatch(r"\s*([0-9]{1,5})(?:-([0-9]{1,5}))?\s*", part)
        if not match:
            raise KernelError(f"{part!r} in {text!r} is neither a port nor a range of ports")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= 65535:
            raise KernelError(f"{part!r} in {text!r} is no range within 1-65535")
        pairs.append((first, last))
    return pairs


def merged_ports(*texts: str) -> str:
    """One list out of several, sorted, joined where they touch: the way the kernel writes it back."""
    return joined(pair for text in texts for pair in parse_ports(text))


def joined(pairs: t.Iterable[tuple[int, int]]) -> str:
    """Ranges of ports as one list: sorted, joined where they touch."""
    out: list[list[int]] = []
    for first, last in sorted(pairs):
        if out and first <= out[-1][1] + 1:
            out[-1][1] = max(out[-1][1], last)
        else:
            out.append([first, last])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in out)


def parameter_path(name: str) -> str:
    return "/proc/sys/" + name.replace(".", "/")


def read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def plan(file: str, reserved_ports: str | None, hugepages: int | None) -> Change:
    """Compare the wanted values with the running ones and with the file; nothing is changed."""
    content = read(file)
    kept = dict(re.findall(r"^\s*([a-z0-9_.]+)\s*=\s*(.*?)\s*$", content, re.MULTILINE))
    values, running = {}, {}
    if reserved_ports is not None:
        running[RESERVED_PORTS] = read(parameter_path(RESERVED_PORTS)).strip()
        values[RESERVED_PORTS] = merged_ports(running[RESERVED_PORTS], kept.get(RESERVED_PORTS, ""), reserved_ports)
        # Written back in another form, the same ports are no change.
        running[RESERVED_PORTS] = merged_ports(running[RESERVED_PORTS])
    if hugepages is not None:
        running[HUGEPAGES] = read(parameter_path(HUGEPAGES)).strip()
        values[HUGEPAGES] = str(hugepages)
    lines = "".join(f"{name} = {value}\n" for name, value in sorted({**kept, **values}.items()))
    return Change(file, values, running, content, HEADER + lines)


def apply(change: Change) -> None:
    """Set the running values, then keep them in the file."""
    for name, value in change.values.items():
        if change.running[name] != value:
            with open(parameter_path(name), "w", encoding="ascii") as stream:
                stream.write(value)
            got = read(parameter_path(name)).strip()
            if name == HUGEPAGES and got != value:
                raise KernelError(
                    f"{name}: the kernel gave {got or 'nothing'} of {value}: too little memory in one piece. Restart the host, "
                    "or ask for less"
                )
    temporary = change.file + ".new"
    with open(temporary, "w", encoding="ascii") as stream:
        stream.write(change.after)
    os.chmod(temporary, 0o644)
    os.replace(temporary, change.file)

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Host memory that D2RH decode pins, with the arithmetic for people.

Upstream registers on every decode worker a host KV cache as large as its device KV cache, rounded up to 2 MiB. It mirrors
the KV cache, not the whole HBM. How large that cache becomes is known when the model is loaded (the engine's log tells
it); before, it can be given, follows from --kv-cache-memory-bytes, or is not known.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing as t

from .model import Cluster, Placement
from .tables import TRANSPORTS

GIB = 1024**3
ALIGNMENT = 2 * 1024**2
_BYTES = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([kmgtKMGT]?)\Z")
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_UNITS |= {unit.upper(): 1024**power for power, unit in enumerate("kmgt", start=1)}


@dataclasses.dataclass(frozen=True, slots=True)
class Pinned:
    """total_gib is None where the size of the device KV cache is not known."""

    workers: int
    total_gib: int | None
    arithmetic: str


def pinned(cluster: Cluster, placement: Placement) -> Pinned | None:
    """What this placement pins; None where nothing is."""
    instance = placement.instance
    if not TRANSPORTS[cluster.connector].stages or instance.role != "decode":
        return None
    workers = placement.dp_size_local * instance.rank_width
    ranks = f"{placement.dp_size_local} local ranks x {instance.rank_width} workers"
    if instance.kv_cache_gib is not None:
        total = workers * instance.kv_cache_gib
        said = f"{ranks} x {instance.kv_cache_gib} GiB KV cache (pd_kv_cache_gib) = {total} GiB"
        return Pinned(workers, total, said)
    argv = placement.processes[0].argv
    size = _kv_cache_memory_bytes(argv)
    if size is None:
        return Pinned(workers, None, f"{ranks} x the device KV cache of a worker")
    each = -(-size // ALIGNMENT) * ALIGNMENT
    total = math.ceil(workers * each / GIB)
    said = f"{ranks} x {each} bytes KV cache (--kv-cache-memory-bytes, to the next 2 MiB) = {total} GiB"
    return Pinned(workers, total, said)


def _kv_cache_memory_bytes(argv: t.Sequence[str]) -> int | None:
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        name, _equals, value = word.partition("=")
        if name == "--kv-cache-memory-bytes":
            match = _BYTES.match(value or following)
            return math.ceil(float(match[1]) * _UNITS[match[2]]) if match else None
    return None

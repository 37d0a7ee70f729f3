# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Rules that a planned cluster must keep. Each yields findings; none changes anything.

A new rule is a function `(Context) -> Iterator[Finding]` in the module of its topic, listed in that module's RULES, with a
title in catalog.py, a section in docs/rules.md and a test. Faults of a single value (type, scope, placeholder) are found
while the inventory is read, rank and chip faults while it is laid out; their ids are in the catalog too.
"""

from __future__ import annotations

from ..model import Finding
from . import cluster, connector, d2rh, engine_options, environment, fabric, pool, ports, sizes
from .context import Context

# Rules whose outcome depends on the hardware generation.
BY_HARDWARE = frozenset(
    (
        "image-hardware",
        "kv-port-reserve",
        "listener-in-reserve",
        "port-conflict",
        "chips-mapped-twice",
        "fabric-not-a5",
        "roce-addresses-unused",
        "d2rh-not-validated",
    )
)
_ALL = (
    *cluster.RULES,
    *connector.RULES,
    *environment.RULES,
    *pool.RULES,
    *sizes.RULES,
    *ports.RULES,
    *engine_options.RULES,
    *fabric.RULES,
    *d2rh.RULES,
)


def check(context: Context) -> list[Finding]:
    """Every finding of every rule."""
    return [finding for rule in _ALL for finding in rule(context)]


__all__ = ["BY_HARDWARE", "Context", "check"]

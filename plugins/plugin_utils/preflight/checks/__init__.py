# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The checks. A new one is an entry in catalog.py, a function of that name here, a section in docs/preflight.md, a test."""

from __future__ import annotations

import typing as t

from ..fleet import Fleet
from . import fabric, hardware, host, identity, image, pings, ports
from .catalog import BY_ID, CHECKS, HOST_CHECK
from .hardware import other_tags
from .say import Say

Function = t.Callable[[Fleet, Say], None]
_MODULES = (hardware, fabric, identity, pings, host, ports, image)


def function(check_id: str) -> Function:
    """The function of a check, found by its name."""
    if check_id in HOST_CHECK:
        return host.of_host_check
    name = check_id.replace("-", "_")
    (found,) = (getattr(module, name) for module in _MODULES if hasattr(module, name))
    return t.cast(Function, found)


__all__ = ["BY_ID", "CHECKS", "HOST_CHECK", "Say", "function", "other_tags"]

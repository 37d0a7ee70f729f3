# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Options that choose pings. Those who choose them and those who judge them must be given the same."""

from __future__ import annotations


class ModuleDocFragment:
    """ascend.pd_serving.pings."""

    DOCUMENTATION = r"""
options:
  ping_mode:
    description: V(ring), V(rail) or V(full), see the role preflight.
    type: str
    default: rail
  ping_peers:
    description: Other hosts that each chip pings with V(rail).
    type: int
    default: 8
  ping_budget:
    description: Seconds that the pings of a host may take.
    type: float
    default: 180
"""

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Attributes of what only reads."""

from __future__ import annotations


class ModuleDocFragment:
    """ascend.pd_serving.reads, and with ascend.pd_serving.reads.hosts where it does so on managed hosts."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    support: full
    description: Changes nothing in any mode.
  diff_mode:
    support: none
    description: There is nothing to compare.
"""

    HOSTS = r"""
attributes:
  platform:
    support: full
    platforms: linux
    description: Where the module works.
"""

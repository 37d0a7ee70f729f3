# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What the product costs, on this machine: numbers and ratios, no assertions."""

from __future__ import annotations

import os

# Settings of container images and of some shells, under which Python compiles the plugins in every run and reads each
# module byte by byte. What is measured is the product where people install it.
for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
    os.environ.pop(name, None)

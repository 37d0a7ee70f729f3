# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What the product costs, on this machine: numbers and ratios, no assertions."""

from __future__ import annotations

import os

# Set in many container images; with it Python reads a module that comes by its standard input byte by byte. What is
# measured is the product where people install it.
os.environ.pop("PYTHONUNBUFFERED", None)

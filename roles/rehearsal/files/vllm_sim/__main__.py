#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Entry point of ``python3 -I -S .../vllm_sim serve MODEL [options]``."""

from __future__ import annotations

import os
import sys

# A folder that is run as a program stands first in sys.path; its parent must, for the package to have its name.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from vllm_sim.cli import main

sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""All benchmarks: `make benchmark`. They print numbers and ratios and assert nothing."""

from __future__ import annotations

from . import planner, playbooks, preflight

planner.main()
playbooks.main()
preflight.main()

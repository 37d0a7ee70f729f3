# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Preflight on the controller: which chips ping which, and what the facts of all hosts say together.

plan_view -> (facts of every host) -> plan_pings -> (pings of every host) -> ping_run -> judge -> Report, which
render_matrix, render_html and report_json show. Nothing here contacts a host or knows Ansible.
"""

from __future__ import annotations

from .html import render_html
from .judge import judge
from .matrix import render_matrix, verdict_lines
from .report import counts, exit_code, report_json, summary, to_json
from .schedule import module_options, ping_run, plan_pings
from .view import plan_view

__all__ = [
    "counts",
    "exit_code",
    "judge",
    "module_options",
    "ping_run",
    "plan_pings",
    "plan_view",
    "render_html",
    "render_matrix",
    "report_json",
    "summary",
    "to_json",
    "verdict_lines",
]

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""A fleet with several faults: what the screenshot in the documentation and the browser's test show."""

from __future__ import annotations

from .faults import (
    CHIP,
    chip_in_alarm,
    foreign_process,
    hccn_tool_missing,
    link_down_that_nobody_uses,
    other_driver,
    other_mtu,
    port_shut,
    tls_on,
    wrong_plane,
)
from .fleets import Case, good

HOSTS = ("p1", "p2", "p3", "p4", "d1", "d2", "d3", "d4")


def faulty() -> Case:
    """Eight A3 hosts with nine faults on six of them."""
    case = good("a3", HOSTS)
    tls_on(case, "d2")
    chip_in_alarm(case, "p2")
    foreign_process(case, "d1")
    other_driver(case, "d3")
    other_mtu(case, "p3")
    port_shut(case, "d1")
    hccn_tool_missing(case, "p4")
    link_down_that_nobody_uses(case, "d1")
    wrong_plane(case, "d4")
    return case


__all__ = ["CHIP", "HOSTS", "faulty"]

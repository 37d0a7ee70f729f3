# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""For every rule: inventories that provoke it, with what the finding must name, and near ones that must not.

A module per topic. A rule without an entry in PROVOKING fails test_catalog.py.
"""

from __future__ import annotations

from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases import (
    connector,
    d2rh,
    engine_options,
    environment,
    fabric,
    groups,
    image,
    launching,
    pool,
    ports,
    ranks,
    scopes,
    sizes,
    values,
)
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.case import Provoking, Quiet

CASES: list[Provoking | Quiet] = [
    *connector.CASES,
    *d2rh.CASES,
    *engine_options.CASES,
    *environment.CASES,
    *fabric.CASES,
    *groups.CASES,
    *image.CASES,
    *launching.CASES,
    *pool.CASES,
    *ports.CASES,
    *ranks.CASES,
    *scopes.CASES,
    *sizes.CASES,
    *values.CASES,
]
PROVOKING = [case for case in CASES if isinstance(case, Provoking)]
QUIET = [case for case in CASES if isinstance(case, Quiet)]

__all__ = ["CASES", "PROVOKING", "QUIET", "Provoking", "Quiet"]

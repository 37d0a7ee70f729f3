# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The two kinds of cases."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import Source


@dataclasses.dataclass(frozen=True)
class Provoking:
    """says: words of the finding's text. alone: the inventory has no other fault."""

    rule: str
    about: str
    source: Source
    host: str | None
    variable: str | None
    value: t.Any
    says: tuple[str, ...]
    severity: str = "error"
    alone: bool = True

    def __str__(self) -> str:
        return f"{self.rule}: {self.about}"


@dataclasses.dataclass(frozen=True)
class Quiet:
    """An inventory that comes close to what the rule forbids. clean: it has no finding at all."""

    rule: str
    about: str
    source: Source
    clean: bool = True

    def __str__(self) -> str:
        return f"{self.rule}: {self.about}"

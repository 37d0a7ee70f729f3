# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""docs/inventory.md is the contract; plugins/plugin_utils/variables.py is the code. They say the same."""

from __future__ import annotations

import re
from collections import Counter

import markdown_pages
import pytest
import yaml

from ansible_collections.ascend.pd_serving.plugins.plugin_utils.variables import RUN_SWITCHES, VARIABLES, Variable

PAGE = markdown_pages.read(markdown_pages.ROOT / "docs" / "inventory.md")
HEADER = ["Variable", "Scope", "Type", "Default", "Meaning"]
ROWS = [row for _heading, columns, rows in PAGE.tables() if columns == HEADER for row in rows]
ROW_OF = {row[0].strip("`"): row for row in ROWS}

# How the document calls the kinds that have no limits or choices.
KINDS = {
    "boolean": "true or false",
    "text": "text",
    "version": "version",
    "image": "image",
    "name": "name",
    "nic": "network card",
    "path": "absolute path",
    "address": "IPv4 address",
    "chips": "list of chips",
    "roce": "mapping of chips to addresses",
    "mounts": "list of mounts",
    "mapping": "mapping",
    "arguments": "options",
    "environment": "environment",
}


def type_cell(variable: Variable) -> str:
    """What the column Type must say."""
    if variable.kind == "choice":
        quoted = [f"`{choice}`" for choice in variable.choices]
        return " or ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]
    if variable.kind != "integer":
        return KINDS[variable.kind]
    if variable.maximum is not None:
        return f"integer, {variable.minimum} to {variable.maximum}"
    if variable.minimum is None:
        return "integer"
    return "integer, 1 or more, or -1" if variable.minimum == -1 else f"integer, {variable.minimum} or more"


def test_every_variable_is_documented_once() -> None:
    counted = Counter(row[0] for row in ROWS)
    assert {name for name, count in counted.items() if count > 1} == set()
    assert set(counted) == {f"`{name}`" for name in VARIABLES}


@pytest.mark.parametrize("name", sorted(set(VARIABLES) & set(ROW_OF)))
def test_row_tells_what_the_code_does(name: str) -> None:
    variable = VARIABLES[name]
    _name, scope, kind, default, meaning = ROW_OF[name]
    assert scope == variable.scope
    assert kind == type_cell(variable)
    assert meaning.endswith(".") or meaning.endswith(".)"), "a sentence"
    if variable.required:
        assert default == "required"
    elif variable.default is None:
        # Worked out from something else: said in words, so that it cannot be taken for a literal.
        assert default not in ("", "required")
        assert not re.fullmatch(r"`(null|None|\[\]|\{\}|\d+)`", default)
    else:
        literal = re.fullmatch(r"`(.*)`", default)
        assert literal, f"{default} is no literal"
        assert yaml.safe_load(literal[1]) == variable.default


def test_variables_that_stay_ordinary_on_a_shared_host_are_named() -> None:
    text = "\n".join(PAGE.prose)
    sentence = re.search(r"describe the machine itself.*?\n(?=- )", text, re.DOTALL)
    assert sentence
    assert set(re.findall(r"`(pd_\w+)`", sentence[0])) == {v.name for v in VARIABLES.values() if v.physical}


def test_run_switches_are_documented() -> None:
    (rows,) = (rows for heading, _columns, rows in PAGE.tables() if heading == "Run switches")
    switches = {re.split(r"[`=]", row[0])[1] for row in rows}
    assert set(RUN_SWITCHES) <= switches


def test_no_other_variable_is_mentioned() -> None:
    """A variable that was renamed must not live on in a sentence or an example."""
    text = PAGE.path.read_text(encoding="utf-8")
    mentioned = set(re.findall(r"\bpd_[a-z0-9_]+[a-z0-9]\b", text)) - {"pd_serving"}
    assert mentioned <= {*VARIABLES, *RUN_SWITCHES}

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The rule ids in the code, in the catalog, in docs/rules.md and in the provoking cases are the same."""

from __future__ import annotations

import ast
import re
import typing as t
from pathlib import Path

from ansible_collections.ascend.pd_serving.plugins.plugin_utils.rules.catalog import RULES
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils import rule_cases

ROOT = Path(__file__).resolve().parents[4]
PLANNER = ROOT / "plugins" / "plugin_utils"
RULES_PAGE = ROOT / "docs" / "rules.md"
RULE_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
SPEAKERS = {"Finding", "error", "warning", "say"}


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _texts(node: ast.expr) -> t.Iterator[str]:
    """The values an expression can have: its text, or the branches of its condition."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)


def _assigned_to_rule(node: ast.Assign) -> t.Iterator[ast.expr]:
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from (
                value
                for name, value in zip(target.elts, node.value.elts, strict=True)
                if isinstance(name, ast.Name) and name.id == "rule"
            )
        elif isinstance(target, ast.Name) and target.id == "rule":
            yield node.value


def ids_in(code: str) -> set[str]:
    """What a finding is made with: the first argument of a speaker, or what the variable `rule` can hold."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and _called(node) in SPEAKERS and node.args:
            first = node.args[0]
            if not (isinstance(first, ast.Name) and first.id == "rule"):
                found.update(_texts(first))
        elif isinstance(node, ast.Assign):
            for value in _assigned_to_rule(node):
                found.update(_texts(value))
    return found


def ids_in_code() -> set[str]:
    # Preflight has checks and a catalog of its own.
    files = sorted(path for path in PLANNER.rglob("*.py") if "preflight" not in path.relative_to(PLANNER).parts)
    assert files
    return {rule for path in files for rule in ids_in(path.read_text(encoding="utf-8"))}


def test_the_scan_sees_every_way_a_finding_is_made() -> None:
    code = """
Finding("one-one", "error", None)
self.error("two-two", host)
say("three-three", host)
rule, fix = "four-four", f"x"
rule = "five-five" if variable == "pd_x" else rule
error(rule, host)
"""
    assert ids_in(code) == {"one-one", "two-two", "three-three", "four-four", "five-five"}


def test_catalog_is_what_the_code_says() -> None:
    assert ids_in_code() == set(RULES)


def test_ids_are_anchors_and_titles_are_short() -> None:
    for rule, title in RULES.items():
        assert RULE_ID.fullmatch(rule), rule
        assert 10 <= len(title) <= 80, f"{rule}: {title}"
        assert not title.endswith("."), rule
    assert len(set(RULES.values())) == len(RULES), "two rules with one title"


def test_every_rule_has_one_section_in_the_rules_page() -> None:
    headings = re.findall(r"^## (\S+)\s*$", RULES_PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(headings) == len(set(headings)), "a rule with two sections"
    assert set(headings) == set(RULES)


def test_every_rule_is_provoked_by_a_case() -> None:
    assert {case.rule for case in rule_cases.PROVOKING} == set(RULES)


def test_quiet_cases_are_about_rules_that_exist() -> None:
    assert {case.rule for case in rule_cases.QUIET} <= set(RULES)

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""docs/preflight.md says what the catalog of checks and report.json say."""

from __future__ import annotations

import re
import typing as t

import markdown_pages
import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import preflight
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight import checks
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight.matrix import SIGNS
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight.schedule import MODES, PEERS
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.preflight import demo, faults, fleets

PAGE = markdown_pages.read(markdown_pages.ROOT / "docs" / "preflight.md")
TEXT = (markdown_pages.ROOT / "docs" / "preflight.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    (found,) = (list(map(list, rows)) for above, _columns, rows in PAGE.tables() if above == heading)
    return found


def test_the_table_is_the_catalog() -> None:
    wanted = [
        [f"[`{check.id}`](#{check.id})", check.tag, check.title, "yes" if check.across else ""]
        for check in checks.CHECKS
    ]
    assert rows("Checks") == wanted


def sections() -> dict[str, str]:
    return dict(re.findall(r"^### ([a-z-]+)\n\n(Severities: .*?)(?=\n\n|\Z)", TEXT, re.MULTILINE | re.DOTALL))


def test_every_check_has_its_section_in_the_same_order() -> None:
    assert list(sections()) == [check.id for check in checks.CHECKS]


def documented(check: str) -> set[str]:
    match = re.match(r"Severities: ([a-z, ]+)\.", sections()[check])
    assert match
    return set(match[1].split(", "))


@pytest.mark.parametrize("one", faults.FAULTS, ids=lambda one: one.name)
def test_severities_are_those_that_come(one: faults.Fault) -> None:
    assert one.severity in documented(one.check)


@pytest.fixture(scope="module")
def data() -> dict[str, t.Any]:
    case = demo.faulty()
    case.asked = [*demo.HOSTS[:-1]]
    del case.facts[demo.HOSTS[-1]]
    return preflight.report_json(case.judge(), 2)


@pytest.mark.parametrize(
    ("heading", "pick"),
    [
        ("Top level", lambda data: data),
        ("verdicts", lambda data: data["verdicts"][0]),
        ("pings.matrix", lambda data: data["pings"]["matrix"][0]),
    ],
)
def test_keys_of_the_json(data: dict[str, t.Any], heading: str, pick: t.Callable[[t.Any], dict[str, t.Any]]) -> None:
    assert [row[0].strip("`") for row in rows(heading)] == list(pick(data))


def test_keys_of_what_was_left_out() -> None:
    case = fleets.good("a3", [f"p{number}" for number in range(12)])
    left_out = preflight.to_json(case.judge())["pings"]["left_out"]
    assert [row[0].strip("`") for row in rows("pings.left_out")] == list(left_out[0])


def test_modes_and_their_default() -> None:
    assert [row[0] for row in rows("Pings")] == [f"`{mode}`" for mode in MODES]
    assert f"`preflight_ping_peers` ({PEERS})" in TEXT


def test_signs_are_those_of_the_matrix() -> None:
    signs = {row[1]: row[0].strip("`") for row in rows("Reading the report") if row[1]}
    assert signs == {str(severity): sign for severity, sign in SIGNS.items()}

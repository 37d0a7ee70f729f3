# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""docs/seed-coverage.md has every demand of the seed, and what it says holds them is there."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight.checks.catalog import BY_ID
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.rules.catalog import RULES

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent
PAGE = ROOT / "docs" / "seed-coverage.md"


def statements() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_seed_statements", HERE / "statements.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the seed on the page."""

    line: int
    digest: str
    says: str
    what: str
    held: str

    @property
    def references(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.held)


def rows() -> list[Row]:
    found = re.findall(
        r"^\| (\d+) \| `([0-9a-f]+)` \| ([a-z, ]+) \| (.+?) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    return [Row(int(line), digest, says, what, held) for line, digest, says, what, held in found]


ROWS = rows()
SEED: dict[str, object] = json.loads((HERE / "data" / "lines.json").read_text(encoding="utf-8"))


def seed_statements() -> dict[int, tuple[str, str]]:
    """Line number -> (digest, what it says), from the data."""
    lines, said = SEED["lines"], SEED["statements"]
    assert isinstance(lines, list) and isinstance(said, dict)
    return {int(number): (lines[int(number) - 1], ", ".join(kinds)) for number, kinds in said.items()}


def test_every_demand_has_its_row_and_there_is_no_other() -> None:
    on_page = {row.line: (row.digest, row.says) for row in ROWS}
    assert len(on_page) == len(ROWS), "a line has two rows"
    assert on_page == seed_statements()


def test_every_row_is_held() -> None:
    assert [row.line for row in ROWS if not row.references] == []


def named(kind: str) -> set[str]:
    """What the page names with this prefix."""
    return {ref.removeprefix(kind) for row in ROWS for ref in row.references if ref.startswith(kind)}


def test_every_rule_and_check_that_is_named_exists() -> None:
    assert named("rule:") and not named("rule:") - set(RULES)
    assert named("check:") and not named("check:") - set(BY_ID)


def test_every_test_that_is_named_is_collected() -> None:
    """Asked of pytest itself: a function that no one collects holds nothing."""
    tests = named("tests/")
    files = sorted({f"tests/{ref.partition('::')[0]}" for ref in tests})
    assert not [file for file in files if not (ROOT / file).is_file()]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    collected = {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    wrong = {f"tests/{ref}" for ref in tests} - collected
    assert tests and not wrong, f"not collected: {sorted(wrong)}"


def test_every_reference_is_of_a_kind_that_is_looked_up() -> None:
    for row in ROWS:
        assert all(ref.startswith(("rule:", "check:", "tests/")) for ref in row.references), row


def test_the_digests_are_of_a_whole_text() -> None:
    lines = SEED["lines"]
    assert isinstance(lines, list)
    assert len(lines) > 1000 and all(re.fullmatch(r"[0-9a-f]{12}", digest) for digest in lines)
    assert max(seed_statements()) <= len(lines)


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("Ports must be free.", ["must"]),
        ("You should use 1.", ["should"]),
        ("Do not set it on both sides.", ["not"]),
        ("It is not yet supported; do not use it.", ["not"]),
        ("端口必须空闲。", ["must"]),
        ("建议先预热服务。", ["should"]),
        ("不要将其放在子连接器中。", ["not"]),
        ("1 <= dp-size-local <= dp-size", ["must"]),
        ("物理层要求", []),
        ("部署示例代理", []),
        ("--max-num-seqs 8 \\", []),
    ],
)
def test_demands_are_found_by_their_words(line: str, kinds: list[str]) -> None:
    assert statements().kinds(line) == kinds


def test_the_extraction_of_a_text() -> None:
    made = statements().extract("Title\n  Ports must be free.  \n")
    assert made["statements"] == {"2": ["must"]}
    assert made["lines"][1] == statements().digest("Ports must be free."), "spaces around a line do not count"

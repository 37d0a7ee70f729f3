# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The planner's layers are as docs/architecture.md draws them: each imports only layers above it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import markdown_pages
import pytest

PLANNER = markdown_pages.ROOT / "plugins" / "plugin_utils"
PAGE = markdown_pages.read(markdown_pages.ROOT / "docs" / "architecture.md")


def layers() -> list[str]:
    """Module names in the order of the table; its last row names several."""
    (rows,) = (rows for _heading, columns, rows in PAGE.tables() if columns[:2] == ["layer", "file"])
    return [name for row in rows for name in re.findall(r"[a-z_]+", row[0])]


ORDER = layers()


def imported(path: Path) -> set[str]:
    """Planner modules that a file imports, whatever the form of the import."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        inside = path.parent != PLANNER and node.level == 1
        if not inside:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found.update(name.partition(".")[0] for name in names)
    return found & set(ORDER)


@pytest.mark.parametrize("layer", ORDER)
def test_layer_imports_only_those_above(layer: str) -> None:
    module = PLANNER / f"{layer}.py"
    files = [module] if module.is_file() else sorted((PLANNER / layer).glob("*.py"))
    assert files, f"docs/architecture.md names a layer {layer} that is not there"
    allowed = set(ORDER[: ORDER.index(layer)]) | {layer}
    for file in files:
        assert imported(file) <= allowed, file.name


def test_every_module_has_its_place() -> None:
    """collect.py is the bridge to Ansible and described beside the table."""
    modules = {path.stem for path in PLANNER.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert modules - {"__init__", "collect"} == set(ORDER)

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""As much Markdown as the tests of the documentation need: headings with their anchors, links, tables, code blocks."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

_FENCE = re.compile(r"^\s*(```+|~~~+)\s*(\w*)\s*$")
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
_LINK = re.compile(r"(?<!!)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_CODE_SPAN = re.compile(r"`[^`]*`")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: the word behind the fence, its lines and the line number it begins at."""

    language: str
    lines: tuple[str, ...]
    number: int


@dataclasses.dataclass(frozen=True)
class Page:
    """One Markdown file, taken apart. prose holds the lines outside of fenced blocks, the others left empty."""

    path: Path
    prose: tuple[str, ...]
    blocks: tuple[Block, ...]

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    def headings(self) -> list[tuple[int, str]]:
        """(level, text) of every heading."""
        found = [_HEADING.match(line) for line in self.prose]
        return [(len(match[1]), match[2]) for match in found if match]

    def anchors(self) -> set[str]:
        """What a link to this page may name behind '#', as the usual renderers make it from headings."""
        seen: dict[str, int] = {}
        out = set()
        for _level, text in self.headings():
            anchor = slug(text)
            count = seen.get(anchor, 0)
            seen[anchor] = count + 1
            out.add(f"{anchor}-{count}" if count else anchor)
        return out

    def links(self) -> list[tuple[int, str]]:
        """(line number, target) of every link outside of code."""
        # A link may be broken over two lines, and a code span holds none.
        text = "\n".join(_CODE_SPAN.sub(lambda span: " " * len(span[0]), line) for line in self.prose)
        return [(text.count("\n", 0, match.start()) + 1, match[2]) for match in _LINK.finditer(text)]

    def tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """(heading above, column names, rows) of every table."""
        found: list[tuple[str, list[str], list[list[str]]]] = []
        heading, table = "", None
        for line in self.prose:
            match = _HEADING.match(line)
            if match:
                heading = match[2]
            if not line.startswith("|"):
                table = None
                continue
            cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if table is None:
                table = (heading, cells, [])
                found.append(table)
            elif not all(set(cell) <= set("-: ") and cell for cell in cells):
                table[2].append(cells)
        return found


def slug(heading: str) -> str:
    """The anchor of a heading: lower case, blanks to dashes, other punctuation gone."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def read(path: Path) -> Page:
    prose: list[str] = []
    blocks: list[Block] = []
    fence: str | None = None
    language, lines, start = "", [], 0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = _FENCE.match(line)
        if fence is None and match:
            fence, language, lines, start = match[1], match[2], [], number
        elif fence is not None and match and match[1] == fence and not match[2]:
            blocks.append(Block(language, tuple(lines), start))
            fence = None
        elif fence is not None:
            lines.append(line)
            prose.append("")
            continue
        else:
            prose.append(line)
            continue
        prose.append("")
    assert fence is None, f"{path}: the code block of line {start} is never closed"
    return Page(path, tuple(prose), tuple(blocks))


def pages() -> list[Page]:
    """README, CONTRIBUTING, docs and the roles' READMEs."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    files += sorted((ROOT / "roles").glob("*/README.md"))
    return [read(path) for path in files]

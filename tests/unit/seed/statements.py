# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What the seed says that one must, should or must not do, found in its text by the words that say so.

The text itself is not here: data/lines.json holds a digest of each of its lines and which lines hold such a statement.
With the text at hand the file is made, or held against it, by

    python tests/unit/seed/statements.py SEED.txt [--write]
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path

DATA = Path(__file__).parent / "data" / "lines.json"

# In English and in Chinese, as the seed is written in both. Generous: a line too many costs a row, one too few a duty.
_WORDS = {
    "must": (
        r"\bmust\b|\brequire[sd]?\b|\bneed(s|ed)?\b|\b[Ee]nsure\b|\b[Mm]ake sure\b|<=|"
        r"必须|确保|需要|需提前|要求(?=\S)|应防止|应满足|应大于|应相等|应为1|不得|一致|至少"
    ),
    "should": (
        r"\bshould\b|recommend|\b[Pp]lease\b|\b(Choose|Keep|Use the|Check|Set|Upgrade|Prepare|Create an|Follow)\b|\bvalidate\b|"
        r"建议|请|应|推荐|避免|避开|适用于|相同的节点"
    ),
    "not": (
        r"\b[Dd]o not\b|\bdoes not\b|\bcannot\b|\bNOT\b|\bnever\b|\bnot yet\b|\bomit\b|\bonly\b|\bno longer\b|"
        r"不要|不能|不会|无需|不需要|不支持|不接受|尚未|并不|仅"
    ),
}


def kinds(line: str) -> list[str]:
    """Which of must, should, not a line says; none for most lines."""
    return [kind for kind, words in _WORDS.items() if re.search(words, line)]


def digest(line: str) -> str:
    """What stands for a line; spaces around it do not count."""
    return hashlib.sha256(line.strip().encode()).hexdigest()[:12]


def extract(text: str) -> dict[str, object]:
    """The content of data/lines.json for a text."""
    lines = text.splitlines()
    found = {number: kinds(line) for number, line in enumerate(lines, 1)}
    return {
        "lines": [digest(line) for line in lines],
        "statements": {str(number): said for number, said in found.items() if said},
    }


def main(arguments: list[str]) -> int:
    made = extract(Path(arguments[0]).read_text(encoding="utf-8"))
    if "--write" in arguments:
        DATA.write_text(json.dumps(made, separators=(",", ":")) + "\n", encoding="utf-8")
        return 0
    same = json.loads(DATA.read_text(encoding="utf-8")) == made
    print("data/lines.json is of this text" if same else "data/lines.json is of another text, or of other words")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

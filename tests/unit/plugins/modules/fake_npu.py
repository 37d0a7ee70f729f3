# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""A host whose hccn_tool and npu-smi are a few lines of shell: each call is logged and answered from a file."""

from __future__ import annotations

import shlex
from pathlib import Path

FAKE = """#!/bin/sh
printf '%s\\n' "{name} $*" >> {log}
name=$(printf '%s' "$*" | tr -c 'A-Za-z0-9.\\n' '_')
for file in {answers}/{name}."$name" {answers}/{name}.default; do
    if [ -f "$file.sh" ]; then . "$file.sh"; exit; fi
    if [ -f "$file" ]; then cat "$file"; exit "$(cat "$file.exit" 2>/dev/null || echo 0)"; fi
done
echo 'Command execute failed!'
exit 1
"""


class FakeHost:
    """Below *root* as a host sees it; what is not the host's lies beside it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.bin = folder / "bin"
        self.answers = folder / "answers"
        self.log = folder / "calls"
        for path in (self.root / "dev", self.root / "etc", self.bin, self.answers):
            path.mkdir(parents=True)
        self.log.touch()
        for name in ("hccn_tool", "npu-smi"):
            text = FAKE.replace("{name}", name).replace("{log}", shlex.quote(str(self.log)))
            (self.bin / name).write_text(text.replace("{answers}", shlex.quote(str(self.answers))))
            (self.bin / name).chmod(0o755)

    def chips(self, *ids: int) -> None:
        """Chips that have a node."""
        for chip in ids:
            (self.root / f"dev/davinci{chip}").touch()

    def answer(self, tool: str, words: str, text: str, exit_code: int = 0) -> None:
        """What a tool prints when it is called with these words; 'default' for all others."""
        path = self._file(tool, words)
        path.write_text(text, encoding="utf-8")
        Path(f"{path}.exit").write_text(str(exit_code))

    def script(self, tool: str, words: str, body: str) -> None:
        """Lines of shell instead of a text."""
        Path(f"{self._file(tool, words)}.sh").write_text(body + "\n", encoding="utf-8")

    def _file(self, tool: str, words: str) -> Path:
        return (
            self.answers / f"{tool}.{''.join(c if c.isascii() and (c.isalnum() or c == '.') else '_' for c in words)}"
        )

    @property
    def calls(self) -> list[str]:
        """Every call, in its order."""
        return self.log.read_text(encoding="utf-8").splitlines()

    def arguments(self) -> dict[str, object]:
        """How a module reaches this host."""
        return {"root": str(self.root), "environment": {"PATH": f"{self.bin}:/usr/bin:/bin"}}

    def tree(self) -> list[tuple[str, int, int]]:
        """Everything on the host, with its size and time."""
        paths = sorted(self.root.rglob("*"))
        return [(str(path), path.lstat().st_size, path.lstat().st_mtime_ns) for path in (self.root, *paths)]

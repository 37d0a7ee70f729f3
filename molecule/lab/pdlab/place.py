# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Where things are on this machine, and running commands there."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

LAB = Path(__file__).resolve().parents[1]
CHECKOUT = LAB.parents[1]
SIMULATORS = CHECKOUT / "roles" / "rehearsal" / "files"

# Caches and hosts. They need root's own file system: device nodes, owners, overlays.
DIR = Path(os.environ.get("LAB_DIR") or "/var/tmp/pd_serving_lab")
# Several labs at once have several names. It is also the name of the controller's network namespace.
NAME = os.environ.get("LAB_NAME") or "pdlab"
STATE = DIR / "labs" / NAME


def _load(path: Path) -> ModuleType:
    """A module of the collection by its path: the lab needs neither the collection's package nor Ansible."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


npus = _load(CHECKOUT / "plugins" / "plugin_utils" / "npus.py")


class LabError(Exception):
    """What went wrong, in words for the user."""


def run(*command: str | Path, check: bool = True, env: dict[str, str] | None = None) -> str:
    """What the command printed. Raises LabError when it fails, unless that does not matter."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
    )
    if check and done.returncode != 0:
        raise LabError(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout.strip()}")
    return done.stdout


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """The whole text or none of it: an interruption leaves what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.chmod(mode)
    part.replace(path)


def key(*parts: str | Path) -> str:
    """A short digest of texts and of the content of files and folders: what is kept under it never goes stale."""
    digest = hashlib.sha256()
    for part in parts:
        files = [part] if isinstance(part, str) or part.is_file() else sources(part)
        for item in files:
            digest.update(item.encode() if isinstance(item, str) else item.name.encode() + item.read_bytes())
            digest.update(b"\0")
    return digest.hexdigest()[:16]


def sources(folder: Path) -> Iterable[Path]:
    """The files of a folder that are not by-products of running it."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Build the collection and hold what is in the artifact against a list of what may be.

`build_ignore` in galaxy.yml is a list of what to leave out, so whatever nobody thought of gets in. This is the other
half: whatever nobody thought of is an error.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The first part of a path.
ALLOWED = {
    "CHANGELOG.md",
    "FILES.json",
    "LICENSE",
    "MANIFEST.json",
    "README.md",
    "changelogs",
    "docs",
    "meta",
    "playbooks",
    "plugins",
    "recipes",
    "roles",
}
REQUIRED = {"FILES.json", "LICENSE", "MANIFEST.json", "README.md", "meta", "playbooks", "plugins", "roles"}
FORBIDDEN_PARTS = {"__pycache__", "tests", "molecule"}
FORBIDDEN_SUFFIXES = {".gz", ".key", ".log", ".pem", ".pyc", ".retry", ".swp"}


def build(output: Path) -> Path:
    """Build the artifact of this checkout into the folder and return its path."""
    galaxy = Path(sys.executable).with_name("ansible-galaxy")
    command = [str(galaxy), "collection", "build", str(ROOT), "--output-path", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    (artifact,) = output.glob("*.tar.gz")
    return artifact


def names(artifact: Path) -> list[str]:
    """Every file and folder in the artifact."""
    with tarfile.open(artifact) as archive:
        return archive.getnames()


def problems(members: list[str]) -> list[str]:
    """One line per thing that is in the artifact and should not be, or the other way round."""
    found = []
    for member in members:
        path = Path(member)
        if path.parts[0] not in ALLOWED:
            found.append(f"{member}: not one of the parts of a collection; list it in build_ignore of galaxy.yml")
        elif FORBIDDEN_PARTS & set(path.parts) or path.suffix in FORBIDDEN_SUFFIXES or path.name.startswith("."):
            found.append(f"{member}: nothing a user needs; remove it or list it in build_ignore of galaxy.yml")
    present = {Path(member).parts[0] for member in members}
    found += [f"{name}: missing" for name in sorted(REQUIRED - present)]
    return found


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        members = names(build(Path(scratch)))
    found = problems(members)
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        print(f"the artifact holds {len(members)} files and folders, all of them of a collection")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The collection as its other users get it: built, installed somewhere else, and run from an unrelated folder.

A checkout finds much by being one (ansible.cfg, the link, files beside site.yml). Nothing of that is here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent


def run(tool: str, *arguments: str, cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [str(TOOLS / tool), *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=240)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """An unrelated folder, and an environment in which only the installed collection can be found."""
    base = tmp_path_factory.mktemp("installed elsewhere")
    home, cwd, installed = base / "home", base / "cwd", base / "collections"
    for folder in (home, cwd, installed):
        folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environment |= {
        "HOME": str(home),
        "ANSIBLE_HOME": str(home / ".ansible"),
        "ANSIBLE_COLLECTIONS_PATH": str(installed),
        "LC_ALL": "C.UTF-8",
    }
    built = run(
        "ansible-galaxy", "collection", "build", str(ROOT), "--output-path", str(base), cwd=cwd, environment=environment
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (artifact,) = base.glob("*.tar.gz")
    options = ("-p", str(installed), "--no-deps", "--offline")
    done = run("ansible-galaxy", "collection", "install", str(artifact), *options, cwd=cwd, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (installed / "ansible_collections" / "ascend" / "pd_serving" / "MANIFEST.json").is_file()
    return cwd, environment


def test_plan_runs_from_the_installed_collection(elsewhere: tuple[Path, dict[str, str]]) -> None:
    cwd, environment = elsewhere
    shutil.copytree(ROOT / "inventories" / "1p1d", cwd / "inventory")
    plan_file = cwd / "plan.json"
    done = run(
        "ansible-playbook",
        "ascend.pd_serving.plan",
        "-i",
        "inventory",
        "-e",
        # As JSON: the value of a plain NAME=VALUE ends at the first space, and this path has one.
        json.dumps({"plan_out": str(plan_file)}),
        cwd=cwd,
        environment=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    plan = json.loads(plan_file.read_text(encoding="utf-8"))
    assert plan["schema"] == 1
    assert {instance["role"] for instance in plan["instances"]} == {"prefill", "decode"}
    assert [finding for finding in plan["findings"] if finding["severity"] == "error"] == []


def test_every_playbook_is_found_by_its_full_name(elsewhere: tuple[Path, dict[str, str]]) -> None:
    """Each verb, with its roles and plugins, comes out of the installed copy alone."""
    cwd, environment = elsewhere
    inventory = str(ROOT / "inventories" / "1p1d")
    verbs = [path.stem for path in sorted((ROOT / "playbooks").glob("*.yml")) if not path.name.startswith("_")]
    assert verbs
    names = [f"ascend.pd_serving.{verb}" for verb in verbs]
    done = run("ansible-playbook", "--syntax-check", "-i", inventory, *names, cwd=cwd, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr

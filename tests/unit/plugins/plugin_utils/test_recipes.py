# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Every recipe plans, both as `-e @recipes/...` and as group_vars, on hosts in the layout of its source."""

from __future__ import annotations

import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import planner, rehearsal
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils import inventories
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import planned, told

ROOT = Path(__file__).resolve().parents[4]
RECIPES = {path.stem: path for path in sorted((ROOT / "recipes").glob("*.yml"))}
YOURS = {"pd_model_path": "/models/m", "pd_served_model_name": "m", "pd_nic": "eth0"}
# A recipe has these and what they name; what belongs to a site is the user's.
SITE = {"pd_model_path", "pd_served_model_name", "pd_nic", "pd_cluster_name", "pd_proxy_port", "pd_image", "pd_runtime"}
# Warnings that a recipe may leave; nothing else may be found.
WARNED: dict[str, set[str]] = {
    # Upstream measured them with more than one speculative token on prefill.
    "deepseek-v3.2-a3": {"speculative-tokens"},
    "minimax-m2.5-a3": {"speculative-tokens"},
    # The pool's own service is not the engines'.
    "deepseek-v4-flash-memcache-a3": {"pool-not-started"},
}

by_recipe = pytest.mark.parametrize("name", RECIPES)


def recipe(name: str) -> dict[str, t.Any]:
    loaded: dict[str, t.Any] = yaml.safe_load(RECIPES[name].read_text(encoding="utf-8"))
    return loaded


def hosts_of(name: str) -> dict[str, t.Any]:
    """An inventory in the layout that the recipe states: one child group per instance."""
    groups: dict[str, t.Any] = {}
    number = 0
    for role, sizes in recipe(name)["recipe"]["hosts"].items():
        children: dict[str, t.Any] = {}
        for index, size in enumerate(sizes):
            first = number
            number += size
            hosts = {f"h{host}": {"ansible_host": f"192.0.2.{host + 1}"} for host in range(first, number)}
            children[f"{role}_{index}"] = {"hosts": hosts}
        groups[role] = {"children": children}
    groups["proxy"] = {"hosts": {"h0": None}}
    return {"all": {"children": groups, "vars": dict(YOURS)}}


def source_of(name: str, folder: Path) -> dict[str, t.Any]:
    """What the planner gets when the recipe is a file of group_vars."""
    (folder / "group_vars" / "all").mkdir(parents=True)
    (folder / "group_vars" / "all" / "recipe.yml").symlink_to(RECIPES[name])
    (folder / "hosts.yml").write_text(yaml.safe_dump(hosts_of(name)), encoding="utf-8")
    return inventories.collected(folder)


def test_there_are_recipes() -> None:
    assert len(RECIPES) >= 8


@by_recipe
def test_a_recipe_plans_on_the_hosts_of_its_source(name: str, tmp_path: Path) -> None:
    plan = planned(source_of(name, tmp_path))
    found = {finding.rule for finding in plan.findings}
    assert not plan.errors and found <= WARNED.get(name, set()), told(plan.findings)
    assert plan.cluster is not None
    used = sum(len(process.visible_devices.split(",")) for p in plan.placements for process in p.processes)
    stated = recipe(name)["recipe"]
    wanted = sum(
        len(stated["hosts"][role]) * stated[role]["dp_size"] * stated[role]["tp_size"] for role in ("prefill", "decode")
    )
    assert used == wanted, "every rank of every instance got its chips"


@by_recipe
def test_a_recipe_can_be_rehearsed(name: str, tmp_path: Path) -> None:
    plan = planned(rehearsal.rehearse(source_of(name, tmp_path), "/state"))
    assert not plan.errors, told(plan.errors)


@by_recipe
def test_each_role_gets_its_own_options(name: str, tmp_path: Path) -> None:
    plan = planned(source_of(name, tmp_path))
    stated = recipe(name)["recipe"]
    for placement in plan.placements:
        own = stated[placement.instance.role]
        assert placement.instance.dp_size == own["dp_size"] and placement.instance.tp_size == own["tp_size"]
        argv = placement.processes[0].argv
        assert argv[argv.index("--max-num-seqs") + 1] == str(own["engine_args"]["max-num-seqs"])
        for key, value in own["engine_env"].items():
            assert placement.processes[0].env[key] == value


@by_recipe
def test_a_recipe_says_where_it_comes_from_and_leaves_the_site_alone(name: str) -> None:
    loaded = recipe(name)
    assert {"model", "source", "version", "hosts", "prefill", "decode"} == set(loaded["recipe"])
    assert loaded["recipe"]["source"].endswith((".md", ".yaml")) and loaded["recipe"]["version"]
    assert name.endswith(f"-{loaded['pd_hardware']}")
    assert not SITE & set(loaded)


@by_recipe
def test_every_recipe_is_in_the_list(name: str) -> None:
    listed = (ROOT / "recipes" / "README.md").read_text(encoding="utf-8")
    assert f"[{name}]({name}.yml)" in listed


def test_the_inventories_hold_recipes_as_they_are() -> None:
    """A copy in each, so that an inventory can be copied anywhere; the two must not drift apart."""
    copies = {path.parents[2].name: path for path in (ROOT / "inventories").glob("*/group_vars/all/recipe.yml")}
    assert {"2p1d", "4p1d-a2"} <= set(copies)
    whole = {path.read_bytes(): name for name, path in RECIPES.items()}
    wrong = [name for name, path in copies.items() if path.read_bytes() not in whole]
    assert not wrong, f"not equal to any file of recipes/: {wrong}"


def test_a_recipe_on_the_command_line(tmp_path: Path) -> None:
    """`-e @recipes/...`, by ansible-playbook itself: the same plan as by group_vars."""
    name = "deepseek-v3.2-a3"
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(hosts_of(name)), encoding="utf-8")
    out = tmp_path / "plan.json"
    command = [
        str(Path(sys.executable).with_name("ansible-playbook")),
        "plan.yml",
        *("-i", str(tmp_path / "hosts.yml"), "-e", f"@{RECIPES[name]}", "-e", f"plan_out={out}"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "inventory").mkdir()
    assert out.read_bytes() == planner.to_json(planned(source_of(name, tmp_path / "inventory")))

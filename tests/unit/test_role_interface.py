# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""A role's variables are an interface: defaults, argument specs and README must tell the same story.

Documented defaults drift from the real ones in every collection that does not test for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROLES = Path(__file__).resolve().parents[2] / "roles"
NAMES = sorted(path.name for path in ROLES.iterdir() if path.is_dir()) if ROLES.is_dir() else []

# Read by the planner, not by a role, and documented in docs/inventory.md.
CLUSTER_PREFIX = "pd_"


class Role:
    """What a role says about its variables, in each of the three places."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = ROLES / name
        self.defaults: dict[str, Any] = self._yaml("defaults/main.yml")
        self.entry_points: dict[str, dict[str, Any]] = self._yaml("meta/argument_specs.yml").get("argument_specs", {})
        readme = self.path / "README.md"
        self.readme = readme.read_text(encoding="utf-8") if readme.is_file() else ""

    def _yaml(self, relative: str) -> dict[str, Any]:
        path = self.path / relative
        return (yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.is_file() else {}

    def options(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """(entry point, variable, its spec) of every variable of every entry point."""
        for point, spec in self.entry_points.items():
            for name, option in (spec.get("options") or {}).items():
                yield point, name, option

    def variables(self) -> set[str]:
        """The names of all variables, wherever they are said."""
        return set(self.defaults) | {name for _point, name, _option in self.options()}

    def spec_of(self, variable: str) -> list[dict[str, Any]]:
        return [option for _point, name, option in self.options() if name == variable]


@pytest.fixture(params=NAMES)
def role(request: pytest.FixtureRequest) -> Role:
    return Role(request.param)


def described(option: dict[str, Any]) -> bool:
    text = option.get("description")
    return bool("".join(text) if isinstance(text, list) else text)


def undescribed(prefix: str, options: dict[str, Any]) -> list[str]:
    """Names, dotted, of the options below that have no description."""
    missing = []
    for name, option in options.items():
        path = f"{prefix}{name}"
        if not described(option):
            missing.append(path)
        missing += undescribed(f"{path}.", option.get("options") or {})
    return missing


def test_there_are_roles() -> None:
    """Else everything below would pass without having looked at anything."""
    assert NAMES, f"no role in {ROLES}"


def test_every_entry_point_is_specified(role: Role) -> None:
    """`main` is always specified, and nothing is specified that a caller could not name in `tasks_from`."""
    assert "main" in role.entry_points, f"roles/{role.name}/meta/argument_specs.yml has no entry point main"
    for point, spec in role.entry_points.items():
        files = [role.path / "tasks" / f"{point}{suffix}" for suffix in (".yml", ".yaml")]
        assert any(path.is_file() for path in files), f"{role.name}: {point} is specified, but has no tasks file"
        assert spec.get("short_description"), f"{role.name}: {point} has no short_description"


def test_every_default_is_specified_with_its_real_value(role: Role) -> None:
    wrong = []
    for name, value in role.defaults.items():
        specs = role.spec_of(name)
        if not specs:
            wrong.append(f"{name}: not in argument_specs")
        for spec in specs:
            # Not giving a default and the default null are one thing to Ansible.
            if spec.get("default") != value or isinstance(spec.get("default"), bool) != isinstance(value, bool):
                wrong.append(f"{name}: {value!r} in defaults, {spec.get('default')!r} in argument_specs")
    assert not wrong, f"role {role.name}:\n" + "\n".join(wrong)


def test_every_option_is_required_or_has_a_default(role: Role) -> None:
    wrong = [
        f"{point}: {name}"
        for point, name, option in role.options()
        if not option.get("required") and name not in role.defaults
    ]
    assert not wrong, f"role {role.name}: neither required nor in defaults/main.yml: {wrong}"


def test_required_options_have_no_default(role: Role) -> None:
    wrong = [name for _point, name, option in role.options() if option.get("required") and name in role.defaults]
    assert not wrong, f"role {role.name}: required, but with a default that makes it optional: {wrong}"


def test_every_option_is_described_and_typed(role: Role) -> None:
    for point, spec in role.entry_points.items():
        options = spec.get("options") or {}
        assert not undescribed("", options), f"role {role.name}, {point}: without a description"
        assert not [name for name, option in options.items() if "type" not in option], f"role {role.name}: no type"


def test_variables_carry_the_role_name(role: Role) -> None:
    """Role variables are global in Ansible: only a prefix keeps two roles from reading each other's."""
    wrong = [name for name in sorted(role.variables()) if not name.startswith((f"{role.name}_", CLUSTER_PREFIX))]
    assert not wrong, f"role {role.name}: {wrong}"


def test_readme_mentions_every_variable(role: Role) -> None:
    assert role.readme, f"roles/{role.name}/README.md is missing"
    missing = [name for name in sorted(role.variables()) if not re.search(rf"\b{re.escape(name)}\b", role.readme)]
    assert not missing, f"roles/{role.name}/README.md does not mention {missing}"


def test_readme_mentions_no_variable_that_is_gone(role: Role) -> None:
    mentioned = set(re.findall(rf"`({re.escape(role.name)}_\w+)`", role.readme))
    gone = sorted(mentioned - role.variables())
    assert not gone, f"roles/{role.name}/README.md mentions {gone}"

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What a rule sees, and the two ways it speaks."""

from __future__ import annotations

import collections
import dataclasses
import functools
import typing as t

from ..command import Arguments
from ..model import Cluster, Finding, Instance, Placement, Role, Transport


@dataclasses.dataclass
class Context:
    """placements can be laid out; everywhere has the shadows of the others too, and arguments their merged options."""

    cluster: Cluster
    placements: list[Placement]
    everywhere: list[Placement]
    arguments: list[Arguments]
    transport: Transport

    @functools.cached_property
    def complete(self) -> list[Instance]:
        return [instance for instance in self.cluster.instances if instance.complete]

    @functools.cached_property
    def sized(self) -> list[Instance]:
        """complete, and those whose ranks alone could not be laid out."""
        return [instance for instance in self.cluster.instances if instance.sized]

    @functools.cached_property
    def on_host(self) -> dict[str, list[Placement]]:
        hosts: dict[str, list[Placement]] = collections.defaultdict(list)
        for placement in self.placements:
            hosts[placement.host].append(placement)
        return hosts

    def first(self, role: Role) -> Instance | None:
        return next((instance for instance in self.complete if instance.role == role), None)

    @property
    def served(self) -> t.Iterator[tuple[Placement, Arguments]]:
        """Placements with API servers, and their options: those that the proxy addresses."""
        for placement, args in zip(self.everywhere, self.arguments, strict=True):
            if any(process.api_port is not None for process in placement.processes):
                yield placement, args

    @functools.cached_property
    def options_of(self) -> dict[str, list[tuple[Placement, Arguments]]]:
        """Instance name -> its placements with distinct options: one entry where all hosts have the same."""
        out: dict[str, list[tuple[Placement, Arguments]]] = collections.defaultdict(list)
        for placement, args in zip(self.everywhere, self.arguments, strict=True):
            entries = out[placement.instance.name]
            if not any(known is args or known == args for _placement, known in entries):
                entries.append((placement, args))
        return out

    def of_role(self, role: Role) -> t.Iterator[tuple[Placement, Arguments]]:
        for instance in self.cluster.instances:
            if instance.role == role:
                yield from self.options_of.get(instance.name, [])


def given_environment(context: Context, placement: Placement, name: str) -> str:
    """The variable that an environment variable of a placement comes from: the last mapping that has it."""
    layers = (
        ("pd_engine_env_extra", placement.member.engine_env_extra),
        ("pd_engine_env", placement.instance.engine_env),
        ("pd_engine_env_common", context.cluster.engine_env_common),
    )
    return f"{next((variable for variable, layer in layers if name in layer), 'pd_engine_env')}.{name}"


def error(rule: str, host: str | None, variable: str | None, value: t.Any, message: str, fix: str) -> Finding:
    return Finding(rule, "error", host, variable, value, message, fix)


def warning(rule: str, host: str | None, variable: str | None, value: t.Any, message: str, fix: str) -> Finding:
    return Finding(rule, "warning", host, variable, value, message, fix)

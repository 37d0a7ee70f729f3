# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""An inventory folder read by Ansible itself, as a playbook would."""

from __future__ import annotations

import typing as t
from pathlib import Path

from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import collect


def hostvars_of(path: Path) -> t.Any:
    loader = DataLoader()
    manager = InventoryManager(loader=loader, sources=[str(path)])
    return HostVars(manager, VariableManager(loader=loader, inventory=manager), loader)


def collected(path: Path) -> dict[str, t.Any]:
    return collect.collect(hostvars_of(path))

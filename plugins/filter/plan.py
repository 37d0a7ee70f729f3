# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Filter ascend.pd_serving.plan."""

from __future__ import annotations

DOCUMENTATION = r"""
name: plan
author: the ascend.pd_serving contributors (@ascend-pd-serving)
version_added: 0.1.0
short_description: Plan a cluster from plain variables
description:
  - Pure function from an inventory's variables to the complete plan, the same one that M(ascend.pd_serving.plan) keeps.
  - Never fails for what is wrong with the values; see C(findings) in the result.
options:
  _input:
    description:
      - V(hostvars), or a mapping with the keys C(groups) and C(hosts).
      - C(groups.prefill) and C(groups.decode) have C(hosts) (list) and C(children) (mapping of child group to hosts),
        C(groups.proxy) has C(hosts); C(hosts) has the variables of each host.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Ask which ports the decode hosts need open
  ansible.builtin.debug:
    msg: "{{ the_plan.placements | selectattr('role', 'eq', 'decode') | map(attribute='ports') }}"
  vars:
    the_plan: "{{ hostvars | ascend.pd_serving.plan }}"
  run_once: true
"""

RETURN = r"""
_value:
  description: The plan (docs/plan.md).
  type: dict
"""

import collections.abc as c
import json
import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import collect, planner


def plan(variables: t.Any) -> dict[str, t.Any]:
    """Return the plan of plain variables or of Ansible's hostvars."""
    if hasattr(variables, "raw_get"):
        source = collect.collect(variables)
    elif isinstance(variables, c.Mapping) and {"groups", "hosts"} <= set(variables):
        source = collect.plain(variables)
    else:
        raise AnsibleFilterError("ascend.pd_serving.plan takes hostvars, or a mapping with the keys groups and hosts")
    loaded: dict[str, t.Any] = json.loads(planner.to_json(planner.plan(source)))
    return loaded


class FilterModule:
    """Planning in a playbook of one's own."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"plan": plan}

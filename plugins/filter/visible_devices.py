# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Filter ascend.pd_serving.visible_devices."""

from __future__ import annotations

DOCUMENTATION = r"""
name: visible_devices
author: the ascend.pd_serving contributors (@ascend-pd-serving)
version_added: 0.1.0
short_description: ASCEND_RT_VISIBLE_DEVICES for physical chips
description:
  - Inside a container the runtime counts the mapped chips from zero. Mapped 0,3,4,7 and wanted 4,7 give V(2,3).
positional: _input, mapped_chips
options:
  _input:
    description: Physical ids of the chips to compute on.
    type: list
    elements: int
    required: true
  mapped_chips:
    description: Physical ids the container sees. Default is the input itself.
    type: list
    elements: int
"""

EXAMPLES = r"""
- name: Two of four mapped chips ("2,3")
  ansible.builtin.debug:
    msg: "{{ [4, 7] | ascend.pd_serving.visible_devices([0, 3, 4, 7]) }}"
"""

RETURN = r"""
_value:
  description: Value of ASCEND_RT_VISIBLE_DEVICES.
  type: str
  sample: "2,3"
"""

import collections.abc as c
import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import layout, variables


def visible_devices(chips: t.Any, mapped_chips: t.Any = None) -> str:
    """Return the indices of the chips inside the container, comma separated."""
    wanted = _numbers(chips, "the input")
    mapped = sorted(_numbers(chips if mapped_chips is None else mapped_chips, "mapped_chips"))
    try:
        return ",".join(map(str, layout.visible_devices(mapped, wanted)))
    except ValueError as problem:
        raise AnsibleFilterError(f"ascend.pd_serving.visible_devices: {problem}") from problem


def _numbers(chips: t.Any, what: str) -> list[int]:
    if isinstance(chips, str) or not isinstance(chips, c.Sequence) or not chips:
        raise AnsibleFilterError(f"ascend.pd_serving.visible_devices: {what} must be a list of chip numbers")
    try:
        numbers = [variables.whole_number(chip) for chip in chips]
    except (TypeError, ValueError) as problem:
        raise AnsibleFilterError(f"ascend.pd_serving.visible_devices: {what}: {problem}") from problem
    if len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise AnsibleFilterError(f"ascend.pd_serving.visible_devices: {what} names a chip twice or a negative one")
    return numbers


class FilterModule:
    """Device renumbering in a playbook of one's own."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"visible_devices": visible_devices}

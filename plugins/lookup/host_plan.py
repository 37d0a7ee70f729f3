# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The current host's slice of the plan."""

from __future__ import annotations

DOCUMENTATION = r"""
name: host_plan
author: the ascend.pd_serving contributors (@ascend-pd-serving)
version_added: 0.1.0
short_description: The current host's slice of the plan
description:
  - Returns what one host needs of the plan that M(ascend.pd_serving.plan) made earlier in this run; the units to run,
    what to check, where its paths are.
  - A host that the plan does not name gets an empty mapping.
options:
  _terms:
    description: Names of hosts. Without any, the current host (V(inventory_hostname)).
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Show the units of this host
  ansible.builtin.debug:
    msg: "{{ lookup('ascend.pd_serving.host_plan').units | map(attribute='name') }}"
"""

RETURN = r"""
_raw:
  description: One mapping per host; see plugins/plugin_utils/slices.py for its keys.
  type: list
  elements: dict
"""

import typing as t

from ansible import constants
from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import slices


class LookupModule(LookupBase):
    """Reads the controller's private file of this run."""

    def run(self, terms: list[str], variables: t.Any = None, **kwargs: t.Any) -> list[dict[str, t.Any]]:
        self.set_options(var_options=variables, direct=kwargs)
        if not slices.directory(constants.DEFAULT_LOCAL_TMP).is_dir():
            raise AnsibleError(
                "there is no plan in this run yet: run ascend.pd_serving.plan first (playbooks import plan.yml)"
            )
        hosts = terms or [(variables or {})["inventory_hostname"]]
        return [slices.read(constants.DEFAULT_LOCAL_TMP, host) or {} for host in hosts]

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Filter ascend.pd_serving.port_ranges."""

from __future__ import annotations

DOCUMENTATION = r"""
name: port_ranges
author: the ascend.pd_serving contributors (@ascend-pd-serving)
version_added: 0.1.0
short_description: Ports that one host's share of an instance takes
description:
  - Port arithmetic of upstream's connectors for one placement, by global data-parallel rank and binding side.
options:
  _input:
    description: Base of the connector's ports (kv_port).
    type: int
    required: true
  role:
    description: Role of the instance.
    type: str
    choices: [prefill, decode]
    required: true
  dp_rank_start:
    description: First global rank on the host.
    type: int
    default: 0
  dp_size_local:
    description: Ranks on the host.
    type: int
    default: 1
  tp_size:
    description: Tensor-parallel size.
    type: int
    default: 1
  pp_size:
    description: Pipeline-parallel size.
    type: int
    default: 1
  pcp_size:
    description: Prefill-context-parallel size.
    type: int
    default: 1
  connector:
    description: KV connector.
    type: str
    default: MooncakeConnectorV1
  api_port:
    description: First API port; without it the result has no API range.
    type: int
"""

EXAMPLES = r"""
- name: What decode binds on its second host under the layerwise connector (36216-36231)
  ansible.builtin.debug:
    msg: >-
      {{ 36200 | ascend.pd_serving.port_ranges(role='decode', dp_rank_start=16, dp_size_local=16, tp_size=1,
         connector='MooncakeLayerwiseConnector', api_port=7100) }}
"""

RETURN = r"""
_value:
  description: "C(kv_listen) and C(api) as lists of first and last port; C(kv_listen) is empty on the side that only connects."
  type: dict
  sample: {"kv_listen": [36216, 36231], "api": [7100, 7115]}
"""

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import ports, tables, variables
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.model import ROLES


def port_ranges(
    kv_port: t.Any,
    role: str,
    dp_rank_start: t.Any = 0,
    dp_size_local: t.Any = 1,
    tp_size: t.Any = 1,
    pp_size: t.Any = 1,
    pcp_size: t.Any = 1,
    connector: str = "MooncakeConnectorV1",
    api_port: t.Any = None,
) -> dict[str, list[int]]:
    """Return the ranges one placement listens on."""
    if role not in ROLES:
        raise AnsibleFilterError(f"ascend.pd_serving.port_ranges: role must be one of {', '.join(ROLES)}, not {role!r}")
    if connector not in tables.TRANSPORTS:
        known = ", ".join(tables.TRANSPORTS)
        raise AnsibleFilterError(f"ascend.pd_serving.port_ranges: connector must be one of {known}, not {connector!r}")
    try:
        numbers = [
            variables.whole_number(number)
            for number in (kv_port, dp_rank_start, dp_size_local, tp_size, pp_size, pcp_size)
        ]
        first_api = None if api_port is None else variables.whole_number(api_port)
    except (TypeError, ValueError) as problem:
        raise AnsibleFilterError(
            f"ascend.pd_serving.port_ranges: every size and port is a whole number: {problem}"
        ) from problem
    base, start, local, *sizes = numbers
    if start < 0 or min(local, *sizes) < 1:
        raise AnsibleFilterError("ascend.pd_serving.port_ranges: sizes are 1 or more, dp_rank_start 0 or more")
    listen = ports.kv_listen(tables.TRANSPORTS[connector], role, base, start, local, *sizes)
    out = {"kv_listen": list(listen or ()), "api": [] if first_api is None else list(ports.api_ports(first_api, local))}
    for name, found in out.items():
        if found and not 1 <= found[0] <= found[1] <= 65535:
            raise AnsibleFilterError(f"ascend.pd_serving.port_ranges: {name} {found[0]}-{found[1]} leaves 1-65535")
    return out


class FilterModule:
    """Port arithmetic in a playbook of one's own."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"port_ranges": port_ranges}

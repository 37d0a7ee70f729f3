#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: warm_up
short_description: Warm a deployment up before it is measured
version_added: 0.1.0
author: the ascend.pd_serving contributors (@ascend-pd-serving)
description:
  - Sends rounds of completions through the proxy and reads every answer to its end. Some operators reach their speed
    only after they have run several times, on prefill above all.
  - Reads C(/metrics) of every endpoint before and after, and names those that saw no request. They are cold still.
  - Uses no proxy of the environment.
options:
  proxy_url:
    description: Address of the proxy, V(http://host:port).
    type: str
    required: true
  model:
    description: Served model name.
    type: str
    required: true
  endpoints:
    description: API servers behind the proxy, as for M(ascend.pd_serving.completion_check).
    type: list
    elements: dict
    required: true
  requests:
    description: Requests of one round, all at the same time.
    type: int
    required: true
  rounds:
    description: How many rounds.
    type: int
    default: 3
  max_tokens:
    description: Length of an answer, in tokens.
    type: int
    default: 16
  timeout:
    description: Seconds for one complete answer. The first ones compile operators.
    type: float
    default: 300
  chat:
    description: Whether half of the requests use the chat API.
    type: bool
    default: true
  api_key:
    description: Key to send as a bearer token, where a gateway before the proxy asks for one.
    type: str
attributes:
  check_mode:
    support: none
    description: Is skipped in check mode, where nothing may have been started.
  diff_mode:
    support: none
    description: There is nothing to compare.
  platform:
    support: full
    platforms: linux
    description: Where the module works.
"""

EXAMPLES = r"""
- name: Warm up
  ascend.pd_serving.warm_up:
    proxy_url: http://192.0.2.10:1999
    model: demo
    requests: 32
    endpoints:
      - {name: prefill rank 0, role: prefill, instance: prefill-p1, host: p1, url: 'http://192.0.2.11:7100'}
      - {name: decode rank 0, role: decode, instance: decode, host: d1, url: 'http://192.0.2.21:7100'}
"""

RETURN = r"""
rounds:
  description: Per round, how many requests (C(requests)) and the spread of C(latency) and C(time_to_first_token), seconds.
  returned: success
  type: list
  elements: dict
cold:
  description: Names of the endpoints that saw no request.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ascend.pd_serving.plugins.module_utils import completions


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "proxy_url": {"type": "str", "required": True},
            "model": {"type": "str", "required": True},
            "endpoints": {"type": "list", "elements": "dict", "required": True},
            "requests": {"type": "int", "required": True},
            "rounds": {"type": "int", "default": 3},
            "max_tokens": {"type": "int", "default": 16, "no_log": False},
            "timeout": {"type": "float", "default": 300},
            "chat": {"type": "bool", "default": True},
            "api_key": {"type": "str", "no_log": True},
        },
    )
    params = module.params
    if min(params["requests"], params["max_tokens"]) < 1 or params["rounds"] < 0 or params["timeout"] <= 0:
        module.fail_json(msg="requests, max_tokens and timeout must be more than 0, rounds not less than 0")
    endpoints = [completions.Endpoint(**entry) for entry in params["endpoints"]]
    completions.allow_connections(completions.thread_limit(endpoints))
    door = completions.Door(params["proxy_url"], params["model"], params["timeout"], params["api_key"])
    warming = completions.WarmUp(door, endpoints, params["requests"], params["max_tokens"], params["chat"])
    failures = warming.run(params["rounds"])
    if failures:
        module.fail_json(msg="the cluster cannot be warmed up:\n" + "\n".join(failures[:20]), rounds=warming.rounds)
    cold = warming.cold() if params["rounds"] else []
    if cold:
        more = f" and {len(cold) - 8} more" if len(cold) > 8 else ""
        module.warn(f"still cold, since no request of the warm-up reached them: {', '.join(cold[:8])}{more}")
    module.exit_json(changed=False, rounds=warming.rounds, cold=cold)


if __name__ == "__main__":
    main()

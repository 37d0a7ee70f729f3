#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: completion_check
short_description: Prove that a deployment answers, with every endpoint at work
version_added: 0.1.0
author: the ascend.pd_serving contributors (@ascend-pd-serving)
description:
  - Sends completions through the proxy, all at the same time, half of them streamed, and reads every body to its end.
    An answer that is empty, cut off, late or not 200 is a failure.
  - Reads C(/metrics) of every endpoint before and after. An endpoint that saw no request is tried again with more
    requests, up to three rounds, and is then a failure. A decode endpoint that computed whole prompts itself is one
    too, since then the KV cache did not come from prefill.
  - Does not fail by itself; look at RV(ok). Uses no proxy of the environment.
  - Each prompt is new and about 300 tokens long, so that no prefix cache answers for the prefill side.
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
    description: API servers behind the proxy. Headless engines have none.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: What to call it; must be unique.
        type: str
        required: true
      role:
        description: Its role.
        type: str
        choices: [prefill, decode]
        required: true
      instance:
        description: Its instance.
        type: str
        required: true
      host:
        description: Its host.
        type: str
        required: true
      url:
        description: Address, V(http://host:port).
        type: str
        required: true
  requests:
    description:
      - How many requests the first round sends.
      - By default twice as many as the larger role has endpoints.
    type: int
  max_tokens:
    description: Length of an answer, in tokens.
    type: int
    default: 16
  timeout:
    description: Seconds for one complete answer.
    type: float
    default: 120
  chat:
    description: Whether half of the requests use the chat API; a base model without a chat template has none.
    type: bool
    default: true
  release_wait:
    description:
      - Seconds to wait until prefill has given back the KV cache of a request that decode refuses, one that asks for more
        tokens than there can be. Where it does not, blocks stay until the release limit.
      - 0 does not ask. Only without other traffic does the answer mean anything.
    type: float
    default: 0
  api_key:
    description: Key to send as a bearer token. The proxies of vLLM-Ascend ignore it, a gateway before them may not.
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
- name: Ask through the proxy
  ascend.pd_serving.completion_check:
    proxy_url: http://192.0.2.10:1999
    model: demo
    endpoints:
      - {name: prefill rank 0, role: prefill, instance: prefill-p1, host: p1, url: 'http://192.0.2.11:7100'}
      - {name: decode rank 0, role: decode, instance: decode, host: d1, url: 'http://192.0.2.21:7100'}
  register: checked

- name: Report what is wrong
  ansible.builtin.assert:
    that: checked.ok
    fail_msg: "{{ checked.failures | join('\n') }}"
"""

RETURN = r"""
ok:
  description: Whether there is no failure.
  returned: unless skipped
  type: bool
failures:
  description: What is wrong, each naming the request or the endpoint.
  returned: unless skipped
  type: list
  elements: str
requests:
  description: How many requests were sent.
  returned: unless skipped
  type: int
rounds:
  description: How many rounds that took.
  returned: unless skipped
  type: int
latency:
  description: C(min), C(median) and C(max) of the good answers, in seconds; null without any.
  returned: unless skipped
  type: dict
time_to_first_token:
  description: The same for the first text of streamed answers.
  returned: unless skipped
  type: dict
roles:
  description: By role, how many endpoints there are (C(total)) and how many saw a request (C(reached)).
  returned: unless skipped
  type: dict
not_judged:
  description: Names of endpoints that count no requests (statistics switched off), so nothing can be said of them.
  returned: unless skipped
  type: list
  elements: str
local_prefill:
  description:
    - V(none) when no decode endpoint computed a whole prompt itself, V(found) when one did, V(not judged) when none of
      them counts that.
  returned: unless skipped
  type: str
sample:
  description: One request (C(api), C(request)) and the C(text) of its answer; null without a good answer.
  returned: unless skipped
  type: dict
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ascend.pd_serving.plugins.module_utils import completions


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "proxy_url": {"type": "str", "required": True},
            "model": {"type": "str", "required": True},
            "endpoints": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "role": {"type": "str", "choices": ["prefill", "decode"], "required": True},
                    "instance": {"type": "str", "required": True},
                    "host": {"type": "str", "required": True},
                    "url": {"type": "str", "required": True},
                },
            },
            "requests": {"type": "int"},
            "max_tokens": {"type": "int", "default": 16, "no_log": False},
            "timeout": {"type": "float", "default": 120},
            "chat": {"type": "bool", "default": True},
            "release_wait": {"type": "float", "default": 0},
            "api_key": {"type": "str", "no_log": True},
        },
    )
    params = module.params
    endpoints = [completions.Endpoint(**entry) for entry in params["endpoints"]]
    names = [endpoint.name for endpoint in endpoints]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        module.fail_json(msg=f"endpoints names {twice[0]} more than once")
    requests = params["requests"] if params["requests"] is not None else completions.default_requests(endpoints)
    if requests < 1 or params["max_tokens"] < 1 or params["timeout"] <= 0:
        module.fail_json(msg="requests, max_tokens and timeout must be more than 0")
    completions.allow_connections(completions.thread_limit(endpoints))
    door = completions.Door(params["proxy_url"], params["model"], params["timeout"], params["api_key"])
    check = completions.Check(door, endpoints, requests, params["max_tokens"], params["chat"], params["release_wait"])
    result = check.run()
    if result["not_judged"]:
        module.warn(f"not judged, since they count no requests at /metrics: {named(result['not_judged'])}")
    if result["ok"] and result["local_prefill"] == "not judged":
        module.warn("not judged: whether decode got its KV cache from prefill, since no decode endpoint counts that")
    module.exit_json(changed=False, **result)


def named(names: t.Sequence[str]) -> str:
    """The first of them and how many more."""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


if __name__ == "__main__":
    main()

#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: aisbench
short_description: Measure a deployment by AISBench's gsm8k performance mode
version_added: 0.1.0
author: the ascend.pd_serving contributors (@ascend-pd-serving)
description:
  - Writes AISBench's configuration from what is given, runs it once over all concurrencies, and reads the result files.
  - AISBench runs without the HTTP proxies of the environment and without access to model hubs.
  - Fails when a concurrency has no results or a request has failed. The exit code of AISBench does not decide.
options:
  venv:
    description: Environment that M(ascend.pd_serving.aisbench_setup) has made.
    type: path
    required: true
  folder:
    description: Folder for the runs; each run gets one of its own below it, readable by its user only.
    type: path
    required: true
  address:
    description: Address of the proxy.
    type: str
    required: true
  port:
    description: Port of the proxy.
    type: int
    required: true
  model:
    description: Served model name.
    type: str
    required: true
  api_key:
    description: Key to send as a bearer token.
    type: str
    default: ""
  tokenizer_path:
    description: Folder with the model's tokenizer.
    type: path
    required: true
  dataset_path:
    description: Folder with gsm8k's C(train.jsonl) and C(test.jsonl).
    type: path
    required: true
  prompts:
    description:
      - V(gsm8k) fails without the dataset; V(sample) takes prompts of our own; V(auto) takes those only where the
        dataset is missing.
    type: str
    choices: [auto, gsm8k, sample]
    default: gsm8k
  tokenizer_stand_in:
    description: Whether a tiny tokenizer of our own may stand in where the model has none, as in a rehearsal.
    type: bool
    default: false
  concurrency:
    description: Requests at the same time; one measurement for each.
    type: list
    elements: int
    required: true
  request_rate:
    description: Requests per second at most; 0 is without limit.
    type: float
    default: 0
  num_prompts:
    description: Requests of one measurement; all prompts of the dataset by default.
    type: int
  max_out_len:
    description: Tokens asked of each request.
    type: int
    default: 256
  retry:
    description: How often AISBench tries a request again.
    type: int
    default: 2
  generation_kwargs:
    description: Sampling options of each request.
    type: dict
    default: {}
  trust_remote_code:
    description: Whether the tokenizer may run code of the model's folder.
    type: bool
    default: false
  timeout:
    description: Seconds for the whole run.
    type: int
    default: 14400
attributes:
  check_mode:
    support: none
    description: Is skipped in check mode.
  diff_mode:
    support: none
    description: There is nothing to compare.
  platform:
    support: full
    platforms: linux
    description: Where the module works.
"""

EXAMPLES = r"""
- name: Measure
  ascend.pd_serving.aisbench:
    venv: /var/lib/pd_serving/benchmark/aisbench
    folder: /var/lib/pd_serving/benchmark/runs
    address: 192.0.2.10
    port: 1999
    model: demo
    tokenizer_path: /models/demo
    dataset_path: /data/gsm8k
    concurrency: [1, 8, 32]
"""

RETURN = r"""
levels:
  description: One entry per concurrency, with the numbers of AISBench (milliseconds, tokens per second).
  returned: success
  type: list
  elements: dict
prompts:
  description: V(gsm8k) or V(sample).
  returned: success
  type: str
tokenizer:
  description: V(model) or V(stand-in).
  returned: success
  type: str
folder:
  description: Where AISBench's own files are, on this host.
  returned: success
  type: str
"""

import datetime
import os
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ascend.pd_serving.plugins.module_utils import aisbench

OWN_PROMPTS_AT_LEAST = 32


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "venv": {"type": "path", "required": True},
            "folder": {"type": "path", "required": True},
            "address": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "model": {"type": "str", "required": True},
            "api_key": {"type": "str", "default": "", "no_log": True},
            "tokenizer_path": {"type": "path", "required": True},
            "tokenizer_stand_in": {"type": "bool", "default": False, "no_log": False},
            "dataset_path": {"type": "path", "required": True},
            "prompts": {"type": "str", "choices": ["auto", "gsm8k", "sample"], "default": "gsm8k"},
            "concurrency": {"type": "list", "elements": "int", "required": True},
            "request_rate": {"type": "float", "default": 0},
            "num_prompts": {"type": "int"},
            "max_out_len": {"type": "int", "default": 256},
            "retry": {"type": "int", "default": 2},
            "generation_kwargs": {"type": "dict", "default": {}},
            "trust_remote_code": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 14400},
        },
    )
    try:
        module.exit_json(changed=False, **measure(module.params))
    except (aisbench.AisbenchError, OSError) as problem:
        module.fail_json(msg=str(problem))


def measure(params: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Do it; returns the result of the module."""
    load = load_of(params)
    folder = params["folder"]
    os.makedirs(folder, mode=0o700, exist_ok=True)
    stand_in = os.path.join(folder, "stand-in")
    tokenizer = aisbench.tokenizer_folder(
        params["tokenizer_path"], f"{stand_in}-tokenizer" if params["tokenizer_stand_in"] else None
    )
    dataset = params["dataset_path"]
    if params["prompts"] == "gsm8k":
        aisbench.require_dataset(dataset)
    elif params["prompts"] == "sample" or aisbench.missing_dataset(dataset):
        dataset = f"{stand_in}-prompts"
        aisbench.write_sample(dataset, max([OWN_PROMPTS_AT_LEAST, params["num_prompts"] or 0, *load.concurrency]))
    run = os.path.join(folder, datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f"))
    environment = aisbench.Environment(params["venv"], "", (), ())
    target = aisbench.Target(params["address"], params["port"], params["model"], params["api_key"])
    levels = aisbench.run(environment, target, load, tokenizer, dataset, run, params["timeout"])
    failures = aisbench.failures(levels)
    if failures:
        raise aisbench.AisbenchError("\n".join([*failures, f"AISBench's log is {run}/aisbench.log"]))
    return {
        "levels": levels,
        "prompts": "gsm8k" if dataset == params["dataset_path"] else "sample",
        "tokenizer": "model" if tokenizer == params["tokenizer_path"] else "stand-in",
        "folder": run,
    }


def load_of(params: t.Mapping[str, t.Any]) -> aisbench.Load:
    """The load, when its numbers make sense; all faults at once."""
    levels = params["concurrency"]
    faults = [
        *(f"benchmark_concurrency has {level}: at least 1" for level in levels if level < 1),
        *(
            f"benchmark_concurrency has {level} more than once"
            for level in sorted(set(levels))
            if levels.count(level) > 1
        ),
        *(["benchmark_concurrency is empty"] if not levels else []),
        *(["benchmark_num_prompts must be at least 1"] if params["num_prompts"] == 0 else []),
        *(["benchmark_max_out_len must be at least 1"] if params["max_out_len"] < 1 else []),
        *(["benchmark_request_rate must not be below 0"] if params["request_rate"] < 0 else []),
        *(["benchmark_timeout must be at least 1"] if params["timeout"] < 1 else []),
    ]
    if faults:
        raise aisbench.AisbenchError("\n".join(faults))
    return aisbench.Load(
        concurrency=tuple(sorted(levels)),
        request_rate=params["request_rate"],
        max_out_len=params["max_out_len"],
        retry=params["retry"],
        generation=params["generation_kwargs"],
        trust_remote_code=params["trust_remote_code"],
        num_prompts=params["num_prompts"],
    )


if __name__ == "__main__":
    main()

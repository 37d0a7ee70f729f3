# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Choose once, over all hosts, what each is asked: its chips and files, whom it pings, whose ports it tries."""

from __future__ import annotations

import os
import typing as t

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import preflight
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight import facts as f
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight import probes, store, verdicts

# Where this product writes: launch specifications and logs.
DISKS = ("/opt/pd_serving", "/var/log/pd_serving")

# Of preflight_report; with off preflight is left out by the plays.
GATES = ("error", "warn")


class ActionModule(ActionBase):
    """Runs on the controller only. The step begin starts a new round; the step ask needs the hosts' first answers."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        _spec, options = self.validate_argument_spec(
            {
                "step": {"type": "str", "choices": ["begin", "ask"], "required": True},
                "gate": {"type": "str", "default": GATES[0]},
                "ping_mode": {"type": "str", "default": "rail"},
                "ping_peers": {"type": "int", "default": 8},
                "ping_budget": {"type": "float", "default": 180},
                "probe_peers": {"type": "int", "default": 16},
            }
        )
        if options["gate"] not in GATES:
            # Before anybody is asked, and by the name that the user knows.
            raise AnsibleActionFail(
                f"preflight_gate must be one of {', '.join(GATES)} or off, not {options['gate']!r}: set it to one of them"
            )
        variables = task_vars or {}
        kept = store.Store(constants.DEFAULT_LOCAL_TMP)
        view = kept.view()
        if view is None:
            raise AnsibleActionFail("there is no plan in this run: run ascend.pd_serving.plan first")
        hosts = [host for host in variables["ansible_play_hosts"] if host in view["hosts"]]
        tags = set(verdicts.chosen_tags(variables["ansible_run_tags"], variables["ansible_skip_tags"]))
        result["changed"] = False
        try:
            if options["step"] == "begin":
                kept.forget()
                if tags & {"hardware", "fabric"}:
                    _ask_tools(kept, view, hosts)
                if tags & {"host", "ports", "image"}:
                    _ask_host(kept, view, hosts)
                for host in hosts:
                    if kept.wanted("npu", host) is None and kept.wanted("host", host) is None:
                        kept.write("host", host, {})  # without chips there is nothing to ask with these tags
                if "ports" in tags:
                    _listen(kept, hosts, options, int(variables["ansible_forks"]))
            else:
                if "ports" in tags:
                    _probe(kept, hosts, options)
                if "fabric" in tags:
                    result["pings"] = _ping(kept, view, hosts, options)
        except ValueError as problem:
            raise AnsibleActionFail(str(problem)) from problem
        return result


def _ask_tools(kept: store.Store, view: f.PlanView, hosts: list[str]) -> None:
    for host in hosts:
        chips = view["hosts"][host]["chips"]
        if chips:
            kept.want("npu", host, {"hardware": view["hardware"], "chips": chips, "cluster": view["name"]})


def _ask_host(kept: store.Store, view: f.PlanView, hosts: list[str]) -> None:
    for host in hosts:
        path = view["hosts"][host]["model_path"]
        kept.want("host", host, {"facts": True, "models": [path] if path else [], "disks": list(DISKS)})


def _listen(kept: store.Store, hosts: list[str], options: dict[str, t.Any], forks: int) -> None:
    schedule = probes.plan_probes(kept.plan(), peers=options["probe_peers"], asked=hosts)
    # This process's parent is the run: of two runs at once none ends the other's listeners.
    run = str(os.getppid())
    lifetime = probes.lifetime(schedule, forks)
    for host in schedule.listen:
        endpoints = probes.listen_options(schedule, host)
        kept.want("listen", host, {"state": "listen", "endpoints": endpoints, "lifetime": lifetime, "run": run})
        kept.want("done", host, {"state": "done", "run": run})


def _probe(kept: store.Store, hosts: list[str], options: dict[str, t.Any]) -> None:
    schedule = probes.plan_probes(kept.plan(), peers=options["probe_peers"], asked=hosts)
    there = probes.after_listening(schedule, {host: kept.read("listen", host) for host in hosts})
    for host in there.probes:
        wanted = probes.probe_options(there, host)
        if wanted:
            kept.want("probes", host, {"state": "probe", "probes": wanted})
        elif not schedule.probes[host]:
            # Such as the host of a KV pool's master alone: it connects to nobody, which is no question left open.
            kept.write("probes", host, [])


def _ping(kept: store.Store, view: f.PlanView, hosts: list[str], options: dict[str, t.Any]) -> int:
    kept.write_pinged(hosts)
    schedule = preflight.plan_pings(
        view,
        kept.facts(hosts),
        mode=options["ping_mode"],
        peers=options["ping_peers"],
        budget_seconds=options["ping_budget"],
    )
    for host in hosts:
        pings = preflight.module_options(schedule, host)
        if pings:
            kept.want("pings", host, {"pings": pings, "budget": options["ping_budget"]})
    return schedule.count

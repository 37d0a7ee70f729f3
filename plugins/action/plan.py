# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Controller side of ascend.pd_serving.plan: collect, plan once, keep the slices, show what a person wants to see."""

from __future__ import annotations

import difflib
import json
import os
import pathlib
import sys
import time
import typing as t

from ansible import constants
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import (
    collect,
    inventory,
    planner,
    preflight,
    rehearsal,
    report,
    slices,
    variables,
)
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight import store

display = Display()
TAGS = frozenset(
    {
        *("all", "always", "never", "tagged", "untagged"),
        *("prepare", "host_configure", "host_install", "image_install", "mooncake_install", "hccn", "hccn_files"),
        *("preflight", "hardware", "fabric", "host", "ports", "image"),
        *("kv_pool", "kv_pool_run", "engine", "engine_run", "proxy", "proxy_run", "verify", "verify_run"),
        *("benchmark", "benchmark_setup", "benchmark_run"),
    }
)
"""Ansible's own, and those of the collection's tasks."""
FILES = pathlib.Path(__file__).resolve().parents[2] / "roles" / "rehearsal" / "files"


class _Refused(Exception):
    """The plan cannot be made or shown as asked; the text is all that a user needs to read.

    Not Ansible's own: to that it adds the text of the exception behind it, which says the same again.
    """


class ActionModule(ActionBase):
    """Runs on the controller only; no connection is opened."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        result["changed"] = False
        _spec, options = self.validate_argument_spec(
            {
                "out": {"type": "path"},
                "query": {"type": "str"},
                "show": {"type": "bool", "default": True},
                "needs": {"type": "list", "elements": "str", "default": []},
                "rehearsal": {"type": "raw", "default": False},
                "rehearsal_dir": {"type": "path"},
            }
        )
        try:
            return self._run(options, task_vars or {}, result)
        except _Refused as problem:
            return {**result, "failed": True, "msg": str(problem)}

    def _run(
        self, options: dict[str, t.Any], task_vars: dict[str, t.Any], result: dict[str, t.Any]
    ) -> dict[str, t.Any]:
        for name, option in (("plan_out", "out"), ("pd_query", "query")):
            if options[option] == "":
                raise _Refused(
                    f"{name} is empty, as a shell variable that is not set leaves it; give a value or leave it out"
                )
        options["rehearsal"] = _switch("pd_rehearsal", options["rehearsal"])
        missing = variables.missing_libraries()
        if missing:
            raise _Refused(
                f"the controller's Python ({sys.executable}) lacks {', '.join(missing)}: {sys.executable} -m pip install {' '.join(missing)}"
            )
        _warn_of_tags([*task_vars.get("ansible_run_tags", ()), *task_vars.get("ansible_skip_tags", ())])
        hostvars = task_vars["hostvars"]
        started = time.monotonic()
        source = collect.collect(hostvars)
        if not source["hosts"]:
            raise _Refused(
                "the inventory has no hosts in the groups prefill and decode; give one with -i, for example -i inventories/2p1d"
            )
        _refuse_an_empty_run(options["needs"], task_vars)
        state = self._rehearsal_state(options, source, hostvars) if options["rehearsal"] else None
        try:
            if state is not None:
                source = rehearsal.rehearse(source, state)
            plan = planner.plan(source)
            encoded = planner.to_json(plan)
            if options["out"]:
                _write_private(options["out"], encoded)
            if not plan.errors:
                roots = {host: rehearsal.host_root(state, host) for host in source["hosts"]} if state else {}
                slices.write(plan, roots, constants.DEFAULT_LOCAL_TMP)
                store.Store(constants.DEFAULT_LOCAL_TMP).write_plan(encoded, preflight.plan_view(plan))
                if state is not None:
                    self._build_hosts(plan, source)
                    rehearsal.warm_up(state)
        except rehearsal.RehearsalError as problem:
            raise _Refused(str(problem)) from problem
        except OSError as problem:
            raise _Refused(f"cannot write {problem.filename}: {problem.strerror}") from problem
        self._show(plan, options, time.monotonic() - started)
        if state is not None and options["show"]:
            display.display(f"Rehearsed hosts are folders below {state}/hosts")
        result["errors"] = len(plan.errors)
        result["warnings_found"] = len(plan.findings) - len(plan.errors)
        if options["query"]:
            self._query(options["query"], encoded, result)
        if plan.errors:
            result["failed"] = True
            result["msg"] = f"No host was touched. The plan has {report.verdict(plan.findings)}\n" + "\n".join(
                report.finding_lines(plan.errors)
            )
        return result

    # Showing ------------------------------------------------------------------------------------------------------

    def _show(self, plan: planner.Plan, options: dict[str, t.Any], seconds: float) -> None:
        warnings = [finding for finding in plan.findings if finding.severity == "warning"]
        # A query asks for one part; the table would only hide it.
        show = options["show"] and not options["query"]
        if show:
            display.display("\n".join(["", *report.plan_lines(plan), ""]))
        if warnings:
            display.display("\n".join([*report.finding_lines(warnings), ""]), color=constants.COLOR_WARN)
        if show:
            display.display(f"Planned in {seconds:.2f} s. {report.verdict(plan.findings)}")
            if options["out"]:
                display.display(f"Written to {options['out']}")

    def _query(self, query: str, encoded: bytes, result: dict[str, t.Any]) -> None:
        try:
            import jmespath
        except ImportError as problem:
            raise _Refused(
                f"pd_query needs the Python library jmespath: {sys.executable} -m pip install jmespath"
            ) from problem
        try:
            found = jmespath.search(query, json.loads(encoded))
        except jmespath.exceptions.JMESPathError as problem:
            raise _Refused(f"pd_query {query!r} is no JMESPath expression: {problem}") from problem
        if found is None:
            display.warning(f"pd_query {query!r} matches nothing in this plan (docs/plan.md has its keys)")
        display.display(json.dumps(found, indent=2, ensure_ascii=False))
        result["query_result"] = found

    # Rehearsal ----------------------------------------------------------------------------------------------------

    def _rehearsal_state(self, options: dict[str, t.Any], source: dict[str, t.Any], hostvars: t.Any) -> str:
        """The state folder, after making sure that nothing on the command line would win over the overrides."""
        stronger = sorted(
            name
            for name in hostvars._variable_manager.extra_vars
            if name in rehearsal.OVERRIDDEN or name.startswith(("ansible_become", "ansible_ssh"))
        )
        if stronger:
            raise _Refused(
                f"a rehearsal stays on this machine, but -e {', '.join(stronger)} would overrule that; leave it out of the command line"
            )
        first = next(iter(source["hosts"].values()))
        sources = [str(path) for path in hostvars._inventory._sources or []]
        state: str = options["rehearsal_dir"] or rehearsal.default_state(
            str(first.get("pd_cluster_name") or "pd"), sources
        )
        state = os.path.abspath(state)
        if self._task.check_mode and not os.path.isdir(state):
            # Nothing to look at yet: simulate the fresh hosts in the run's own folder, which goes away with it.
            state = str(slices.directory(constants.DEFAULT_LOCAL_TMP).parent / "pd_rehearsal")
        return state

    def _build_hosts(self, plan: planner.Plan, source: dict[str, t.Any]) -> None:
        assert plan.cluster is not None
        upstream = rehearsal.upstream_directory(sys.prefix)
        rehearsal.check_upstream(upstream, f"{sys.executable} {FILES / 'fetch_upstream.py'} {upstream}")
        pool = plan.kv_pool
        if pool is not None and pool["started"] and pool["backend"] == "mooncake":
            mooncake = rehearsal.mooncake_directory(upstream)
            rehearsal.check_mooncake(mooncake, f"{sys.executable} {FILES / 'fetch_mooncake.py'} {mooncake}")
        for host, values in source["hosts"].items():
            slice_ = slices.read(constants.DEFAULT_LOCAL_TMP, host)
            if slice_ is not None:
                chips = int(values.get("pd_chips_per_node") or plan.cluster.hardware.chips_per_node)
                rehearsal.build_host(slice_, plan.cluster.hardware.name, chips, FILES, upstream, sys.executable)


def _warn_of_tags(given: t.Iterable[str]) -> None:
    """Ansible skips what no tag chooses, so a run with a misspelt one does nothing and ends well."""
    for tag in sorted(set(given) - TAGS):
        near = difflib.get_close_matches(tag, TAGS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        display.warning(f"no task of this collection has the tag {tag}, so it chooses none of them{hint}")


def _refuse_an_empty_run(needs: t.Sequence[str], task_vars: dict[str, t.Any]) -> None:
    """Ansible passes over a play in silence where --limit leaves it no host, and the run ends well."""
    groups, asked = task_vars["groups"], task_vars["ansible_play_hosts_all"]
    wanted = list(dict.fromkeys(host for group in needs for host in groups.get(group, ())))
    # Groups without a host at all are the plan's to refuse.
    if wanted and not set(wanted) & set(asked):
        raise _Refused(
            f"nothing was done: this run is for {inventory.some(asked)} (--limit), but it works on hosts of "
            f"{' and '.join(group for group in needs if groups.get(group))} only. "
            f"Fix: put {inventory.some(wanted)} into --limit, or leave it out"
        )


def _switch(name: str, value: t.Any) -> bool:
    """A switch of the command line, where every value is text."""
    try:
        return bool(boolean(value))
    except TypeError:
        raise _Refused(f"{name} must be true or false; it is {value!r}") from None


def _write_private(path: str, content: bytes) -> None:
    """Environments may hold secrets, so the file is the user's own."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, 0o600)
        stream.write(content)

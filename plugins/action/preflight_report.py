# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Judge what all hosts told, show it, write the reports, and fail when it is not good enough."""

from __future__ import annotations

import json
import os
import pathlib
import time
import typing as t

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import preflight
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight import coming, store, verdicts
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight import facts as f
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight.fleet import HCCN_CONF

display = Display()


class ActionModule(ActionBase):
    """Runs once on the controller; no host is asked."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        result["changed"] = False
        _spec, options = self.validate_argument_spec(
            {
                "directory": {"type": "path"},
                "gate": {"type": "str", "choices": ["error", "warn"], "default": "error"},
                "warnings_fail": {"type": "bool", "default": False},
                "unknown_fails": {"type": "bool", "default": False},
                "coming": {"type": "list", "elements": "str", "default": []},
                "ping_mode": {"type": "str", "default": "rail"},
                "ping_peers": {"type": "int", "default": 8},
                "ping_budget": {"type": "float", "default": 180},
                "show": {"type": "str", "choices": ["matrix", "faults"], "default": "matrix"},
                "defer": {"type": "bool", "default": False},
            }
        )
        variables = task_vars or {}
        kept = store.Store(constants.DEFAULT_LOCAL_TMP)
        view = kept.view()
        if view is None:
            raise AnsibleActionFail("there is no plan in this run: run ascend.pd_serving.plan first")
        report = _judge(kept, view, variables, options)
        code = preflight.exit_code(
            report, warnings_fail=options["warnings_fail"], unknown_fails=options["unknown_fails"]
        )
        matrix = options["show"] == "matrix"
        if matrix:
            display.display(preflight.render_matrix(report))
        result.update(exit_code=code, counts=preflight.counts(report))
        if options["directory"]:
            result["reports"] = _write(options["directory"], report, code)
        refused: tuple[verdicts.Severity, ...] = ()
        if code and options["gate"] == "error":
            refused = ("error", "unknown", "warning") if code == 1 else ("error",)
            lines = [] if matrix else ["", *preflight.verdict_lines(report, refused)]
            summary = f"Preflight: {preflight.summary(report)}. Nothing was changed on any host."
            result.update(refused=True, failed=not options["defer"], msg="\n".join([summary, *lines]).rstrip())
        if not matrix:
            shown = [severity for severity in verdicts.SHOWN if severity not in ("info", *refused)]
            lines = preflight.verdict_lines(report, shown)
            if lines:
                display.display("\n".join(lines), color=constants.COLOR_WARN)
            if not refused:
                display.display(f"Preflight: {preflight.summary(report)}.")
        return result


def _judge(
    kept: store.Store, view: f.PlanView, variables: dict[str, t.Any], options: dict[str, t.Any]
) -> verdicts.Report:
    asked = list(variables["ansible_play_hosts_all"])
    facts = kept.facts(asked)
    schedule = preflight.plan_pings(
        view,
        kept.pinged(facts),
        mode=options["ping_mode"],
        peers=options["ping_peers"],
        budget_seconds=options["ping_budget"],
    )
    answers = {host: kept.read("pings", host) for host in asked}
    pings = preflight.ping_run(schedule, {host: told for host, told in answers.items() if told is not None})
    for host, about in facts.items():
        given = variables["hostvars"][host]
        wanted = given.get("hccn_conf") or {}
        asked_for = isinstance(wanted, dict) and given.get("hccn_conf_path", HCCN_CONF) == HCCN_CONF
        written = asked_for and coming.with_hccn_conf(about, wanted, boolean(given.get("hccn_overwrite", False)))
        coming.without(about, options["coming"], [HCCN_CONF] if written else [])
    tags = verdicts.chosen_tags(variables["ansible_run_tags"], variables["ansible_skip_tags"])
    made_any = any(told is not None for told in answers.values()) or ("fabric" in tags and not schedule.count)
    return preflight.judge(
        view,
        facts,
        pings if made_any else None,
        asked,
        list(view["hosts"]),
        time.time(),
        tags=tags,
    )


def _write(directory: str, report: verdicts.Report, code: int) -> list[str]:
    """report.json and report.html. They name addresses and versions of the fleet, so they are the user's own."""
    folder = pathlib.Path(directory)
    contents = {
        "report.json": json.dumps(preflight.report_json(report, code), indent=1, ensure_ascii=False),
        "report.html": preflight.render_html(report),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(content)
    except OSError as problem:
        raise AnsibleActionFail(
            f"preflight_report_dir: cannot write {problem.filename}: {problem.strerror}"
        ) from problem
    written = [str(folder / name) for name in contents]
    display.display(f"Written: {', '.join(written)}")
    return written

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Controller side of a benchmark: a JSON file and a page."""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import typing as t

from ansible import constants
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import benchmark, slices

display = Display()


class ActionModule(ActionBase):
    """Runs on the controller only."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        result["changed"] = False
        _spec, options = self.validate_argument_spec(
            {
                "measured": {"type": "dict"},
                "warm_up": {"type": "dict", "default": {}},
                "aisbench": {"type": "str", "default": ""},
                "settings": {"type": "dict", "default": {}},
                "folder": {"type": "path", "default": "."},
                "compare": {"type": "path"},
            }
        )
        try:
            return {**result, **self._report(options, (task_vars or {})["inventory_hostname"])}
        except benchmark.BenchmarkError as problem:
            return {**result, "failed": True, "msg": str(problem)}
        except OSError as problem:
            return {**result, "failed": True, "msg": f"cannot write {problem.filename}: {problem.strerror}"}

    def _report(self, options: dict[str, t.Any], host: str) -> dict[str, t.Any]:
        if options["measured"] is None:
            benchmark.read(options["compare"] or "")
            return {}
        overview = slices.read(constants.DEFAULT_LOCAL_TMP, slices.CLUSTER_FILE) or {}
        own = slices.read(constants.DEFAULT_LOCAL_TMP, host) or {}
        now = datetime.datetime.now().astimezone()
        made = benchmark.record(
            overview,
            options["measured"],
            options["warm_up"],
            options["settings"],
            aisbench=options["aisbench"],
            started=now.isoformat(sep=" ", timespec="seconds"),
            rehearsal=bool(own.get("root")),
        )
        folder = pathlib.Path(os.path.abspath(options["folder"]))
        folder.mkdir(parents=True, exist_ok=True)
        base = folder / f"{overview['name']}-{now:%Y%m%d-%H%M%S}"
        kept, shown = base.with_name(f"{base.name}.json"), base.with_name(f"{base.name}.html")
        # Written before the earlier run is looked at: hours of measuring must not be lost to a wrong file name.
        kept.write_text(json.dumps(made, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        shown.write_text(benchmark.page(made), encoding="utf-8")
        display.display("\n".join(["", *benchmark.text_lines(made), "", f"Results: {kept}", f"Page:    {shown}", ""]))
        if options["compare"]:
            before = benchmark.read(options["compare"])
            shown.write_text(benchmark.page(made, before), encoding="utf-8")
            for line in benchmark.differences(made, before):
                display.warning(f"the two runs are not alike: {line}")
        return {"changed": True, "json": str(kept), "html": str(shown)}

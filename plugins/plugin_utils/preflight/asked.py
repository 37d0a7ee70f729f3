# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What the plan says of the questions to one host.

In Python, since as templates they were the larger part of what preflight costs a controller per host.
"""

from __future__ import annotations

import typing as t


def planned(slice_: t.Mapping[str, t.Any]) -> dict[str, dict[str, t.Any]]:
    """Options of the modules behind the parts of on_host, by part. *slice_*: the host's part of the plan."""
    place = {"cluster": slice_["cluster"], "root": slice_["root"]}
    tools = {"root": slice_["root"], "environment": slice_["environment"]}
    checks = slice_["checks"]
    units = [*slice_["units"], *slice_["proxy_units"], *slice_["pool_units"]]
    about = {
        **place,
        "environment": slice_["environment"],
        **{name: checks[name] for name in ("chips", "device_nodes", "ports", "paths", "executables")},
        "engine": "docker" if slice_["runtime"] == "docker" else "none",
        "containers": [unit["name"] for unit in units],
        "image": slice_["image"],
        # Mooncake is looked for where engines run.
        **({} if slice_["units"] else {"mooncake_state": None}),
    }
    return {"npu": tools, "host": about, "listen": place, "pings": tools, "probes": {}, "done": place}

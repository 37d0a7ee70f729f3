# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Role hccn in a run of the prefill verb: hccn.conf of a rehearsed host."""

from __future__ import annotations

import pathlib
import typing as t

import yaml

from .conftest import Rehearsal

Make = t.Callable[..., Rehearsal]


def inventory(folder: pathlib.Path, **conf: t.Any) -> pathlib.Path:
    path = folder / "hosts.yml"
    sizes = {"pd_dp_size": 1, "pd_tp_size": 2}
    content = {
        "all": {
            "vars": {"pd_hardware": "a3", "pd_model_path": "/models/m", "pd_served_model_name": "m"},
            "children": {
                "prefill": {"hosts": {"p1": {"ansible_host": "192.0.2.1", **sizes, **conf}}},
                "decode": {"hosts": {"d1": {"ansible_host": "192.0.2.2", **sizes}}},
                "proxy": {"hosts": {"p1": None}},
            },
        }
    }
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def test_hccn_conf_is_never_replaced_silently(rehearse: Make, tmp_path: pathlib.Path) -> None:
    conf = {0: {"address": "192.0.2.80", "netmask": "255.255.255.0"}}
    cluster = rehearse(inventory(tmp_path, hccn_conf=conf))
    cluster.plan()  # builds the simulated hosts
    path = cluster.state / "hosts/p1/etc/hccn.conf"
    path.write_text("address_0=192.0.2.99\nnetmask_0=255.255.255.0\n", encoding="utf-8")

    refused = cluster.run("prefill.yml")
    assert refused.rc != 0
    assert "-address_0=192.0.2.99" in refused.messages() and "hccn_overwrite" in refused.messages()
    assert "192.0.2.99" in path.read_text(encoding="utf-8")
    assert cluster.processes() == [], "no engine was started"

    replaced = cluster.run("prefill.yml", hccn_overwrite=True)
    assert replaced.rc == 0, replaced.stdout
    assert "address_0=192.0.2.80" in path.read_text(encoding="utf-8")
    assert len(list(path.parent.glob("hccn.conf.*"))) == 1

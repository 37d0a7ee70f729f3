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
    """The file lacks a gateway that is wanted: nothing that preflight minds, and still a file that says something else."""
    cluster = rehearse(inventory(tmp_path))
    cluster.plan()  # builds the simulated hosts
    path = cluster.state / "hosts/p1/etc/hccn.conf"
    before = path.read_text(encoding="utf-8")
    values = dict(line.split("=") for line in before.splitlines())
    conf = {0: {key: values[f"{key}_0"] for key in ("address", "netmask")}}
    conf[0]["gateway"] = values["address_0"].rpartition(".")[0] + ".254"
    inventory(tmp_path, hccn_conf=conf)

    refused = cluster.run("prefill.yml")
    assert refused.rc != 0
    assert f"+gateway_0={conf[0]['gateway']}" in refused.messages() and "hccn_overwrite" in refused.messages()
    assert path.read_text(encoding="utf-8") == before
    assert cluster.processes() == [], "no engine was started"

    replaced = cluster.run("prefill.yml", hccn_overwrite=True)
    assert replaced.rc == 0, replaced.stdout
    assert f"gateway_0={conf[0]['gateway']}\n" in path.read_text(encoding="utf-8")
    assert len(list(path.parent.glob("hccn.conf.*"))) == 1


def test_a_missing_hccn_conf_is_written_when_asked(rehearse: Make, tmp_path: pathlib.Path) -> None:
    """What the run is about to write is no reason to refuse."""
    cluster = rehearse(inventory(tmp_path))
    cluster.plan()
    path = cluster.state / "hosts/p1/etc/hccn.conf"
    before = path.read_text(encoding="utf-8")
    values = dict(line.split("=") for line in before.splitlines())
    path.unlink()
    refused = cluster.run("prefill.yml")
    assert refused.rc != 0 and "/etc/hccn.conf" in refused.messages()

    conf: dict[int, dict[str, str]] = {}
    for name, value in values.items():
        key, _underscore, chip = name.rpartition("_")
        if key in ("address", "netmask", "gateway", "netdetect"):
            conf.setdefault(int(chip), {})[key] = value
    inventory(tmp_path, hccn_conf=conf)
    written = cluster.run("prefill.yml")
    assert written.rc == 0, written.stdout
    assert sorted(path.read_text(encoding="utf-8").splitlines()) == sorted(before.splitlines())

    stale = {**conf, 3: {**conf[3], "address": "192.0.2.99"}}
    inventory(tmp_path, hccn_conf=stale)
    refused = cluster.run("prefill.yml", hccn_overwrite=True)
    assert refused.rc != 0 and "ERROR [hccn-conf] p1 chip 3" in refused.messages(), "the chip has another address"
    assert sorted(path.read_text(encoding="utf-8").splitlines()) == sorted(before.splitlines())

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Role mooncake against this machine as a host without a container engine: the real wheel, from the package index."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import typing as t

import pytest
import yaml

from .conftest import PROJECT

FETCHED = pathlib.Path(sys.prefix) / "share/pd_serving/mooncake/0.3.11.post1"


def play(folder: pathlib.Path, **variables: t.Any) -> subprocess.CompletedProcess[str]:
    """The role on two local hosts' worth of plan, without a rehearsal."""
    sizes = {"pd_dp_size": 1, "pd_tp_size": 2}
    inventory = {
        "all": {
            "vars": {
                "ansible_connection": "local",
                "ansible_python_interpreter": sys.executable,
                "pd_hardware": "a3",
                "pd_runtime": "process",
                "pd_model_path": "/models/m",
                "pd_served_model_name": "m",
                "mooncake_directory": str(folder / "mooncake"),
                **variables,
            },
            "children": {
                "prefill": {"hosts": {"p1": {"pd_node_ip": "192.0.2.1", **sizes}}},
                "decode": {"hosts": {"d1": {"pd_node_ip": "192.0.2.2", **sizes}}},
                "proxy": {"hosts": {"p1": None}},
            },
        }
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
    plays = [
        {"import_playbook": "ascend.pd_serving.plan"},
        {"hosts": "p1", "gather_facts": False, "roles": [{"role": "ascend.pd_serving.mooncake"}]},
    ]
    (folder / "play.yml").write_text(yaml.safe_dump(plays), encoding="utf-8")
    return subprocess.run(
        [f"{sys.prefix}/bin/ansible-playbook", "-i", str(folder / "hosts.yml"), str(folder / "play.yml")],
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
            "ANSIBLE_HOME": str(folder / "ansible"),
            "ANSIBLE_NOCOLOR": "1",
            "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
            # What a host has of the driver.
            "LD_LIBRARY_PATH": str(FETCHED / "absent"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.usefixtures("package_index")
def test_a_wheel_below_the_prefix(tmp_path: pathlib.Path) -> None:
    prefix = tmp_path / "prefix"
    first = play(tmp_path, mooncake_method="wheel", pd_mooncake_prefix=str(prefix))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "Mooncake 0.3.11.post1 (wheel" in first.stdout
    assert (prefix / "site-packages/mooncake/mooncake_master").exists()
    again = play(tmp_path, mooncake_method="wheel", pd_mooncake_prefix=str(prefix))
    assert again.returncode == 0 and "changed=0" in again.stdout


def test_a_prefix_that_no_engine_would_use_is_refused(tmp_path: pathlib.Path) -> None:
    run = play(tmp_path, mooncake_method="wheel")
    assert run.returncode != 0
    assert "pd_mooncake_prefix is not set" in run.stdout
    assert not (tmp_path / "mooncake").exists()

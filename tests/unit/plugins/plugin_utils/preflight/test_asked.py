# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What the plan says of the questions to one host: options that the modules have, with the values of that host."""

from __future__ import annotations

import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils import part_options
from ansible_collections.ascend.pd_serving.plugins.plugin_utils import slices
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight import asked, store
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import base, planned


def questions_to(host: str, **changes: t.Any) -> dict[str, dict[str, t.Any]]:
    return asked.planned(slices.host_slices(planned(base(**changes)), {})[host])


def test_every_word_is_an_option_of_the_part_that_gets_it() -> None:
    arguments_of = questions_to("p1")
    assert set(arguments_of) == set(store.SCHEDULED)
    for part, arguments in arguments_of.items():
        assert set(arguments) <= set(part_options.OF_PART[part]), part


def test_a_host_with_engines_in_containers() -> None:
    about = questions_to("d1")["host"]
    assert (about["cluster"], about["root"], about["engine"]) == ("pd", "", "docker")
    assert about["containers"] == ["pd-pd-d-a"]
    assert "mooncake_state" not in about, "role mooncake says where"


def test_processes_need_no_container_engine() -> None:
    assert questions_to("p1", all={"pd_runtime": "process"})["host"]["engine"] == "none"


def test_mooncake_is_not_looked_for_where_only_the_proxy_runs() -> None:
    about = questions_to("x1", groups={"proxy": {"hosts": ["x1"]}}, more={"x1": {"pd_node_ip": "192.0.2.99"}})["host"]
    assert about["mooncake_state"] is None
    assert len(about["containers"]) == 1

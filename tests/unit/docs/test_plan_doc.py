# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""docs/plan.md lists every key of the plan's JSON, and its questions have answers."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import jmespath
import markdown_pages
import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import planner

PAGE = markdown_pages.read(markdown_pages.ROOT / "docs" / "plan.md")


def source() -> dict[str, Any]:
    """Four hosts with one value that a rule warns of, so that there is a finding to look at."""
    cluster: dict[str, Any] = {"pd_hardware": "a3", "pd_model_path": "/models/m", "pd_served_model_name": "m"}
    cluster |= {"pd_proxy_port": "1999", "pd_kv_pool": {"backend": "mooncake"}}
    sizes = {"prefill": {"pd_dp_size": 2, "pd_tp_size": 8}, "decode": {"pd_dp_size": 32, "pd_tp_size": 1}}
    hosts = {"prefill": ["p1", "p2"], "decode": ["d1", "d2"]}
    names = [(role, name) for role, members in hosts.items() for name in members]
    return {
        "groups": {
            **{role: {"hosts": members, "children": {}} for role, members in hosts.items()},
            "proxy": {"hosts": ["p1"], "children": {}},
            "kv_pool": {"hosts": ["p1"], "children": {}},
        },
        "hosts": {
            name: {"ansible_host": f"192.0.2.{number}", **cluster, **sizes[role]}
            for number, (role, name) in enumerate(names, 1)
        },
    }


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(planner.to_json(planner.plan(source())))
    assert loaded["findings"], "the source is meant to cause one"
    return loaded


def keys(heading: str) -> list[str]:
    """The keys in the table below a heading."""
    (rows,) = (rows for above, columns, rows in PAGE.tables() if above == heading and columns[0] == "key")
    return [row[0].strip("`") for row in rows]


@pytest.mark.parametrize(
    ("heading", "where"),
    [
        ("Top level", "@"),
        ("cluster", "cluster"),
        ("instances", "instances[]"),
        ("placements", "placements[]"),
        ("placements[].ports and hosts[].shared_ports", "[placements[].ports, hosts[].shared_ports][][]"),
        ("placements[].container", "placements[].container"),
        ("placements[].processes", "placements[].processes[]"),
        ("hosts", "hosts[]"),
        ("kv_pool", "kv_pool"),
        ("proxy", "proxy"),
        ("findings", "findings[]"),
    ],
)
def test_every_key_is_documented_and_there(plan: dict[str, Any], heading: str, where: str) -> None:
    found = jmespath.search(where, plan)
    entries = found if isinstance(found, list) else [found]
    assert entries
    for entry in entries:
        assert sorted(keys(heading)) == sorted(entry)


def test_the_schema_that_is_promised_is_the_one_written(plan: dict[str, Any]) -> None:
    assert f"`schema` is {plan['schema']}." in PAGE.path.read_text(encoding="utf-8")


def queries() -> list[str]:
    """The expressions of the example commands, as a shell and Ansible would read them."""
    found = []
    for block in PAGE.blocks:
        for line in block.lines:
            for word in shlex.split(line, comments=True):
                if word.startswith("pd_query="):
                    found.append(word.removeprefix("pd_query="))
                elif word.startswith("{"):
                    found.append(json.loads(word)["pd_query"])
    return found


def test_there_are_examples() -> None:
    assert len(queries()) >= 3


@pytest.mark.parametrize("query", queries())
def test_examples_find_something(plan: dict[str, Any], query: str) -> None:
    """NAME=VALUE ends at a blank, so an expression with one must not be given that way."""
    given_plainly = f"pd_query='{query}'" in "\n".join(PAGE.path.read_text(encoding="utf-8").splitlines())
    assert not (given_plainly and re.search(r"\s", query))
    assert jmespath.search(query, plan)

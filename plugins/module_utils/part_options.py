# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Options of the modules behind the parts of questions.py.

By themselves, since the controller holds arguments against them in every task: what answers is ten times as much to
compile.
"""

from __future__ import annotations

import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils.sites import LOG_OPTIONS, SITE_OPTIONS

Options = t.Mapping[str, t.Any]

QUERIES: t.Mapping[str, tuple[str, ...]] = {
    "a2": ("lldp", "link", "net_health", "netdetect", "gateway", "ip", "tls"),
    "a3": ("lldp", "link", "net_health", "netdetect", "gateway", "ip", "vnic", "tls", "spod"),
    "a5": ("dev_info", "link", "tls", "spod"),
}
"""What is asked of every chip of a generation."""

MORE_QUERIES: t.Mapping[str, tuple[str, ...]] = {"a2": (), "a3": (), "a5": ("netdetect", "gateway", "ip", "vnic")}
"""What can be asked besides: A5's default fabric needs no addresses."""

DEFAULT_COUNT = 3
"""Packets that hccn_tool sends when nobody says how many."""

_TEXT = {"type": "str", "default": ""}
_ROOT = {"root": _TEXT}
_ENVIRONMENT = {"environment": {"type": "dict", "default": {}}}

NPU_FACTS: Options = {
    "hardware": {"type": "str", "choices": list(QUERIES), "required": True},
    "chips": {"type": "list", "elements": "int"},
    "queries": {
        "type": "list",
        "elements": "str",
        "choices": sorted({query for asked in (QUERIES, MORE_QUERIES) for each in asked.values() for query in each}),
    },
    "cluster": _TEXT,
    "base_dir": {"type": "str", "default": "/opt/pd_serving"},
    **_ROOT,
    **_ENVIRONMENT,
    "timeout": {"type": "float", "default": 10},
    "budget": {"type": "float", "default": 300},
}

HOST_CHECK: Options = {
    **SITE_OPTIONS,
    "chips": {"type": "list", "elements": "int", "default": []},
    "device_nodes": {"type": "list", "elements": "str", "default": []},
    "ports": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "first": {"type": "int", "required": True},
            "last": {"type": "int", "required": True},
            "owner": _TEXT,
            "variable": _TEXT,
            "address": _TEXT,
        },
    },
    "paths": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "str", "required": True},
            "type": {"type": "str", "choices": ["file", "directory", "any"], "default": "any"},
            "variable": _TEXT,
            "why": _TEXT,
        },
    },
    "executables": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {"name": {"type": "str", "required": True}, "variable": _TEXT, "why": _TEXT},
    },
    **_ENVIRONMENT,
    "engine": {"type": "str", "choices": ["none", "docker"], "default": "none"},
    "containers": {"type": "list", "elements": "str", "default": []},
    "image": _TEXT,
    "image_source": _TEXT,
    "reserved_ports": {"type": "str"},
    "hugepages": {"type": "int"},
    "sysctl_file": {"type": "path", "default": "/etc/sysctl.d/90-pd_serving.conf"},
    "mooncake_state": {"type": "path"},
    "facts": {"type": "bool", "default": False},
    "models": {"type": "list", "elements": "str", "default": []},
    "disks": {"type": "list", "elements": "str", "default": []},
}

HCCN_PING: Options = {
    "pings": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "chip": {"type": "int", "required": True},
            "target": {"type": "str", "required": True},
            "mode": {"type": "str", "choices": ["hccs", "roce"], "required": True},
        },
    },
    "count": {"type": "int", "default": DEFAULT_COUNT},
    "interval": {"type": "int"},
    **_ROOT,
    **_ENVIRONMENT,
    "timeout": {"type": "float", "default": 20},
    "budget": {"type": "float", "default": 300},
}

_ENDPOINT: dict[str, t.Any] = {"address": {"type": "str", "required": True}, "port": {"type": "int", "required": True}}
PORT_PROBE: Options = {
    "state": {"type": "str", "choices": ["listen", "probe", "done"], "required": True},
    "cluster": {"type": "str"},
    **_ROOT,
    "run": _TEXT,
    "endpoints": {"type": "list", "elements": "dict", "default": [], "options": _ENDPOINT},
    "lifetime": {"type": "int", "default": 120},
    "probes": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {"to": {"type": "str", "required": True}, **_ENDPOINT},
    },
    "timeout": {"type": "float", "default": 3.0},
    "concurrency": {"type": "int", "default": 128},
    "budget": {"type": "float", "default": 60.0},
}
PORT_PROBE_REQUIRED_IF = [("state", "listen", ("cluster",)), ("state", "done", ("cluster",))]

LAUNCH_INFO: Options = {
    **SITE_OPTIONS,
    **LOG_OPTIONS,
    "units": {
        "type": "list",
        "elements": "dict",
        "options": {
            "name": {"type": "str", "required": True},
            "spec": {"type": "dict"},
            "files": {"type": "list", "elements": "dict", "default": []},
        },
    },
    "environment": {"type": "dict"},
    "wait_seconds": {"type": "float", "default": 0},
    "tail_lines": {"type": "int", "default": 1},
    "log_pattern": {"type": "str"},
    "log_marks": {"type": "dict", "default": {}},
}

OF_PART: t.Mapping[str, Options] = {
    "npu": NPU_FACTS,
    "host": HOST_CHECK,
    "listen": PORT_PROBE,
    "pings": HCCN_PING,
    "probes": PORT_PROBE,
    "done": PORT_PROBE,
    "units": LAUNCH_INFO,
}
REQUIRED_IF_OF_PART = {part: PORT_PROBE_REQUIRED_IF for part in ("listen", "probes", "done")}

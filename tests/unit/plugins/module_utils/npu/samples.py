# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The outputs in data/ and who reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.ascend.pd_serving.plugins.module_utils.npu import hccl_log, hccn, hccn_conf, npu_smi, versions

DATA = Path(__file__).parent / "data"

Reader = Callable[[str], dict[str, Any]]


def _ip_loop(text: str) -> dict[str, Any]:
    return {str(chip): hccn.parse_ip(said) for chip, said in hccn.split_loop(text).items()}


def _tls_loop(text: str) -> dict[str, Any]:
    return {str(chip): answer for chip, answer in hccn.parse_tls_loop(text).items()}


def _info(text: str) -> dict[str, Any]:
    """With what the table says of all chips together, so that an expectation need not name 16 of them."""
    answer = npu_smi.parse_info(text)
    rows = answer.pop("rows", [])
    if answer["state"] != "ok":
        return answer
    return {
        **answer,
        "cards": len({row["card"] for row in rows}),
        "physical_ids": [row["physical"] for row in rows],
        **{key: sorted({row[key] for row in rows}) for key in ("health", "hbm_total_mb")},
        "names": sorted({row["name"] for row in rows}),
        "rows": rows,
    }


def _mapping(text: str) -> dict[str, Any]:
    answer = npu_smi.parse_mapping(text)
    chips = answer.get("chips", [])
    return {
        **answer,
        "logical_to_physical": {chip["logical"]: chip["physical"] for chip in chips if chip["logical"] is not None},
        "card_to_physical": {chip["card"]: chip["physical"] for chip in chips if chip["chip"] == 0},
    }


READERS: dict[str, Reader] = {
    "lldp": hccn.parse_lldp,
    "link": hccn.parse_link,
    "net_health": hccn.parse_net_health,
    "netdetect": hccn.parse_netdetect,
    "gateway": hccn.parse_gateway,
    "ip": hccn.parse_ip,
    "vnic": hccn.parse_vnic,
    "tls": hccn.parse_tls,
    "ping": hccn.parse_ping,
    "ub_link": hccn.parse_ub_link,
    "dev_info": hccn.parse_dev_info,
    "ip_loop": _ip_loop,
    "tls_loop": _tls_loop,
    "hccn_conf": hccn_conf.parse,
    "hccl_log": hccl_log.parse,
    "info": _info,
    "processes": npu_smi.parse_processes,
    "mapping": _mapping,
    "spod": npu_smi.parse_spod,
    "proc_mem": npu_smi.parse_proc_mem,
    "version_info": versions.parse,
}


@dataclasses.dataclass(frozen=True)
class Sample:
    """One output, and the part of its reading that counts."""

    name: str
    text: str
    reader: Reader
    expect: dict[str, Any]

    def read(self, text: str | None = None) -> dict[str, Any]:
        """The reading of this sample, or of what somebody has made of it."""
        return self.reader(self.text if text is None else text)


def load() -> list[Sample]:
    """Every sample of the folder, with or without an expectation (the test of completeness sees which)."""
    expected = yaml.safe_load((DATA / "expected.yml").read_text(encoding="utf-8"))
    return [
        Sample(name, (DATA / f"{name}.txt").read_text(encoding="utf-8"), READERS[entry["reader"]], entry["expect"])
        for name, entry in expected.items()
    ]


SAMPLES = load()

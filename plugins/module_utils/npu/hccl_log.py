# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Reads the table of a failed connection (LINK_ERROR_INFO) from the device log of HCCL."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils.npu.answers import OK, Result, is_address, listen

_USER = re.compile(r"([0-9.]+)\(([0-9]+)\)")
_TLS_WORDS = ("DISABLE", "ENABLE", "UNKNOWN")


def parse(text: str) -> Result:
    """*links*: dest {ip, rank, port}, src {ip, rank}, role, status and tls of every row that can be read.

    The source port is not given: the log shows an artefact far above 65535 there. Rows have one field more than the
    header.
    """
    answer = listen(text)
    head = [index for index, line in enumerate(answer.lines) if "dest_ip(user_rank)" in line]
    if len(head) != 1 or not answer.complete:
        return answer.refused()
    links = []
    for line in answer.lines[head[0] + 1 :]:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if all(set(cell) <= {"-"} for cell in cells):
            continue
        link = _link(cells)
        if link is None:
            return answer.refused()
        links.append(link)
    return {"state": OK, "links": links} if links else answer.refused()


def _link(cells: t.Sequence[str]) -> Result | None:
    if len(cells) not in (7, 8):
        return None
    dest, src = _USER.fullmatch(cells[0]), _USER.fullmatch(cells[2])
    if dest is None or src is None or not (is_address(dest.group(1)) and is_address(src.group(1))):
        return None
    if not re.fullmatch(r"[0-9]{1,5}", cells[1]) or cells[6] not in _TLS_WORDS:
        return None
    return {
        "dest": {"ip": dest.group(1), "rank": int(dest.group(2)), "port": int(cells[1])},
        "src": {"ip": src.group(1), "rank": int(src.group(2))},
        "role": cells[4],
        "status": cells[5],
        "tls": cells[6],
    }

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Log lines shaped like vLLM's, so that what reads the real log (gates, tails, people) reads this one."""

from __future__ import annotations

import sys
import time


def _write(level: str, text: str) -> None:
    # One write per line: threads share the stream. Standard output only, like vLLM, so the order is kept.
    sys.stdout.write(f"{level} {time.strftime('%m-%d %H:%M:%S')} [vllm_sim] {text}\n")
    sys.stdout.flush()


def info(text: str) -> None:
    _write("INFO", text)


def warning(text: str) -> None:
    _write("WARNING", text)


def error(text: str) -> None:
    _write("ERROR", text)

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""``vllm.logger``: the layerwise proxy asks it for its logger."""

from __future__ import annotations

import logging


def init_logger(name: str) -> logging.Logger:
    """A logger that writes at INFO level, as vLLM's does."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s [%(name)s] %(message)s")
    return logging.getLogger(name)

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Stands in for the ``vllm`` package, as far as the example proxies of vLLM-Ascend 0.23 import it (``vllm.logger``)."""

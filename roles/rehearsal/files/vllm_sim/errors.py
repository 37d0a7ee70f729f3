# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What stops a simulator, and what fails a single request."""

from __future__ import annotations


class Refusal(Exception):
    """The engine cannot start (or go on): the process ends with this message and exit code."""

    exit_code = 1


class UsageError(Refusal):
    """The command line is wrong. upstream: argparse prints usage and message and exits with 2."""

    exit_code = 2

    def __init__(self, message: str, prog: str = "vllm serve") -> None:
        super().__init__(message)
        self.prog = prog


class TransferError(Exception):
    """The KV blocks of one request did not reach the other side."""


class RequestError(Exception):
    """A request is answered with this HTTP status. ``kind`` is the OpenAI error type."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Arguments for a part of questions.py, held against the options of the module that the part stands for."""

from __future__ import annotations

import types
import typing as t

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator


def check(source: types.ModuleType, arguments: t.Mapping[str, t.Any]) -> tuple[t.Mapping[str, t.Any], str | None]:
    """The arguments with their types and defaults, and what is wrong with them."""
    checked = ArgumentSpecValidator(source.OPTIONS, required_if=source.REQUIRED_IF).validate(arguments)
    return checked.validated_parameters, "; ".join(checked.error_messages) or None

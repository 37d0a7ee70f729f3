# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Arguments for a part of questions.py, held against the options of the module that the part stands for."""

from __future__ import annotations

import typing as t

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.ascend.pd_serving.plugins.module_utils import part_options


def check(part: str, arguments: t.Mapping[str, t.Any]) -> tuple[t.Mapping[str, t.Any], str | None]:
    """The arguments with their types and defaults, and what is wrong with them."""
    required_if = part_options.REQUIRED_IF_OF_PART.get(part)
    checked = ArgumentSpecValidator(part_options.OF_PART[part], required_if=required_if).validate(arguments)
    return checked.validated_parameters, "; ".join(checked.error_messages) or None

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What the tests of modules share."""

from __future__ import annotations

import pytest
from ansible.module_utils.basic import AnsibleModule


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a module has warned of. Ansible puts it into the result only where no controller code was imported."""
    warnings: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, warning: warnings.append(warning))
    return warnings

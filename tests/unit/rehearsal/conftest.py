# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Makes the role's programs importable."""

from __future__ import annotations

import pathlib
import sys

FILES = pathlib.Path(__file__).parents[3] / "roles" / "rehearsal" / "files"
sys.path.insert(0, str(FILES))

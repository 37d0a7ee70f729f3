#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Documentation of the action ascend.pd_serving.benchmark_report."""

from __future__ import annotations

DOCUMENTATION = r"""
module: benchmark_report
author: the ascend.pd_serving contributors (@ascend-pd-serving)
version_added: 0.1.0
short_description: Keep the results of a benchmark on the controller
description:
  - Writes a JSON file with everything that was measured and an HTML page with plots, and prints the table.
  - Runs on the controller and contacts no host.
options:
  measured:
    description: Result of M(ascend.pd_serving.aisbench). Without it, only the file of the earlier run is looked at.
    type: dict
  warm_up:
    description: Result of M(ascend.pd_serving.warm_up).
    type: dict
    default: {}
  aisbench:
    description: Version of AISBench.
    type: str
    default: ""
  settings:
    description: What the load was; two runs with different settings are hard to compare, and the page says so.
    type: dict
    default: {}
  folder:
    description: Folder for both files, made where it is missing. A relative one is below the folder of the run.
    type: path
    default: .
  compare:
    description: JSON file of an earlier run, to show beside this one.
    type: path
attributes:
  check_mode:
    description: Looks at the file of the earlier run; nothing was measured.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
"""

EXAMPLES = r"""
- name: Bring the results to the controller
  ascend.pd_serving.benchmark_report:
    measured: "{{ measured }}"
    aisbench: 3.1.20260630
    folder: benchmark-results
"""

RETURN = r"""
json:
  description: Path of the JSON file.
  type: str
  returned: when something was measured
html:
  description: Path of the page.
  type: str
  returned: when something was measured
"""

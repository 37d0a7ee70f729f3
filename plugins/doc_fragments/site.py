# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Options of modules that look at the units of a cluster; units.SITE_OPTIONS and units.LOG_OPTIONS are their code."""

from __future__ import annotations


class ModuleDocFragment:
    """ascend.pd_serving.site, and ascend.pd_serving.site.logs."""

    DOCUMENTATION = r"""
options:
  cluster:
    description: Name of the cluster, as in the names of its folders.
    type: str
    required: true
  root:
    description: Put before every path of the host; for rehearsals.
    type: str
    default: ''
  base_dir:
    description: Folder of all clusters. A unit lives in C(<base_dir>/<cluster>/<unit>).
    type: str
    default: /opt/pd_serving
"""

    LOGS = r"""
options:
  log_dir:
    description: Folder of all logs. A process logs to C(<log_dir>/<cluster>/<unit>/<process>.log).
    type: str
    default: /var/log/pd_serving
"""

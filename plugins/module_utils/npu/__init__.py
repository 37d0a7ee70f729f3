# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What the Ascend tools and files of a host say, and how these tools are asked."""

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""A cluster of hosts on one Linux machine, each with systemd, sshd and its own Docker, and no way out.

Every host is a privileged podman container over one shared root file system, in a network namespace of its own. The
controller's namespace holds the switch; nothing in the lab has a route to any other network.

===========  ===========================================================================
module       job
===========  ===========================================================================
``place``    where things are on this machine, and running commands
``rootfs``   the root file system that all hosts share
``image``    engine images as archives for ``docker load``, without engine or registry
``network``  namespaces, cables and what ssh needs to know
``hosts``    the hosts' disks and power
``cli``      the command ``labctl``
===========  ===========================================================================
"""

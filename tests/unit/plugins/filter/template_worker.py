# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Renders templates with the collection's filters: one JSON request a line in, one JSON answer a line out.

A process of its own, because Ansible finds a collection's plugins only when its import hook was there before anybody
imported the collection, and the tests beside this one do import it.
"""

from __future__ import annotations

import json
import sys

from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar, trust_as_template


def main(collections: str) -> None:
    init_plugin_loader([collections])
    for line in sys.stdin:
        request = json.loads(line)
        templar = Templar(loader=DataLoader(), variables=request["variables"])
        try:
            answer = {"value": templar.template(trust_as_template(request["text"]))}
        except AnsibleError as problem:
            answer = {"error": str(problem)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

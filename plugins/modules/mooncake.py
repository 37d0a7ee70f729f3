#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: mooncake
short_description: Report or install the Mooncake that engines use
version_added: 0.1.0
author: the ascend.pd_serving contributors (@ascend-pd-serving)
description:
  - With O(method=bundled) tells which Mooncake the engine image carries and whether it loads. Asked once per image.
  - Else installs one, in a container of the image, into a derived image or below a prefix that engines mount; the
    container goes away again. What is installed of the same parts already is not touched.
  - Fails unless C(from mooncake.engine import TransferEngine) works afterwards.
options:
  runtime:
    description: V(docker), or V(process) where the host itself is where engines run.
    type: str
    choices: [docker, process]
    default: docker
  image:
    description: Image that engines run. With O(target=image) the one that is made.
    type: str
    default: ''
  base_image:
    description: Image that is extended or built in; by default O(image).
    type: str
    default: ''
  method:
    description: Where Mooncake comes from.
    type: str
    choices: [bundled, wheel, source]
    default: bundled
  target:
    description: V(prefix), a folder on the host; or V(image), a derived image (O(runtime=docker) only).
    type: str
    choices: [prefix, image]
    default: prefix
  prefix:
    description: The folder of O(target=prefix), the same path on the host and in containers.
    type: str
    default: ''
  version:
    description: Version to install, without the tag's v.
    type: str
    default: ''
  expected:
    description: Version that the tables say the image carries; another one is a warning.
    type: str
    default: ''
  wheel:
    description: A wheel on the host; empty for the package index.
    type: path
  archive:
    description: Tarball of the source, with submodules, on the host; empty for a clone.
    type: path
  repository:
    description: What is cloned.
    type: str
    default: https://github.com/kvcache-ai/Mooncake.git
  go_mirror:
    description: Put in the place of C(https://go.dev/dl/) in C(dependencies.sh).
    type: str
    default: ''
  install_go:
    description: Let C(dependencies.sh) install Go.
    type: bool
    default: false
  jobs:
    description: Parallel compilations.
    type: int
    default: 8
  cmake_args:
    description: More words for cmake.
    type: list
    elements: str
    default: []
  script:
    description: The installer on the host.
    type: path
    default: /opt/pd_serving/mooncake/install_mooncake.sh
  work:
    description: Folder on the host to build in.
    type: path
    default: /opt/pd_serving/mooncake/work
  state:
    description: Folder on the host for what was found and installed.
    type: path
    default: /opt/pd_serving/mooncake
  mounts:
    description: More C(host:container[:ro]) mounts that loading Mooncake needs; those without a source are left out.
    type: list
    elements: str
    default: []
  docker_command:
    description: The container engine's command.
    type: str
    default: docker
  environment:
    description: Laid over the environment with O(runtime=process).
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Tells whether something would be installed.
  diff_mode:
    support: none
    description: There is nothing to compare.
  platform:
    support: full
    platforms: linux
    description: Where the module works.
"""

EXAMPLES = r"""
- name: Tell which Mooncake the image carries
  ascend.pd_serving.mooncake:
    image: quay.io/ascend/vllm-ascend:v0.23.0-a3
    expected: 0.3.11.post1

- name: Build another one below a prefix
  ascend.pd_serving.mooncake:
    image: quay.io/ascend/vllm-ascend:v0.22.1rc1-a3
    method: source
    version: 0.3.9
    prefix: /opt/mooncake
"""

RETURN = r"""
mooncake:
  description: What engines will load.
  returned: always, unless nothing could be asked
  type: dict
  contains:
    version:
      description: Its version; null when it does not tell.
      type: str
    package:
      description: Folder of the Python package.
      type: str
    python:
      description: Python version of the image.
      type: str
    error:
      description: Why it does not load; null when it does.
      type: str
  sample: {version: 0.3.11.post1, package: /usr/local/python3.12/lib/python3.12/site-packages/mooncake, python: '3.12', error: null}
environment:
  description: What engines need in their environment to use a prefix.
  returned: success
  type: dict
  sample: {PYTHONPATH: /opt/mooncake/site-packages}
"""

import os
import shutil
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ascend.pd_serving.plugins.module_utils import mooncake


def refuse(params: t.Mapping[str, t.Any]) -> list[str]:
    """Options that do not fit together."""
    faults = []
    if params["runtime"] == "docker" and not params["image"]:
        faults.append("image is needed with runtime docker")
    if params["method"] == "bundled":
        return faults
    if params["target"] == "image":
        if params["runtime"] != "docker":
            faults.append("target image needs runtime docker: a process runs in no image; use target prefix")
        if not params["base_image"] or params["base_image"] == params["image"]:
            faults.append("target image needs a base image with another name than the image that engines run")
    elif not os.path.isabs(params["prefix"]) or os.path.normpath(params["prefix"]) == "/":
        faults.append(f"target prefix needs a folder of its own as an absolute path, not {params['prefix']!r}")
    if params["jobs"] < 1:
        faults.append(f"jobs must be 1 or more, not {params['jobs']}")
    if not params["version"] and not (params["wheel"] if params["method"] == "wheel" else params["archive"]):
        faults.append("a version, or a local file to install from, is needed")
    if params["wheel"] and params["archive"]:
        faults.append("give a wheel or an archive, not both")
    return faults


class Installation:
    """One run of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module, self.params = module, module.params
        params = self.params
        self.base = params["base_image"] or params["image"]
        self.to_image = params["method"] != "bundled" and params["target"] == "image"
        self.prefix = "" if params["method"] == "bundled" or self.to_image else params["prefix"]
        self.host = mooncake.OnHost(module.run_command, params["environment"])
        self.containers = mooncake.InContainer(
            module.run_command, params["docker_command"], self.base, params["mounts"]
        )
        self.in_docker = params["runtime"] == "docker"

    def identity(self) -> str:
        if not self.in_docker:
            return self.host.identity()
        found = self.containers.identity()
        if not found:
            raise mooncake.MooncakeError(f"the image {self.base} is not on this host")
        return found

    def probe(self) -> dict[str, t.Any]:
        if not self.in_docker:
            return self.host.probe(self.prefix)
        return self.containers.probe(self.prefix, self.params["image"] if self.to_image else "")

    def settings(self) -> dict[str, str]:
        """Environment of the installer, without the folder it works in."""
        params = self.params
        return {
            "PD_METHOD": params["method"],
            "PD_VERSION": params["version"],
            "PD_PREFIX": self.prefix,
            "PD_WHEEL": params["wheel"] or "",
            "PD_ARCHIVE": params["archive"] or "",
            "PD_REPOSITORY": params["repository"],
            "PD_GO_MIRROR": params["go_mirror"],
            "PD_INSTALL_GO": "1" if params["install_go"] else "0",
            "PD_JOBS": str(params["jobs"]),
            "PD_CMAKE": " ".join(params["cmake_args"]),
        }

    def parts(self, identity: str) -> str:
        """All that an installation is made of. Parallelism makes no difference to it."""
        settings = {name: value for name, value in self.settings().items() if name != "PD_JOBS"}
        sums = [mooncake.file_sum(settings[name]) for name in ("PD_WHEEL", "PD_ARCHIVE") if settings[name]]
        return mooncake.key({"identity": identity, "settings": settings, "files": sums})

    def state_file(self) -> str:
        return mooncake.state_file(
            self.params["state"], self.params["image"] if self.in_docker else "host", self.prefix
        )

    def is_there(self, parts: str) -> bool:
        if self.to_image:
            return self.containers.key_of(self.params["image"]) == parts
        known = mooncake.read_state(self.state_file()).get("parts") == parts
        return known and (not self.prefix or os.path.isdir(os.path.join(self.prefix, "site-packages")))

    def run(self) -> dict[str, t.Any]:
        identity = self.identity()
        parts = self.parts(identity)
        state = mooncake.read_state(self.state_file())
        there = self.is_there(parts)
        if there and state.get("parts") == parts and not state["mooncake"]["error"]:
            return self.result(False, state["mooncake"])
        installs = self.params["method"] != "bundled" and not there
        if installs and self.module.check_mode:
            return {"changed": True, "mooncake": None, "environment": mooncake.environment(self.prefix)}
        if installs:
            self.install(parts)
        found = self.probe()
        if not self.module.check_mode:
            mooncake.write_state(self.state_file(), {"parts": parts, "identity": identity, "mooncake": found})
        return self.result(installs, found)

    def install(self, parts: str) -> None:
        params = self.params
        os.makedirs(params["work"], exist_ok=True)
        if self.prefix:
            os.makedirs(self.prefix, exist_ok=True)
        try:
            if self.in_docker:
                name = f"pd-mooncake-{parts[:12]}"
                target = params["image"] if self.to_image else ""
                self.containers.install(params["script"], self.settings(), params["work"], name, target, parts)
            else:
                self.host.install(params["script"], self.settings(), params["work"])
        finally:
            shutil.rmtree(params["work"], ignore_errors=True)

    def result(self, changed: bool, found: dict[str, t.Any]) -> dict[str, t.Any]:
        if found["error"]:
            raise mooncake.MooncakeError(
                f"Mooncake {found['version'] or ''} in {self.where()} does not load: {found['error']}"
            )
        expected = self.params["expected"] if self.params["method"] == "bundled" else self.params["version"]
        if expected and found["version"] and found["version"] != expected:
            self.module.warn(
                f"Mooncake {found['version']} is in {self.where()}, but {expected} was expected (pd_mooncake_version): "
                "what the plan knows of its ports and features may not hold"
            )
        return {"changed": changed, "mooncake": found, "environment": mooncake.environment(self.prefix)}

    def where(self) -> str:
        return self.prefix or (self.params["image"] if self.in_docker else "this host's Python")


def main() -> None:
    text = {"type": "str", "default": ""}
    module = AnsibleModule(
        argument_spec={
            "runtime": {"type": "str", "choices": ["docker", "process"], "default": "docker"},
            "image": text,
            "base_image": text,
            "method": {"type": "str", "choices": ["bundled", "wheel", "source"], "default": "bundled"},
            "target": {"type": "str", "choices": ["prefix", "image"], "default": "prefix"},
            "prefix": text,
            "version": text,
            "expected": text,
            "wheel": {"type": "path"},
            "archive": {"type": "path"},
            "repository": {"type": "str", "default": "https://github.com/kvcache-ai/Mooncake.git"},
            "go_mirror": text,
            "install_go": {"type": "bool", "default": False},
            "jobs": {"type": "int", "default": 8},
            "cmake_args": {"type": "list", "elements": "str", "default": []},
            "script": {"type": "path", "default": "/opt/pd_serving/mooncake/install_mooncake.sh"},
            "work": {"type": "path", "default": "/opt/pd_serving/mooncake/work"},
            "state": {"type": "path", "default": "/opt/pd_serving/mooncake"},
            "mounts": {"type": "list", "elements": "str", "default": []},
            "docker_command": {"type": "str", "default": "docker"},
            "environment": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    faults = refuse(module.params)
    if faults:
        module.fail_json(msg="\n".join(faults))
    if module.params["runtime"] == "docker" and shutil.which(module.params["docker_command"]) is None:
        module.fail_json(
            msg=f"there is no command {module.params['docker_command']} on this host; Mooncake is looked for with it"
        )
    try:
        result = Installation(module).run()
    except (mooncake.MooncakeError, OSError) as problem:
        module.fail_json(msg=str(problem))
    module.exit_json(**result)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What a host must have before containers are started on it: requests, the daemon, free chips and names, the image.

Containers of others are only ever named, never touched.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tarfile
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils import units
from ansible_collections.ascend.pd_serving.plugins.module_utils.docker_socket import (
    SOCKET,
    Container,
    Docker,
    DockerError,
    Image,
    Version,
)
from ansible_collections.ascend.pd_serving.plugins.module_utils.host_check import (
    CLUSTER_LABEL,
    Finding,
    finding,
    is_own,
)

CHIP_DEVICE = re.compile(r"/dev/davinci(\d+)\Z")

IMPORT_PATIENCE = 30.0

MANIFEST = "manifest.json"
MANIFEST_LIMIT = 16 * 1024 * 1024
"""No list of an archive's images is longer; a file of this name in any other archive may be."""

COMPRESSIONS = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")
"""How gzip, bzip2, xz and zstd begin: docker loads archives packed with these too."""


@dataclasses.dataclass(frozen=True)
class Look:
    """What was seen of docker: what is wrong, and the containers, for telling whose a port is."""

    findings: list[Finding]
    containers: list[Container] = dataclasses.field(default_factory=list)
    version: Version | None = None
    image: Image | None = None


def look(site: units.Site, names: t.Collection[str], chips: t.Collection[int], image: str, archive: str) -> Look:
    """Look at everything. A daemon that cannot be asked is one finding, and nothing more can be said then."""
    findings = check_requests()
    docker = Docker(units.under(site.root, SOCKET))
    try:
        docker.ping()
        version = docker.version()
        containers = docker.containers()
        findings += check_names(site.cluster, containers, names)
        findings += check_chips(site.cluster, containers, names, chips)
        found = docker.image(image) if image else None
        findings += [] if found is not None else check_image(docker, site.root, image, archive)
    except DockerError as error:
        return Look([*findings, finding("docker", "pd_runtime", "docker", str(error), error.fix)])
    return Look(findings, containers, version, found)


# ---------------------------------------------------------------------------------------------------------------------
# The library that Ansible's docker modules need
# ---------------------------------------------------------------------------------------------------------------------


def check_requests() -> list[Finding]:
    """Whether the Python that runs this can import requests: community.docker needs it on every host."""
    why = why_no_requests()
    if why is not None:
        message = (
            f"{sys.executable} cannot import the Python library requests, which Ansible's docker modules need on "
            f"every host ({why})"
        )
        fix = (
            "install the package python3-requests of the host's distribution; on a host without a package source copy "
            "the package's file there and install that (dnf install ./FILE.rpm, apt-get install ./FILE.deb); or set "
            "host_requests_package to the package or the file and let the role host do it"
        )
        return [finding("requests", "host_requests_package", None, message, fix)]
    return []


def why_no_requests() -> str | None:
    """What an import says; None when it works. In a process as Ansible starts modules, which this one need not be."""
    command = [sys.executable, "-c", "import requests"]
    try:
        done = subprocess.run(
            command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=IMPORT_PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return None if done.returncode == 0 else lines[-1] if lines else f"exit code {done.returncode}"


# ---------------------------------------------------------------------------------------------------------------------
# Other containers
# ---------------------------------------------------------------------------------------------------------------------


def check_names(cluster: str, containers: t.Iterable[Container], names: t.Collection[str]) -> list[Finding]:
    """Names of this cluster that somebody else has given to a container, whether that runs or not."""
    found = []
    for one in containers:
        if one.name in names and not is_own(one, cluster):
            other = one.labels.get(CLUSTER_LABEL)
            maker = (
                f"belongs to cluster {other}" if other else f"was not made by this product (no label {CLUSTER_LABEL})"
            )
            message = f"container {one.name} ({one.state}) has a name that this cluster needs, and {maker}"
            fix = f"remove it if nobody needs it (docker rm {one.name}), or set another pd_cluster_name"
            found.append(finding("container", "pd_cluster_name", one.name, message, fix))
    return found


def check_chips(
    cluster: str, containers: t.Iterable[Container], names: t.Collection[str], chips: t.Collection[int]
) -> list[Finding]:
    """Wanted chips that another container has: one that is shared makes all of a container invisible (DEV-03)."""
    found = []
    for one in containers:
        own = is_own(one, cluster)
        if not chips or not one.held or one.name in names:
            continue
        taken = sorted(_chips_of(one) & set(chips))
        if taken:
            found.append(_taken_finding(one, own, taken))
        elif one.privileged and not own:
            message = (
                f"container {one.name} is privileged, so it can use every chip of this host; whether it does cannot be "
                f"seen from here"
            )
            fix = f"make sure that it leaves these chips alone, or stop it: docker stop {one.name}"
            warning = finding("container", "pd_chips", one.name, message, fix)
            found.append({**warning, "severity": "warning"})
    return found


def _chips_of(container: Container) -> set[int]:
    matches = (CHIP_DEVICE.match(device) for device in container.devices)
    return {int(match.group(1)) for match in matches if match}


def _taken_finding(container: Container, own: bool, chips: list[int]) -> Finding:
    listed = ", ".join(map(str, chips))
    what = f"chip {listed} is" if len(chips) == 1 else f"chips {listed} are"
    if own:
        whose = f"container {container.name} of this cluster, which the plan no longer has"
        fix = f"stop it (docker stop {container.name}), or put its instance back into the inventory"
    else:
        other = container.labels.get(CLUSTER_LABEL)
        whose = f"container {container.name}" + (f" of cluster {other}" if other else "")
        fix = f"stop it if nobody needs it (docker stop {container.name}), or leave these chips out of pd_chips"
    return finding("chip", "pd_chips", chips, f"{what} held by {whose}", fix)


# ---------------------------------------------------------------------------------------------------------------------
# The image
# ---------------------------------------------------------------------------------------------------------------------


def check_image(docker: Docker, root: str, image: str, archive: str) -> list[Finding]:
    """An image that is missing must be in the archive, and that must fit. Without one it is pulled: not known here."""
    if not image or not archive:
        return []
    path = units.under(root, archive)
    try:
        trouble = archive_trouble(path, image)
        size = os.path.getsize(path)
    except OSError as error:
        trouble = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
    if trouble:
        message = f"image {image} is not on this host, and its archive {archive} {trouble}"
        fix = f"put a whole one there (docker save {image} -o FILE), set image_archive, or leave that empty to pull the image"
        return [finding("image", "image_archive", archive, message, fix)]
    return check_space(units.under(root, docker.root_folder()), archive, size)


def check_space(folder: str, archive: str, size: int) -> list[Finding]:
    """Room for the image where docker keeps it: unpacked it is at least as large as its archive."""
    try:
        free = os.statvfs(folder)
    except OSError as error:
        message = f"how much room docker has cannot be told: {folder}: {error.strerror}"
        warning = finding(
            "space", "image_archive", archive, message, "see that there is room for the image: docker info"
        )
        return [{**warning, "severity": "warning"}]
    room = free.f_bavail * free.f_frsize
    if room >= size:
        return []
    message = (
        f"the image does not fit: {_size(room)} are free in {folder}, its archive {archive} alone has {_size(size)}"
    )
    fix = "make room (docker image prune), or move docker's data-root to a larger disk"
    return [finding("space", "image_archive", archive, message, fix)]


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def archive_trouble(path: str, image: str) -> str | None:
    """Why docker could not load an image from a file; None when it can. Raises OSError when that cannot be read.

    Only the headers are read, so that this takes no time with tens of gigabytes. What is in a packed archive is not
    looked at: that would take minutes.
    """
    with open(path, "rb") as stream:
        if stream.read(8).startswith(COMPRESSIONS):
            return None
        stream.seek(0)
        try:
            with tarfile.open(fileobj=stream, mode="r:") as archive:
                return _contents_trouble(archive, image)
        except tarfile.TarError as error:
            return f"is no tar archive ({error})"


def _contents_trouble(archive: tarfile.TarFile, image: str) -> str | None:
    """Judge an archive by its list of images, which also names every file that there must be."""
    try:
        members = {member.name: member for member in archive.getmembers()}
    except tarfile.TarError as error:
        return f"is damaged or cut off ({error})"
    member = members.get(MANIFEST)
    stream = archive.extractfile(member) if member is not None and member.size <= MANIFEST_LIMIT else None
    if stream is None:
        return f"is no archive of an image, or is cut off: there is no {MANIFEST} in it"
    try:
        entries = [(entry["RepoTags"] or [], [entry["Config"], *entry["Layers"]]) for entry in json.load(stream)]
    except (KeyError, TypeError, ValueError):
        return f"is no archive of an image: its {MANIFEST} does not list any"
    missing = sorted({name for _tags, files in entries for name in files} - set(members))
    if missing:
        return f"is damaged or cut off: {missing[0]} is not in it"
    held = sorted(tag for tags, _files in entries for tag in tags)
    if "@" in image or full_name(image) in map(full_name, held):
        return None
    return f"holds {', '.join(held) or 'an image without a name'} instead"


def full_name(image: str) -> str:
    """An image's name as docker completes it: with a tag, and without the registry that is meant anyway."""
    for prefix in ("docker.io/library/", "docker.io/"):
        if image.startswith(prefix):
            image = image[len(prefix) :]
            break
    return image if ":" in image.rsplit("/", 1)[-1] else f"{image}:latest"

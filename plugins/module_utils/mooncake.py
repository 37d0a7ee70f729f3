# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Installing and looking at Mooncake: in a container of the engine image, or where there is none, on the host itself."""

from __future__ import annotations

import hashlib
import json
import os
import typing as t

SCHEMA = 1
PARTS_LABEL = "pd_serving.mooncake"
"""Of a derived image: what it was made of, the base image's id among it."""
WORK_IN_CONTAINER = "/pd_mooncake"
# Which Mooncake is there and whether it loads: a JSON line, whatever is wrong with it.
PROBE = r"""
import importlib.metadata, importlib.util, json, os, subprocess, sys
found = {"python": "%d.%d" % sys.version_info[:2], "version": None, "package": None, "error": None}
for name in ("mooncake-transfer-engine-npu", "mooncake-transfer-engine"):
    try:
        found["version"] = importlib.metadata.version(name)
        break
    except importlib.metadata.PackageNotFoundError:
        pass
spec = importlib.util.find_spec("mooncake")
if spec is not None:
    found["package"] = os.path.dirname(spec.origin) if spec.origin else list(spec.submodule_search_locations or [None])[0]
# Images before 0.23 carry a build of the source.
if found["version"] is None and os.path.isdir("/vllm-workspace/Mooncake/.git"):
    tag = subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", "/vllm-workspace/Mooncake", "describe", "--tags", "--always"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True,
    ).stdout.strip()
    found["version"] = tag[1:] if tag[:1] == "v" else tag or None
try:
    from mooncake.engine import TransferEngine
except BaseException as problem:
    found["error"] = "%s: %s" % (type(problem).__name__, problem)
print("PD_PROBE " + json.dumps(found))
"""


class MooncakeError(Exception):
    """Why it is not installed, with the end of what was printed."""


Run = t.Callable[..., t.Tuple[int, str, str]]
"""AnsibleModule.run_command: (words, environ_update=...) -> (code, stdout, stderr)."""


def library_path(python: str, prefix: str = "") -> list[str]:
    """Folders for LD_LIBRARY_PATH of an installation, by the Python version of the image."""
    if prefix:
        return [f"{prefix}/site-packages/mooncake", f"{prefix}/lib"]
    return [f"/usr/local/lib64/python{python}/site-packages/mooncake", "/usr/local/lib", "/usr/local/lib64"]


def environment(prefix: str) -> dict[str, str]:
    """What a process needs to use the installation below a prefix; nothing for one in the system's folders."""
    if not prefix:
        return {}
    return {
        "PYTHONPATH": f"{prefix}/site-packages",
        "LD_LIBRARY_PATH": ":".join(library_path("", prefix)),
    }


def key(settings: t.Mapping[str, t.Any]) -> str:
    """One text for all that an installation depends on."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def file_sum(path: str) -> str:
    """Checksum of a wheel or an archive; a folder has none. Raises MooncakeError when it is not there."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            for chunk in iter(lambda: stream.read(1 << 20), b""):
                digest.update(chunk)
    except OSError as problem:
        raise MooncakeError(f"{path} cannot be read: {problem.strerror}") from None
    return digest.hexdigest()


def state_file(folder: str, image: str, prefix: str) -> str:
    """Where role mooncake keeps what it has found of an image (or "host"), and installed below a prefix."""
    return os.path.join(folder, f"{key({'image': image, 'prefix': prefix})[:16]}.json")


def is_known(folder: str, image: str, identity: str | None) -> bool:
    """Whether the image's own Mooncake has been looked at, and loads."""
    state = read_state(state_file(folder, image, ""))
    return identity is not None and state.get("identity") == identity and not state["mooncake"]["error"]


def read_state(path: str) -> dict[str, t.Any]:
    try:
        with open(path, encoding="utf-8") as stream:
            state = json.load(stream)
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) and state.get("schema") == SCHEMA else {}


def write_state(path: str, state: t.Mapping[str, t.Any]) -> None:
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as stream:
        json.dump({"schema": SCHEMA, **state}, stream, indent=1)
    os.replace(temporary, path)


def tail(text: str, lines: int = 30) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])


def parse_probe(code: int, out: str, err: str) -> dict[str, t.Any]:
    """The answer of PROBE among what else was printed. Raises MooncakeError when there is none."""
    for line in reversed(out.splitlines()):
        if line.startswith("PD_PROBE "):
            found: dict[str, t.Any] = json.loads(line[len("PD_PROBE ") :])
            return found
    raise MooncakeError(f"Python could not be asked for Mooncake (exit code {code}):\n{tail(err or out)}")


class OnHost:
    """Runs on the host itself: the host is the container, or has no engine."""

    def __init__(self, run: Run, environ: t.Mapping[str, str]) -> None:
        self.run, self.environ = run, dict(environ)

    def identity(self) -> str:
        code, out, err = self.run(
            ["python3", "-c", "import sys; print(sys.executable, sys.version)"], environ_update=self.environ
        )
        if code:
            raise MooncakeError(f"python3 does not run: {tail(err)}")
        return out.strip()

    def probe(self, prefix: str) -> dict[str, t.Any]:
        extra = environment(prefix)
        environ = dict(self.environ)
        for name, value in extra.items():
            before = environ.get(name, os.environ.get(name, ""))
            environ[name] = f"{value}:{before}" if before else value
        return parse_probe(*self.run(["python3", "-c", PROBE], environ_update=environ))

    def install(self, script: str, settings: t.Mapping[str, str], work: str) -> str:
        environ = {**self.environ, **settings, "PD_WORK": work}
        code, out, err = self.run(["bash", script], environ_update=environ)
        if code:
            raise MooncakeError(f"the installation ended with code {code}:\n{tail(out + err)}")
        return out


class InContainer:
    """Runs in containers of an image that go away again; an image target is committed before they do."""

    def __init__(self, run: Run, docker: str, image: str, mounts: t.Sequence[str]) -> None:
        self.run, self.docker, self.image, self.mounts = run, docker, image, list(mounts)

    def _docker(self, *words: str) -> tuple[int, str, str]:
        return self.run([self.docker, *words])

    def identity(self, image: str = "") -> str:
        """The image's id; empty when it is not there."""
        code, out, _err = self._docker("image", "inspect", "--format", "{{.Id}}", image or self.image)
        return "" if code else out.strip()

    def key_of(self, image: str) -> str:
        """What an image of ours was made of; empty for others and for one that is not there."""
        code, out, _err = self._docker(
            "image", "inspect", "--format", f'{{{{index .Config.Labels "{PARTS_LABEL}"}}}}', image
        )
        return "" if code else out.strip()

    def _volumes(self) -> list[str]:
        words: list[str] = []
        for mount in self.mounts:
            # The engine would make a missing source as a folder.
            if os.path.exists(mount.split(":")[0]):
                words += ["--volume", mount]
        return words

    def probe(self, prefix: str, image: str = "") -> dict[str, t.Any]:
        words = ["run", "--rm", "--network", "none", "--entrypoint", "bash", *self._volumes()]
        if prefix:
            words += ["--volume", f"{prefix}:{prefix}:ro"]
        # Prepended inside, where the image's own value is known.
        export = "".join(
            f'export {name}="{value}${{{name}:+:${name}}}"; ' for name, value in environment(prefix).items()
        )
        return parse_probe(
            *self._docker(*words, image or self.image, "-c", f'{export}exec python3 -c "$1"', "probe", PROBE)
        )

    def install(self, script: str, settings: t.Mapping[str, str], work: str, name: str, target: str, label: str) -> str:
        """Install in a container; with target commit it under that name."""
        prefix = settings["PD_PREFIX"]
        self._docker("rm", "--force", name)
        words = ["run", "--name", name, "--network", "host", "--entrypoint", "env", *self._volumes()]
        words += ["--volume", f"{work}:{WORK_IN_CONTAINER}"]
        if prefix:
            words += ["--volume", f"{prefix}:{prefix}"]
        for variable in ("PD_WHEEL", "PD_ARCHIVE"):
            if settings[variable]:
                words += ["--volume", f"{settings[variable]}:{settings[variable]}:ro"]
        words += ["--volume", f"{script}:{script}:ro"]
        # Distributions mark their Python as not for pip. An image is for what runs in it, and goes with it.
        inside = {**settings, "PD_WORK": WORK_IN_CONTAINER, "PIP_BREAK_SYSTEM_PACKAGES": "1"}
        # By the command: what is given as the container's own environment would be the derived image's as well.
        settled = [f"{variable}={value}" for variable, value in inside.items()]
        try:
            code, out, err = self._docker(*words, self.image, *settled, "bash", script)
            if code:
                raise MooncakeError(
                    f"the installation in a container of {self.image} ended with code {code}:\n{tail(out + err)}"
                )
            if target:
                self._commit(name, target, label)
        finally:
            self._docker("rm", "--force", name)
        return out

    def _commit(self, name: str, target: str, label: str) -> None:
        """The derived image keeps the base's command, and finds the libraries by the Python of the image."""
        changes = ["--change", f"LABEL {PARTS_LABEL}={label}"]
        code, out, err = self._docker("image", "inspect", "--format", "{{json .Config}}", self.image)
        if code:
            raise MooncakeError(f"{self.image} cannot be inspected: {tail(err)}")
        config = json.loads(out)
        python = self.probe("")["python"]
        env = dict(entry.split("=", 1) for entry in config.get("Env") or [] if "=" in entry)
        folders = [*library_path(python), *filter(None, [env.get("LD_LIBRARY_PATH", "")])]
        changes += ["--change", f"ENV LD_LIBRARY_PATH={':'.join(folders)}"]
        # The container's own would stay where none were given; an empty word is none.
        changes += ["--change", f"ENTRYPOINT {json.dumps(config.get('Entrypoint') or [''])}"]
        changes += ["--change", f"CMD {json.dumps(config.get('Cmd') or [])}"]
        code, _out, err = self._docker("commit", *changes, name, target)
        if code:
            raise MooncakeError(f"the image {target} could not be made: {tail(err)}")

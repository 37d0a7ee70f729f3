# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What the engine finds on its (simulated) host: chips, model, interfaces, addresses, files, faults."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket

from vllm_sim.errors import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from vllm_sim.settings import Settings

FAULTS_FILE = "/opt/pd_rehearsal/faults.json"
MAPPED_CHIPS = "PD_REHEARSAL_CHIPS"
# On every hardware generation; devmm_svm is missing on A5.
_COMMON_NODES = ("davinci_manager", "hisi_hdc")
_CHIP = re.compile(r"davinci(\d+)")
_EXPERT_KEYS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
_WILDCARDS = ("", "0.0.0.0", "::")


class Host:
    """The host below ``PD_REHEARSAL_ROOT`` (the machine itself without it)."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self.root = env.get("PD_REHEARSAL_ROOT", "").rstrip("/")
        self._claims: list[Any] = []

    def path(self, path: str) -> str:
        return self.root + path

    def check(self, settings: Settings) -> None:
        """Everything on the host that stops a real engine before it loads its weights."""
        self._check_model(settings)
        visible = self._visible_devices()
        self._claim(visible, settings)
        self._check_interfaces()
        self._check_addresses(settings)
        self._check_endpoints(settings, visible)
        self._check_stores(settings)

    def own_address(self, api_host: str) -> str:
        """upstream: ``get_ip()`` is VLLM_HOST_IP, else the source address of the default route, else 0.0.0.0.

        A simulated host has no route of its own; without VLLM_HOST_IP its address is the one it was told elsewhere.
        """
        given = self.env.get("VLLM_HOST_IP")
        if given:
            return given
        if self.root:
            told = (address for address in (api_host, self.env.get("HCCL_IF_IP", "")) if address not in _WILDCARDS)
            return next(told, "127.0.0.1")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("8.8.8.8", 80))  # a datagram socket sends nothing here
            except OSError:
                return "0.0.0.0"
            address: str = probe.getsockname()[0]
            return address

    def bind_address(self, given: str) -> str:
        """Many simulated hosts share one machine, so there a wildcard stands for the host's own address."""
        if given not in _WILDCARDS:
            return given
        return self.own_address(given) if self.root else given

    def faults(self, port: int | None, rank: int) -> dict[str, Any]:
        """The faults ordered for the engine of this API port and rank; the narrower entry wins for each fault."""
        try:
            with open(self.path(FAULTS_FILE), encoding="utf-8") as file:
                ordered = json.load(file)
        except FileNotFoundError:
            return {}
        except ValueError as exc:
            raise Refusal(f"{self.path(FAULTS_FILE)} is not JSON: {exc}") from None
        if not isinstance(ordered, dict) or not all(isinstance(faults, dict) for faults in ordered.values()):
            raise Refusal(f"{self.path(FAULTS_FILE)} must be an object of objects")
        kinds = {"load_seconds": (int, float), "die_after": (int, float), "fail_start": (str,), "unhealthy": (bool,)}
        merged: dict[str, Any] = {}
        for key in ("*", f"rank{rank}", str(port)):
            for name, value in ordered.get(key, {}).items():
                if name not in kinds or type(value) not in kinds[name]:
                    raise Refusal(f"{self.path(FAULTS_FILE)}: {key}: unknown fault or wrong value: {name}: {value!r}")
                merged[name] = value
        return merged

    def _check_model(self, settings: Settings) -> None:
        folder = self.path(settings.model)
        if not settings.model.startswith("/") or not os.path.isdir(folder):
            raise Refusal(
                f"OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{settings.model}': "
                "there is no such model folder on this host"
            )
        try:
            with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
                config = json.load(file)
        except FileNotFoundError:
            raise Refusal(
                "ValueError: Could not detect config format for no config file found: "
                f"{settings.model} has no config.json"
            ) from None
        except ValueError as exc:
            raise Refusal(f"OSError: {settings.model}/config.json is not a valid JSON file: {exc}") from None
        if settings.parallel.external and _is_dense(config):
            raise Refusal(
                "ValueError: Non-MoE models do not support external data parallel mode. For external load balancing, "
                "launch independent vLLM instances without --data-parallel-* arguments."
            )

    def _chips(self) -> list[str]:
        """The device nodes present, by physical id."""
        folder = self.path("/dev")
        names = os.listdir(folder) if os.path.isdir(folder) else []
        missing = [node for node in _COMMON_NODES if node not in names]
        if missing:
            raise Refusal(f"RuntimeError: aclInit failed, error code is 507008: /dev/{missing[0]} is missing")
        chips = sorted((int(match.group(1)), name) for name in names for match in [_CHIP.fullmatch(name)] if match)
        mapped = self.env.get(MAPPED_CHIPS)
        if mapped is not None:
            # A container sees the chips it was given and no others.
            given = {int(chip) for chip in mapped.split(",")}
            chips = [(chip, name) for chip, name in chips if chip in given]
        return [os.path.join(folder, name) for _, name in chips]

    def _visible_devices(self) -> list[int]:
        """upstream: a visible device is the index of a present chip, not its physical id."""
        present = len(self._chips())
        raw = self.env.get("ASCEND_RT_VISIBLE_DEVICES")
        if raw is None:
            return list(range(present))
        words = raw.split(",")
        if not all(word.strip().isdigit() for word in words):
            raise Refusal(
                f"RuntimeError: Initialize:torch_npu NPU function error: aclInit, error code is 107001: "
                f"ASCEND_RT_VISIBLE_DEVICES={raw!r} is not a list of numbers"
            )
        visible = [int(word) for word in words]
        if len(set(visible)) != len(visible):
            raise Refusal(
                f"RuntimeError: aclInit, error code is 107001: ASCEND_RT_VISIBLE_DEVICES={raw} repeats a device"
            )
        beyond = [index for index in visible if index >= present]
        if beyond:
            raise Refusal(
                f"RuntimeError: SetDevice failed, error code is 107001: invalid device ID {beyond[0]}: "
                f"ASCEND_RT_VISIBLE_DEVICES={raw}, but only {present} NPUs are present (0 to {present - 1})"
            )
        return visible

    def _claim(self, visible: list[int], settings: Settings) -> None:
        """Take the chips: a lock per device file stands for the HBM that a running engine fills."""
        parallel = settings.parallel
        need = parallel.world * parallel.local
        if need > len(visible):
            raise Refusal(
                f"ValueError: World size ({need}) is larger than the number of available NPUs ({len(visible)}) in this "
                "node."
            )
        chips = self._chips()
        for index in visible:
            handle = open(chips[index], "rb")  # noqa: SIM115 - open, and so locked, until the process ends
            self._claims.append(handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as exc:
                if exc.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                raise Refusal(
                    f"ValueError: Free memory on device npu:{index} (1.12/61.28 GiB) on startup is less than desired "
                    f"GPU memory utilization ({settings.values.get('--gpu-memory-utilization', 0.9)}): another process "
                    f"holds {chips[index][len(self.root) :]}. Decrease GPU memory utilization or reduce GPU memory "
                    "used by other processes."
                ) from None

    def _check_interfaces(self) -> None:
        known = {name for _, name in socket.if_nameindex()}
        for variable in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"):
            raw = self.env.get(variable, "")
            if raw.startswith("^"):  # upstream: HCCL's way to exclude interfaces
                continue
            for name in filter(None, raw.lstrip("=").split(",")):
                if name not in known:
                    raise Refusal(f"RuntimeError: Unable to find address for: {name} (interface in {variable})")

    def may_talk_to(self, address: str) -> bool:
        """A rehearsal never leaves the machine, whatever address an inventory or a proxy brings in."""
        return not self.root or address.startswith("127.") or address in ("::1", "localhost")

    def _is_own(self, address: str) -> bool:
        if not self.may_talk_to(address):
            return False
        try:
            bind(address, 0).close()
        except OSError:
            return False
        return True

    def _check_addresses(self, settings: Settings) -> None:
        given = self.env.get("HCCL_IF_IP")
        if given and not self._is_own(given):
            raise Refusal(
                f"RuntimeError: HcclGetRootInfo failed, error code is 7: HCCL_IF_IP={given} is no address of this host"
            )
        given = self.env.get("VLLM_HOST_IP")
        if given and not self._is_own(given):
            raise Refusal(
                f"zmq.error.ZMQError: Cannot assign requested address (addr='tcp://{given}'): "
                f"VLLM_HOST_IP={given} is no address of this host"
            )
        for name, address in (("--host", settings.host), ("--data-parallel-address", settings.parallel.address)):
            if address not in _WILDCARDS and not self.may_talk_to(address):
                raise Refusal(f"OSError: [Errno 101] Network is unreachable: {name} {address} is outside the rehearsal")

    def _check_endpoints(self, settings: Settings, visible: list[int]) -> None:
        """upstream (A5): each worker reads the endpoint file of its entry in ASCEND_RT_VISIBLE_DEVICES."""
        folder = settings.kv.endpoint_folder
        if not folder:
            return
        for index in visible[: settings.parallel.world * settings.parallel.local]:
            path = f"{folder}/ub_endpoint_npu_{index}.json"
            try:
                with open(self.path(path), encoding="utf-8") as file:
                    document = json.load(file)
            except OSError:
                raise Refusal(f"FileNotFoundError: Endpoint config file not found: {path}") from None
            except ValueError as exc:
                raise Refusal(f"RuntimeError: Failed to parse endpoint config file: {path}: {exc}") from None
            self._check_endpoint(path, document)

    def _check_endpoint(self, path: str, document: object) -> None:
        """What HIXL makes of one endpoint file. Endpoints on the host's RDMA cards need their device nodes."""
        fault = "RuntimeError: TransferEngine initialization failed with ret_value: -1"
        endpoints = document.get("endpoint_list") if isinstance(document, dict) else None
        if not isinstance(document, dict) or document.get("version") != "1.3" or not document.get("net_instance_id"):
            raise Refusal(f"{fault}: {path} needs version 1.3 and a net_instance_id")
        if not isinstance(endpoints, list) or not endpoints or not all(isinstance(each, dict) for each in endpoints):
            raise Refusal(f"{fault}: {path} has no endpoint_list")
        for endpoint in endpoints:
            address = str(endpoint.get("comm_id", ""))
            if endpoint.get("protocol") == "roce" and not _is_ipv4(address):
                raise Refusal(f"{fault}: {path}: comm_id {address!r} is no IPv4 address")
            if endpoint.get("placement") == "host" and not os.path.isdir(self.path("/dev/infiniband")):
                raise Refusal(f"{fault}: {path} is on the host's RDMA cards, but /dev/infiniband is missing")

    def _check_stores(self, settings: Settings) -> None:
        """upstream: the worker joins the KV pool when it starts, and ends when the pool's master does not answer."""
        for child in settings.kv.stores:
            extra = child.get("kv_connector_extra_config", {})
            named_store = child["kv_connector"] in ("AscendStoreConnector", "MooncakeConnectorStoreV1")
            backend = extra.get("backend", "mooncake")
            if named_store and backend == "memcache":
                self._check_memcache()
            if not named_store or backend != "mooncake":
                continue
            path = self.env.get("MOONCAKE_CONFIG_PATH")
            if not path:
                raise Refusal("ValueError: The environment variable 'MOONCAKE_CONFIG_PATH' is not set.")
            try:
                with open(self.path(path), encoding="utf-8") as file:
                    # upstream: the variable wins over the file
                    master = self.env.get("MOONCAKE_MASTER") or json.load(file).get("master_server_address")
            except (OSError, ValueError) as exc:
                raise Refusal(f"ValueError: MOONCAKE_CONFIG_PATH={path} cannot be read: {exc}") from None
            if not master:
                raise Refusal(f"ValueError: {path} has no master_server_address")
            if not self._answers(str(master)):
                raise Refusal(
                    f"RuntimeError: Initialize mooncake failed. (the pool's master at {master} takes no connections)"
                )

    def _check_memcache(self) -> None:
        """upstream: memcache's client reads key = value lines from the file in MMC_LOCAL_CONFIG_PATH."""
        path = self.env.get("MMC_LOCAL_CONFIG_PATH")
        if not path:
            raise Refusal("RuntimeError: memcache: MMC_LOCAL_CONFIG_PATH is not set")
        try:
            with open(self.path(path), encoding="utf-8") as file:
                lines = [line.partition("=") for line in file if "=" in line and not line.startswith("#")]
        except OSError as exc:
            raise Refusal(f"RuntimeError: memcache: MMC_LOCAL_CONFIG_PATH={path} cannot be read: {exc}") from None
        settings = {key.strip(): value.strip() for key, _, value in lines}
        for key in ("ock.mmc.meta_service_url", "ock.mmc.local_service.config_store_url"):
            url = settings.get(key, "")
            if not url.startswith("tcp://") or not self._answers(url[6:]):
                raise Refusal(f"RuntimeError: memcache: init failed: {key} {url or 'is missing'} takes no connections")

    def _answers(self, endpoint: str) -> bool:
        """Whether host:port takes connections; what is outside of a rehearsal is not asked, and taken to be there."""
        address, _, port = endpoint.rpartition(":")
        if not port.isdigit():
            raise Refusal(f"ValueError: {endpoint!r} is no host:port")
        if not self.may_talk_to(address):
            return True
        try:
            socket.create_connection((address, int(port)), 3).close()
        except (OSError, OverflowError):
            return False
        return True


def _is_ipv4(text: str) -> bool:
    try:
        return len(socket.inet_aton(text)) == 4 and text.count(".") == 3
    except OSError:
        return False


def _is_dense(config: dict[str, Any]) -> bool:
    """Whether a complete config.json describes a dense model; a stub that names no architecture is not judged."""
    text = config.get("text_config", config)
    return "architectures" in config and not any(text.get(key) or config.get(key) for key in _EXPERT_KEYS)


def bind(address: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet. Raises OSError, as ``socket.bind`` does."""
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
    except (OSError, OverflowError):
        sock.close()
        raise
    return sock

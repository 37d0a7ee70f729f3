# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Every rule by its id, with a title for people.

The ids are a public interface: they are in the plan's findings and are the anchors of docs/rules.md. A test holds the
code, this table and that page together.
"""

from __future__ import annotations

RULES: dict[str, str] = {
    # Groups and instances (inventory.py)
    "role-without-hosts": "A role has no hosts",
    "role-group-mixed": "A role group has hosts of its own and child groups",
    "instance-without-hosts": "An instance's group has no hosts",
    "instance-in-two-roles": "One group is an instance of both roles",
    "proxy-host": "The proxy does not have exactly one host",
    "host-in-several-instances": "A host is in several instances without values for each",
    "instance-entry": "pd_instances names what is not there or what cannot be set per instance",
    # Values, one by one (inventory.py)
    "unknown-variable": "A pd_ variable that does not exist",
    "required-variable": "A required variable is not set",
    "variable-value": "A value does not fit its variable",
    "text-value": "A number or truth value is given as text",
    "placeholder": "A placeholder of a template was left in",
    "cluster-variable-differs": "A value of the whole cluster differs between hosts",
    "instance-variable-differs": "A value of one instance differs between its hosts",
    # Addresses (inventory.py, rules/cluster.py)
    "node-ip": "A host has no IPv4 address",
    "node-ip-v6": "A host's address is IPv6",
    "node-ip-twice": "Two hosts have the same address",
    "node-ip-loopback": "A host's address is a loopback address",
    "dp-address": "The address of a data-parallel group is not that of its rank 0",
    # Ranks and chips (layout.py, rules/sizes.py)
    "chip-not-there": "A chip number that the host does not have",
    "chip-not-mapped": "A chip that the container does not see",
    "chips-claimed-twice": "Two instances compute on the same chips",
    "too-few-chips": "The ranks need more chips than there are",
    "dp-size-local": "More ranks on one host than the instance has",
    "dp-ranks": "The hosts' ranks do not cover the instance exactly once",
    # Sizes (rules/sizes.py)
    "role-sizes-differ": "Instances of one role have different parallel sizes",
    "tp-prefill-below-decode": "Prefill has a smaller tensor-parallel size than decode",
    "tp-not-divisible": "Prefill's tensor-parallel size is no multiple of decode's",
    "tp-hybrid-mamba-differs": "The hybrid connector needs equal tensor-parallel sizes with Mamba models",
    "decode-pp": "Decode has pipeline parallelism",
    "decode-pcp": "Layerwise decode has prefill context parallelism",
    "pp-with-pcp": "Pipeline and prefill context parallelism together",
    "pcp-with-dp": "Prefill context parallelism together with data parallelism",
    "dcp-differs": "Prefill and decode have different decode-context-parallel sizes",
    "dcp-not-in-tp": "The decode-context-parallel size does not divide the tensor-parallel size",
    "hybrid-context-parallel": "The hybrid connector knows no context parallelism",
    "dense-data-parallel": "Data parallelism for a dense model",
    # Ports (rules/ports.py)
    "port-range": "Ports beyond 65535",
    "port-conflict": "Two listeners of one host overlap",
    "kv-port-reserve": "kv_port lies where transports pick their ports",
    "kv-port-shared": "Prefill and decode on one host have the same kv_port",
    "listener-in-reserve": "A listener lies where transports pick their ports",
    # Image and versions (inventory.py, rules/cluster.py)
    "image-version": "The image's tag and the given version disagree",
    "image-hardware": "The image is for other hardware",
    "version-unknown": "A vLLM-Ascend version that the table does not have",
    # a5 hosts: fabric, Host RoCE, container rights (rules/fabric.py)
    "fabric-not-a5": "A setting for a5 hosts on other hardware",
    "fabric-protocol": "The resource configuration names another fabric",
    "hixl-version": "HIXL is too old for automatic endpoints",
    "resource-config": "A resource configuration that is not the JSON it must be",
    "roce-host-variable": "Host RoCE by the environment variable alone",
    "intra-roce-on-a5": "HCCL_INTRA_ROCE_ENABLE on a5",
    "comm-res-overwritten": "A communication resource that endpoint files overwrite",
    "roce-addresses-unused": "Host RoCE addresses without Host RoCE",
    "roce-address-chip": "A Host RoCE address of a chip that is not there",
    "roce-address-twice": "Two hosts have the same Host RoCE address",
    "roce-address-missing": "A chip without a Host RoCE address",
    "endpoint-folder": "Endpoint files that the engines do not find",
    "endpoint-file-number": "An engine would read the endpoint file of another chip",
    "container-not-privileged": "Containers on a5 without privileges",
    "mapped-chips-privileged": "Mapped chips of a privileged container",
    # D2RH (rules/d2rh.py)
    "d2rh-not-validated": "D2RH outside the configuration it was validated in",
    "d2rh-dp-mode": "D2RH with external data parallelism",
    "d2rh-host-memory": "Host memory that D2RH decode pins",
    "d2rh-capacity": "D2RH decode with another share of device memory",
    # Connector and transfer (connectors.py, rules/cluster.py, rules/engine_options.py)
    "connector-plain-mooncake": "MooncakeConnector without vLLM-Ascend's module is the CUDA connector",
    "kv-transfer-contradiction": "A kv-transfer setting contradicts the plan",
    "kv-release-timeout": "Prefill frees KV cache too soon",
    "engine-id-twice": "Two instances have the same engine_id",
    "layerwise-with-pool": "The layerwise connector beside a KV pool",
    "pool-not-started": "A KV pool whose master is not started by this collection",
    # KV pool (inventory.py, rules/pool.py)
    "pool-host": "The pool's master does not have exactly one host",
    "pool-nesting": "A setting that AscendStoreConnector does not read",
    "pool-lookup-port": "Two instances of one host have the same lookup_rpc_port",
    "pool-hash-seed": "Engines of one pool hash differently",
    "pool-prefix-caching": "Prefill without prefix caching beside a pool",
    "pool-lease-ttl": "The pool's lease ends before a transfer may",
    "pool-fabric-memory": "Less fabric memory than the pool pins",
    "pool-ssd": "SSD offload that cannot work",
    # Transfer priority and dead keys (rules/cluster.py, rules/engine_options.py)
    "qos-on-passive-side": "A transfer priority on the side that does not decide it",
    "qos-unsupported": "A transfer priority for a connector that has none",
    "qos-replaced": "A transfer priority that the connector writes over",
    "timeout-name": "A KV release limit under a name that nobody reads",
    "dead-key": "A kv-transfer key that nothing reads",
    # Proxy, launcher, container (rules/cluster.py)
    "container-network": "A container network other than host",
    "proxy-not-on-prefill": "The proxy runs on a host without prefill",
    "proxy-workers": "Workers for a proxy that has none",
    "upstream-launcher": "An instance that upstream's launcher cannot start",
    # Engine options and environment (command.py, rules/engine_options.py)
    "planned-argument": "An engine option that the plan sets",
    "planned-environment": "An environment variable that the plan sets per rank",
    "environment-overrides": "An environment variable and a variable of the inventory disagree",
    "json-option": "A JSON option that is not the JSON it takes",
    "text-option": "A truth value is given as text",
    "speculative-tokens": "Speculative tokens of prefill and decode do not fit together",
    "speculative-method": "Prefill and decode speculate by different methods",
    "hybrid-prefix-cache": "Prefix caching with a hybrid model",
    "hybrid-manager": "The hybrid connector without the hybrid KV cache manager",
    "block-size": "Block sizes of prefill and decode do not fit together",
    "cp-interleave": "The context-parallel interleave is not the block size",
    "recompute-on-prefill": "The recompute scheduler on prefill",
    "expert-parallel-back-to-back": "Experts spread over hosts without a switch",
    "unknown-option": "An engine option that vLLM does not have",
    "instance-name": "A name that containers and folders cannot have",
    "chips-mapped-twice": "One chip in two containers",
    "option-value": "A value that an engine option does not take",
    "api-keys-differ": "Engines without a common API key",
    "engine-id-differs": "An instance with two engine ids",
    "template": "A template that cannot be evaluated",
}

# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Every check by its id, in the order people read them.

The ids are a public interface: they are in report.json and are the anchors of docs/preflight.md. The function of a check
has its id for a name, with underscores. Those of HOST_CHECK are made on the host by the module host_check; only its
findings arrive here.
"""

from __future__ import annotations

from ..verdicts import Check

_FOUND = ("host", "findings")
_HCCN = ("npu", "hccn")
_HCCN_OF_ITS_KIND = ("npu", "hccn", "generation")

CHECKS: tuple[Check, ...] = (
    # The host as a whole
    Check("host-answers", "host", "The host was asked and answered", "主机有应答", ()),
    # Hardware: what npu-smi and the driver say
    Check("npu-smi", "hardware", "npu-smi works", "npu-smi 可用", ("npu",)),
    Check("generation", "hardware", "The chips are of the planned generation", "芯片代际与规划一致", ("npu",)),
    Check("chip-present", "hardware", "Every planned chip is there", "规划的芯片都存在", ("npu", "generation")),
    Check("chip-health", "hardware", "Every chip is healthy", "芯片健康状态正常", ("npu", "smi")),
    Check("chip-free", "hardware", "No foreign process is on a chip", "芯片上没有外部进程", ("npu", "smi")),
    Check("hbm-free", "hardware", "The chip's memory is free", "芯片显存空闲", ("npu", "smi")),
    Check("driver-equal", "hardware", "Driver and firmware are alike", "驱动与固件版本一致", ("npu",), across=True),
    Check(
        "firmware-fits", "hardware", "The firmware is one that the driver names", "固件在驱动声明的兼容范围内", ("npu",)
    ),
    # Fabric: what hccn_tool says
    Check("hccn-tool", "fabric", "hccn_tool works", "hccn_tool 可用", ("npu",)),
    Check("chip-answers", "fabric", "Every chip answers hccn_tool", "芯片对 hccn_tool 有应答", _HCCN_OF_ITS_KIND),
    Check(
        "hccn-conf",
        "fabric",
        "hccn.conf is there and equals the live addresses",
        "hccn.conf 存在且与实际地址一致",
        ("npu",),
    ),
    Check("chip-address", "fabric", "Every chip has an address", "每个芯片都有地址", _HCCN_OF_ITS_KIND),
    Check(
        "address-unique", "fabric", "No two chips have one address", "芯片地址不重复", _HCCN_OF_ITS_KIND, across=True
    ),
    Check("vnic-link", "fabric", "The chip's vNIC is up", "芯片 vNIC 为 UP", _HCCN_OF_ITS_KIND),
    Check(
        "super-pod",
        "fabric",
        "All chips are in one super pod",
        "所有芯片在同一超节点",
        ("npu", "generation"),
        across=True,
    ),
    Check(
        "server-index",
        "fabric",
        "Every host has its own server index",
        "主机的 Server Index 不重复",
        ("npu", "generation"),
        across=True,
    ),
    Check(
        "sdid-unique", "fabric", "No two chips have one SDID", "芯片 SDID 不重复", ("npu", "generation"), across=True
    ),
    Check("link", "fabric", "The chip's RoCE link is up", "芯片 RoCE 链路为 UP", _HCCN_OF_ITS_KIND),
    Check("net-health", "fabric", "The chip's network is healthy", "芯片网络健康", _HCCN_OF_ITS_KIND),
    Check("netdetect", "fabric", "A detection address is set", "已配置网络检测地址", _HCCN_OF_ITS_KIND),
    Check(
        "gateway",
        "fabric",
        "Chips in different subnets have a gateway",
        "跨网段芯片配置了网关",
        _HCCN_OF_ITS_KIND,
        across=True,
    ),
    Check("lldp", "fabric", "A switch is seen", "可见交换机邻居", _HCCN_OF_ITS_KIND, across=True),
    Check("tls-equal", "fabric", "TLS is alike on all chips", "所有芯片 TLS 开关一致", _HCCN, across=True),
    Check("tls-certificate", "fabric", "The TLS certificate is valid", "TLS 证书有效", _HCCN),
    Check("ping", "fabric", "Chips reach each other", "芯片互通", _HCCN_OF_ITS_KIND, across=True),
    Check("ping-plane", "fabric", "Pings pass the L1 plane check", "L1 平面检查通过", _HCCN_OF_ITS_KIND, across=True),
    Check(
        "ping-latency", "fabric", "No chip is far slower than the others", "时延无异常", _HCCN_OF_ITS_KIND, across=True
    ),
    # Host
    Check("nic", "host", "The network card is there and up", "网卡存在且为 UP", ("host",)),
    Check("node-ip", "host", "The node address is on the network card", "节点地址在指定网卡上", ("host",)),
    Check("mtu-equal", "host", "The MTU is alike", "MTU 一致", ("host",), across=True),
    Check("clock", "host", "The clocks agree", "时钟一致", ("host",), across=True),
    Check("memory", "host", "There is enough memory", "内存充足", ("host",)),
    Check("hugepages-equal", "host", "Huge pages are alike", "大页配置一致", ("host",), across=True),
    Check("disk", "host", "There is room on the disks", "磁盘空间充足", ("host",)),
    Check("kernel-equal", "host", "The kernel is alike", "内核版本一致", ("host",), across=True),
    Check("model-alike", "host", "The model's files are alike", "模型文件一致", ("host",), across=True),
    Check("chip", "host", "Device nodes of the chips are there and free", "芯片设备节点存在且未被占用", _FOUND),
    Check("device", "host", "The driver's device nodes are there", "驱动设备节点存在", _FOUND),
    Check("path", "host", "Files and folders are there", "文件与目录存在", _FOUND),
    Check("executable", "host", "Commands are there", "命令存在", _FOUND),
    Check("docker", "host", "The container engine answers", "容器引擎可用", _FOUND),
    Check("requests", "host", "Python has the library requests", "Python 已安装 requests 库", _FOUND),
    Check("container", "host", "No other container is in the way", "没有冲突的容器", _FOUND),
    Check(
        "runtime", "host", "What runs was started with the planned runtime", "运行中的单元与规划的运行时一致", _FOUND
    ),
    # Ports
    Check("port", "ports", "Planned ports are free", "规划端口空闲", _FOUND),
    Check("firewall", "ports", "Hosts reach each other's planned ports", "主机间规划端口互通", ("host",), across=True),
    Check("pool-master", "ports", "The KV pool's master takes connections", "KV 池 master 可连接", ("host",)),
    # Image
    Check("image", "image", "The image's archive is usable", "镜像归档可用", _FOUND),
    Check("space", "image", "The image fits on the disk", "磁盘可容纳镜像", _FOUND),
    Check("image-present", "image", "The image is there", "镜像已存在", ("host",)),
    Check("image-equal", "image", "The image is the same everywhere", "镜像一致", ("host",), across=True),
)

HOST_CHECK = frozenset(
    ("chip", "device", "path", "executable", "docker", "requests", "container", "runtime", "port", "image", "space")
)

BY_ID = {check.id: check for check in CHECKS}

# Here a host is held against the majority of the others; one that differs is the odd one out.
COMPARED = frozenset(
    (
        "driver-equal",
        "super-pod",
        "tls-equal",
        "mtu-equal",
        "clock",
        "hugepages-equal",
        "kernel-equal",
        "model-alike",
        "image-equal",
    )
)

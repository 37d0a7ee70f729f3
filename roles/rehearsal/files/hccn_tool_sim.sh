#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
#
# Stands in for hccn_tool on a simulated A2 or A3 host: the queries `hccn_tool -i N -WHAT -g` of a healthy network.
# The chips are the device nodes in $PD_REHEARSAL_ROOT/dev, their addresses come from $PD_REHEARSAL_ROOT/etc/hccn.conf.

fail() {
    echo "$2"
    exit "$1"
}

# The value of a key of hccn.conf, empty when it is not set.
conf() {
    [ -r "$PD_REHEARSAL_ROOT/etc/hccn.conf" ] || return 0
    while IFS='=' read -r key value; do
        [ "$key" != "$1" ] || echo "$value"
    done < "$PD_REHEARSAL_ROOT/etc/hccn.conf"
}

chip='' query=''
while [ $# -gt 0 ]; do
    case "$1" in
        -i)
            chip=$2
            shift
            ;;
        -g) query="$query-get" ;;
        -*) query="$query$1" ;;
        *) query="$query-argument" ;;
    esac
    shift
done
case "$chip" in
    '' | *[!0-9]*) fail 1 'Command execute failed!' ;;
esac
[ -e "$PD_REHEARSAL_ROOT/dev/davinci$chip" ] || fail 1 'The device is not exist!'

case "$query" in
    -link-get) echo 'link status: UP' ;;
    -net_health-get)
        status=Success
        [ -n "$(conf "netdetect_$chip")" ] || status=Init
        echo "net health status: $status"
        ;;
    -netdetect-get) echo "netdetect address: $(conf "netdetect_$chip")" ;;
    -gateway-get)
        gateway=$(conf "gateway_$chip")
        [ -n "$gateway" ] || fail 13 'Get gateway failed, because no gateway was preset there!'
        echo "default gateway:$gateway, Iface:eth$chip"
        ;;
    -ip-get)
        address=$(conf "address_$chip")
        [ -n "$address" ] || fail 13 'Get ipconf failed, because no ip was preset there!'
        printf 'ipaddr:%s\nnetmask:%s\n' "$address" "$(conf "netmask_$chip")"
        ;;
    -vnic-get)
        [ -e "$PD_REHEARSAL_ROOT/dev/davinci8" ] || fail 1 'The command is not supported on this product.'
        printf 'vnic link status: UP\nvnic ipaddr: 192.168.2.%s\nvnic netmask: 255.255.255.0\n' $((100 + chip))
        ;;
    -lldp-get) printf 'System Name TLV\n\tleaf-1\nPort ID TLV\n\tIfname: 400GE1/1/%s:1\n' $((chip + 1)) ;;
    -tls-get)
        echo "dev_id:$chip, tls switch[0](0:disable, 1:enable), tls preconfigured[1](0:non-preset, 1:preset)," \
            "tls alarm time threshold[60]days"
        echo 'No certificate found, please set certs firstly!'
        ;;
    *) fail 1 'Command execute failed!' ;;
esac

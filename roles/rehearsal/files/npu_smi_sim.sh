#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
#
# Stands in for npu-smi on a simulated host: `npu-smi info` and `npu-smi info -m` of idle, healthy chips.
# The chips are the device nodes in $PD_REHEARSAL_ROOT/dev; 16 slots (an id above 7) make it an A3 with two chips a card.

bar='+---------------------------+---------------+----------------------------------------------------+'
line='+===========================+===============+====================================================+'
rule='+------------------------------------------------------------------------------------------------+'
version=25.2.0

ids='' per_card=1
for id in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
    [ -e "$PD_REHEARSAL_ROOT/dev/davinci$id" ] || continue
    ids="$ids $id"
    [ "$id" -lt 8 ] || per_card=2
done
if [ -z "$ids" ]; then
    printf 'DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\ndcmi module initialize failed. ret is -8005\n'
    exit 1
fi
if [ "$per_card" = 1 ]; then name=910B4 full_name='Ascend 910B4'; else name=Ascend910 full_name=Ascend910; fi

info() {
    printf '%s\n' "$rule"
    printf '| npu-smi %-25sVersion: %-53s|\n%s\n' "$version" "$version" "$bar"
    echo '| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|'
    if [ "$per_card" = 1 ]; then
        echo '| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |'
    else
        echo '| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |'
    fi
    echo "$line"
    for id in $ids; do
        card=$((id / per_card)) chip=$((id % per_card)) power=90.0 physical=$id used='2843 / 32768'
        [ "$chip" = 0 ] || power=-
        if [ "$per_card" = 1 ]; then physical=''; else used='3433 / 65536'; fi
        printf '| %-6s%-20s| OK            | %-12s37                0    / 0             |\n' "$card" "$name" "$power"
        printf '| %-6s%-20s| 0000:%02X:00.0  | 0           0    / 0          %-21s|\n' \
            "$chip" "$physical" $((129 + 2 * id)) "$used"
        if [ "$per_card" = 2 ] && [ "$chip" = 0 ]; then echo "$rule"; else echo "$line"; fi
    done
    printf '%s\n| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |\n' "$bar"
    echo "$line"
    for id in $ids; do
        [ $((id % per_card)) = 0 ] || continue
        printf '| %-95s|\n%s\n' "No running processes found in NPU $((id / per_card))" "$line"
    done
}

mapping() {
    printf '\t%-30s %-30s %-30s %-30s %s\n' 'NPU ID' 'Chip ID' 'Chip Logic ID' 'Chip Phy-ID' 'Chip Name'
    logic=0
    for id in $ids; do
        card=$((id / per_card)) chip=$((id % per_card))
        printf '\t%-30s %-30s %-30s %-30s %s\n' "$card" "$chip" "$logic" "$id" "$full_name"
        logic=$((logic + 1))
        [ $((chip + 1)) != "$per_card" ] || printf '\t%-30s %-30s %-30s %-30s Mcu\n' "$card" "$per_card" - -
    done
}

case "$*" in
    info) info ;;
    'info -m') mapping ;;
    -v | --version) echo "npu-smi version: $version" ;;
    *)
        echo "npu-smi $*: this stand-in knows 'info' and 'info -m' only" >&2
        exit 1
        ;;
esac

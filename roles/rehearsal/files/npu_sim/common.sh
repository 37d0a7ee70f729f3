#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
#
# What the simulated hccn_tool and npu-smi share: the state of a host's chips, faults, the lock, the log of calls.
# Plain POSIX sh without external commands where it can be: preflight makes some hundred calls per host.
#
# State of a host, in $PD_REHEARSAL_ROOT/opt/pd_rehearsal/npu:
#   host       what the machine is: generation, chips, addresses, super pod (made with the host)
#   changed    what setters have changed, as the driver would keep it
#   faults     yours; see "Faults of NPUs and their network" in docs/rehearsal.md
#   calls.log  one line per call: START END EXIT TOOL ARGUMENTS, times in seconds since boot. They come from /proc/uptime,
#              which the shell reads by itself (10 ms steps); `date` would add two processes to every call. Two calls of
#              hccn_tool within one step still show, since the second one is busy.
#   fleet/     the other hosts' state by the first three bytes of their addresses
# host, changed and faults have one format, and the later file and line wins.
# Without that folder (inside an engine's container) the chips are the device nodes and the addresses those of hccn.conf.

npu_root=${PD_REHEARSAL_ROOT-}
npu_state=$npu_root/opt/pd_rehearsal/npu
npu_conf=$npu_root/etc/hccn.conf
npu_slots='0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15'
npu_call="$*"
npu_held=''
npu_start=0
[ ! -r /proc/uptime ] || read -r npu_start npu_end </proc/uptime

# Ends the call with this exit code, logs it and lets the next one in.
finish() {
    npu_end=0
    [ ! -r /proc/uptime ] || read -r npu_end npu_idle </proc/uptime
    note "$npu_end" "$1"
    [ -z "$npu_held" ] || : >"$npu_state/lock"
    exit "$1"
}

note() {
    [ ! -d "$npu_state" ] || printf '%s %s %s %s %s\n' "$npu_start" "$1" "$2" "$npu_tool" "$npu_call" \
        >>"$npu_state/calls.log"
}

# A fault nobody understands would make a test pass that tests nothing.
refuse() {
    printf '%s: simulator: %s\n' "$npu_tool" "$1" >&2
    finish 70
}

# load FILE PREFIX: sets <PREFIX><kind>_<chip> or <PREFIX><kind> for each line. Uses $kind, $chip and $value.
load() {
    [ -s "$1" ] || return 0
    while read -r kind chip value || [ -n "$kind" ]; do
        case $kind in
            '' | '#'*) continue ;;
            link | port | net_health | netdetect | gateway | address | netmask | vnic | vnic_link | tls | lldp | absent | \
                health | temperature | power | aicore | hbm | hbm_total | name | bus | sdid | ping | process | hang)
                ;;
            garbled | error | answer)
                npu_query=$chip chip=${value%% *}
                case $value in *' '*) value=${value#* } ;; *) value='' ;; esac
                case $npu_query in
                    '*') npu_query=any ;;
                    '' | *[!a-z_]*) refuse "$1: $kind: no query: $npu_query" ;;
                esac
                kind=${kind}_$npu_query
                ;;
            generation | chips | roce | vnic_net | roce_netmask | roce_gateway | superpod | superpod_size | \
                server_index | layout | spod_form | netdetect_form | delay_ms | busy)
                value=$chip${value:+ $value}
                [ -n "$value" ] || refuse "$1: $kind: no value"
                eval "$2$kind=\$value"
                continue
                ;;
            *) refuse "$1: no such fault: $kind" ;;
        esac
        case $chip in
            '*') npu_chips="$npu_slots all" ;;
            [0-9] | 1[0-5]) npu_chips=$chip ;;
            *) refuse "$1: $kind: no chip: $chip" ;;
        esac
        case $kind in
            ping)
                # ... to ADDRESS: only this one target.
                case $value in
                    *' to '*)
                        [ "${value##* to }" = "${npu_target-}" ] || continue
                        value=${value% to *}
                        ;;
                esac
                ;;
            port) kind=port_${value%% *} value=${value#* } ;;
        esac
        for chip in $npu_chips; do
            case $kind in
                process) eval "$2process_$chip=\"\${$2process_$chip-}\$value
\"" ;;
                *) eval "$2${kind}_$chip=\$value" ;;
            esac
        done
    done <"$1"
}

# get NAME DEFAULT: $value is that variable's, or the default.
get() {
    eval "value=\${$1-\$2}"
}

load_conf() {
    { [ -f "$npu_conf" ] && [ -r "$npu_conf" ]; } || return 0
    while IFS='=' read -r key value || [ -n "$key" ]; do
        case $key in
            '' | *[!a-z0-9_]*) ;;
            address_* | netmask_* | netdetect_* | gateway_*) eval "$key=\$value" ;;
        esac
    done <"$npu_conf"
}

load_state() {
    generation='' chips=16 roce='' vnic_net='' roce_netmask=255.255.0.0 roce_gateway=unset
    superpod=0 superpod_size=384 server_index=0 layout=25.2.0 spod_form=padded netdetect_form=address delay_ms=0 busy=0
    if [ -r "$npu_state/host" ]; then
        load "$npu_state/host" ''
        load "$npu_state/changed" ''
        load "$npu_state/faults" ''
    else
        for chip in 8 9 10 11 12 13 14 15; do
            [ ! -e "$npu_root/dev/davinci$chip" ] || generation=a3
        done
        load_conf
    fi
    generation=${generation:-a2}
    per_card=1
    [ "$generation" != a3 ] || per_card=2
}

# Whether the host has this chip, and this (simulated) container sees it.
present() {
    [ -e "$npu_root/dev/davinci$1" ] || return 1
    get "absent_$1" no
    [ "$value" = no ] || return 1
    case ,${PD_REHEARSAL_CHIPS-$1}, in *",$1,"*) ;; *) return 1 ;; esac
}

# For a moment, as the real tools do.
pause() {
    case $1 in *[!0-9]*) refuse "delay_ms: $1" ;; esac
    # Leading zeros would make the rest an octal number.
    npu_ms=$(($1 % 1000 + 1000))
    [ "$1" -eq 0 ] || sleep "$(($1 / 1000)).${npu_ms#1}"
}

# run QUERY CHIP: calls answer_QUERY, which prints and returns the exit code, and spoils what it says as ordered.
run() {
    get "hang_$2" no
    case $value in
        '' | "$1")
            note - hang
            # The shell becomes the sleeper, so that killing the call leaves nothing behind and frees the lock.
            exec sleep 3600
            ;;
    esac
    pause "$delay_ms"
    get "answer_any_$2" ''
    get "answer_$1_$2" "$value"
    if [ -n "$value" ]; then
        npu_file=${value%% *} npu_code=0
        case $value in *' '*) npu_code=${value##* } ;; esac
        case $npu_file$npu_code in */* | *..*) refuse "answer: a file beside faults is needed: $value" ;; esac
        cat "$npu_state/$npu_file" || refuse "answer: cannot read $npu_file"
        finish "$npu_code"
    fi
    get "error_any_$2" ''
    get "error_$1_$2" "$value"
    [ -z "$value" ] || { error "$value"; finish $?; }
    get "garbled_any_$2" no
    get "garbled_$1_$2" "$value"
    if [ "$value" = no ]; then
        "answer_$1"
        finish $?
    fi
    npu_how=${value:-cut}
    npu_text=$("answer_$1")
    npu_code=$?
    case $npu_how in
        cut) printf '%s' "$npu_text" | head -c $((${#npu_text} / 2)) ;;
        empty) ;;
        crlf) printf '%s\n' "$npu_text" | sed "s/\$/$(printf '\r')/" ;;
        digits) printf '%s\n' "$npu_text" | tr 0-9 '#' ;;
        noise) printf 'DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n%s\n' "$npu_text" ;;
        reversed) printf '%s\n' "$npu_text" | sed -n '1!G;h;$p' ;;
        *) refuse "garbled: $npu_how" ;;
    esac
    finish $npu_code
}

# The texts of the driver's error tables.
error() {
    case $1 in
        denied) echo 'permission denied: pls check this cmd run permission.' ;;
        conf) echo "The hccn.conf can't access, cmd execute failed! pls check the conf file or cmd run permission." ;;
        absent) echo 'The device is not exist!' ;;
        failed) echo 'Cmd execute failed!' ;;
        command) echo 'Command execute failed!' ;;
        device_health) echo 'Get device health status failed!' ;;
        vm) echo 'The VM does not support this command.' ;;
        control_link) echo 'Control link unreachable.' ;;
        space) echo 'The hccn.conf has no enough space to save user configurations.' ;;
        unsupported) echo 'The command is not supported on this product.' ;;
        occupied) echo 'The device is occupied. Please try again later.' ;;
        busy) echo 'hccn_tool is busy, please try again.' ;;
        8005)
            echo 'DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)'
            echo 'dcmi module initialize failed. ret is -8005'
            ;;
        8020)
            echo 'DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)'
            echo 'dcmi model initialized failed, because the device is used. ret is -8020'
            ;;
        *) refuse "error: $1" ;;
    esac
    return 1
}

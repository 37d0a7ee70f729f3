#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
#
# Build .venv and fetch upstream's proxies into it. Safe to run again at any time: each step is skipped when nothing it
# depends on has changed since it last succeeded.
#
#   tools/setup.sh          what planning, deploying and rehearsing need
#   tools/setup.sh --dev    and what the tests and linters need
#
# PYTHON=/path/to/python3 chooses the interpreter of a new .venv.
set -eu

cd "$(dirname "$0")/.."
venv=.venv
upstream_version=0.23.0.post1
fetch=roles/rehearsal/files/fetch_upstream.py
mooncake_version=0.3.11.post1
fetch_mooncake=roles/rehearsal/files/fetch_mooncake.py

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# done_before STEP TEXT: whether STEP last succeeded with this TEXT, the sum of all it depends on.
done_before() { [ -f "$venv/.pd-$1" ] && [ "$(cat "$venv/.pd-$1")" = "$2" ]; }
mark_done() { printf '%s\n' "$2" >"$venv/.pd-$1"; }

usable() { "$venv/bin/python" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# Scripts in a virtual environment carry its absolute path, so one that was moved or copied along is of no use.
here=$(pwd -P)
moved() { [ -f "$venv/.pd-home" ] && [ "$(cat "$venv/.pd-home")" != "$here" ]; }

if [ -e "$venv" ] && { moved || ! usable; }; then
    say "$venv was made elsewhere or its Python is gone; making it anew"
    rm -rf "$venv"
fi
if [ ! -e "$venv" ]; then
    python=$(sh tools/find-python.sh)
    say "making $venv with $python ($("$python" -c 'import platform; print(platform.python_version())'))"
    # A half-made environment must not look like one next time.
    "$python" -m venv "$venv" || { rm -rf "$venv"; fail "$python could not make a virtual environment"; }
fi
mark_done home "$here"

install() {
    step=$1
    shift
    sum=$(cat "$@" | cksum)
    if done_before "$step" "$sum"; then
        return
    fi
    file=$1
    say "installing $file (about a minute)"
    "$venv/bin/python" -m pip install --quiet --no-input --disable-pip-version-check -r "$file" ||
        fail "pip could not install $file. It needs a package index: PyPI, or the mirror in pip's configuration"
    mark_done "$step" "$sum"
    did=1
}

did=
install requirements requirements.txt
if [ "${1:-}" = --dev ]; then
    install requirements-dev requirements-dev.txt requirements.txt
fi

upstream="$venv/share/pd_serving/upstream/$upstream_version"
sum=$(cksum <"$fetch")
if ! { [ -d "$upstream" ] && done_before upstream "$sum"; }; then
    say "fetching upstream's proxies (vllm-ascend $upstream_version)"
    "$venv/bin/python" "$fetch" --version "$upstream_version" "$here/$upstream" ||
        fail "all but the rehearsal is ready: the source distribution of vllm-ascend could not be fetched (see above)"
    mark_done upstream "$sum"
    did=1
fi

# Without it everything but inventories with a KV pool can be rehearsed, so its absence stops nothing.
mooncake="$venv/share/pd_serving/mooncake/$mooncake_version"
sum=$(cksum <"$fetch_mooncake")
if ! { [ -d "$mooncake" ] && done_before mooncake "$sum"; }; then
    say "fetching Mooncake's master (mooncake-transfer-engine-npu $mooncake_version)"
    if "$venv/bin/python" "$fetch_mooncake" "$here/$mooncake"; then
        mark_done mooncake "$sum"
    else
        say "no KV pool can be rehearsed here (see above); all else can"
    fi
    did=1
fi

if [ -n "$did" ]; then
    say "ready. Next: make demo"
else
    say "up to date"
fi

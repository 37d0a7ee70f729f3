#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
#
# Print the absolute path of a Python that can build the project's virtual environment, or say on stderr what is
# missing and exit 1. PYTHON=/some/python (or a name on PATH) in the environment is asked first and alone.
#
# What is printed is the interpreter itself, not the name it was found under: a version manager's shim may point to a
# version that is not installed, changes meaning with the working folder, and costs 170 ms at every start.
set -eu

# Exit codes: 0 fit (path on stdout), 3 too old (version on stdout), 4 no venv or pip module (version on stdout).
# Syntax for every Python 3, since the candidates may be old.
probe='
import sys
version = "%d.%d" % sys.version_info[:2]
if sys.version_info < (3, 11):
    print(version)
    sys.exit(3)
try:
    import ensurepip, venv
except ImportError:
    print(version)
    sys.exit(4)
print(getattr(sys, "_base_executable", None) or sys.executable)
'

if [ -n "${PYTHON:-}" ]; then
    set -- "$PYTHON"
else
    set -- python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3 /usr/local/bin/python3
fi

too_old=
without_venv=
for candidate; do
    status=0
    answer=$("$candidate" -I -c "$probe" 2>/dev/null) || status=$?
    case $status in
        0) printf '%s\n' "$answer"; exit 0 ;;
        3) too_old="$too_old${too_old:+, }$candidate is $answer" ;;
        4) without_venv=${without_venv:-$answer} ;;
    esac
done

if [ -z "$without_venv" ]; then
    echo "setup: Python 3.11 or newer is needed (${too_old:-none was found: $*})." \
        "Install one, or name it: make setup PYTHON=/path/to/python3" >&2
elif command -v apt-get >/dev/null 2>&1; then
    echo "setup: Python $without_venv is here without its venv module. Run: apt-get install python$without_venv-venv" >&2
else
    echo "setup: Python $without_venv is here without its modules venv and ensurepip. Install them." >&2
fi
exit 1

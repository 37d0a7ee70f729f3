#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
#
# Run ansible-test on this checkout: tools/ansible-test.sh sanity --python 3.11
#
# ansible-test insists on a working folder whose real path ends in ansible_collections/NAMESPACE/NAME, so the files are
# copied there, without the link that makes the checkout such a folder for everything else. Not part of CI: `sanity`
# sets up environments of its own for minutes and fetches pip for them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PATH=$PWD/.venv/bin:$PATH
namespace=$(awk '$1 == "namespace:" { print $2 }' galaxy.yml)
name=$(awk '$1 == "name:" { print $2 }' galaxy.yml)

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
copy=$scratch/ansible_collections/$namespace/$name
mkdir -p "$copy"
git ls-files -z --cached --others --exclude-standard -- ':!:.ansible' |
    tar --create --null --files-from - --ignore-failed-read | tar --extract --directory "$copy"

# ansible.cfg points to the link that was left behind.
unset ANSIBLE_CONFIG
rm -f "$copy/ansible.cfg"
cd "$copy"
ansible-test "$@"

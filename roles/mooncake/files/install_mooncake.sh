#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
#
# Installs Mooncake where it runs: in a container of the engine image, or on a host without a container engine. The
# module mooncake gives everything by environment:
#
#   PD_METHOD      wheel or source
#   PD_VERSION     0.3.9: a tag v0.3.9 of the repository, or a version of the wheel
#   PD_PREFIX      folder that gets all; empty for the system's own folders
#   PD_WORK        folder to build in
#   PD_WHEEL       a wheel file, or empty for the package index
#   PD_ARCHIVE     tarball of the source with its submodules, or empty for a clone of PD_REPOSITORY
#   PD_GO_MIRROR   replaces https://go.dev/dl/ in dependencies.sh; empty to leave it
#   PD_INSTALL_GO  1 to let dependencies.sh install Go
#   PD_JOBS        parallel compilations
#   PD_CMAKE       more words for cmake
set -euo pipefail

INSTALLER=/vllm-workspace/vllm-ascend/tools/mooncake_installer.sh

step() { printf '== %s\n' "$*"; }
die() { printf 'install_mooncake: %s\n' "$*" >&2; exit 1; }

install_wheel() {
    local what=${PD_WHEEL:-mooncake-transfer-engine-npu==$PD_VERSION}
    step "wheel $what"
    if [ -n "$PD_PREFIX" ]; then
        rm -rf "$PD_PREFIX/site-packages"
        python3 -m pip install --no-input --disable-pip-version-check --no-deps --target "$PD_PREFIX/site-packages" "$what"
    else
        # Two distributions have the same files under different names.
        python3 -m pip uninstall --yes mooncake-transfer-engine mooncake-transfer-engine-npu >/dev/null 2>&1 || true
        python3 -m pip install --no-input --disable-pip-version-check --no-deps --force-reinstall "$what"
    fi
}

install_mpi() {
    step "mpich"
    # OpenMPI beside it is found first by the build.
    if command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update
        apt-get remove -y openmpi-bin libopenmpi-dev || true
        apt-get install -y mpich libmpich-dev
    elif command -v dnf >/dev/null; then
        dnf remove -y openmpi openmpi-devel || true
        dnf install -y mpich mpich-devel
    elif command -v yum >/dev/null; then
        yum remove -y openmpi openmpi-devel || true
        yum install -y mpich mpich-devel
    else
        die "there is neither apt-get nor dnf nor yum to install mpich with"
    fi
    # openEuler keeps MPI out of the way until it is asked for.
    [ ! -d /usr/lib64/mpich/bin ] || PATH=/usr/lib64/mpich/bin:$PATH
}

get_source() {
    step "source v$PD_VERSION"
    rm -rf "$PD_WORK/Mooncake"
    mkdir -p "$PD_WORK/Mooncake"
    if [ -n "$PD_ARCHIVE" ]; then
        # The archive's one top folder may have any name.
        tar -xf "$PD_ARCHIVE" -C "$PD_WORK/Mooncake" --strip-components=1 --no-same-owner
    else
        git clone --branch "v$PD_VERSION" --depth 1 --recurse-submodules --shallow-submodules \
            "$PD_REPOSITORY" "$PD_WORK/Mooncake"
    fi
    [ -f "$PD_WORK/Mooncake/dependencies.sh" ] || die "the source has no dependencies.sh in its top folder"
}

install_dependencies() {
    local script=dependencies.sh path=$PATH
    if ! command -v apt-get >/dev/null && ! grep -Eq '\b(yum|dnf)\b' dependencies.sh; then
        # Older releases know apt only; vLLM-Ascend's own installer knows both.
        [ -f "$INSTALLER" ] || die "dependencies.sh of v$PD_VERSION knows apt-get only, and this image has no $INSTALLER"
        script=$INSTALLER
    fi
    if [ -n "$PD_GO_MIRROR" ]; then
        sed -i "s|https://go.dev/dl/|$PD_GO_MIRROR|g" dependencies.sh
    fi
    if [ "$PD_INSTALL_GO" != 1 ]; then
        # The script installs Go unless the version it wants answers. Nothing that is built here needs it.
        local wanted
        wanted=$(sed -n 's/^GOVER=\([0-9.]*\).*/\1/p' dependencies.sh | head -n 1)
        mkdir -p "$PD_WORK/no-go"
        printf '#!/bin/sh\necho "go version go%s none"\n' "${wanted:-0}" >"$PD_WORK/no-go/go"
        chmod 0755 "$PD_WORK/no-go/go"
        path=$PD_WORK/no-go:$PATH
    fi
    step "$script -y"
    PATH=$path bash "$script" -y
}

install_source() {
    install_mpi
    get_source
    cd "$PD_WORK/Mooncake"
    install_dependencies
    mkdir -p build
    cd build
    step "cmake -DUSE_ASCEND_DIRECT=ON"
    # shellcheck disable=SC2086 # words on purpose
    cmake .. -DUSE_ASCEND_DIRECT=ON $PD_CMAKE
    step "make -j$PD_JOBS"
    make -j"$PD_JOBS"
    step "make install"
    if [ -n "$PD_PREFIX" ]; then
        rm -rf "$PD_PREFIX/usr" "$PD_PREFIX/site-packages" "$PD_PREFIX/lib"
        make install DESTDIR="$PD_PREFIX"
        gather
    else
        make install
        ldconfig 2>/dev/null || true
    fi
    cd /
    rm -rf "$PD_WORK/Mooncake"
}

# Under the prefix one place each for the Python package and the libraries, wherever this Python wanted them.
gather() {
    local package
    package=$(find "$PD_PREFIX" -type d -name mooncake -path '*-packages/mooncake' | head -n 1)
    [ -n "$package" ] || die "make install put no Python package mooncake below $PD_PREFIX"
    package=$(dirname "$package")
    ln -sfn ".${package#"$PD_PREFIX"}" "$PD_PREFIX/site-packages"
    [ ! -d "$PD_PREFIX/usr/local/lib" ] || ln -sfn ./usr/local/lib "$PD_PREFIX/lib"
}

mkdir -p "$PD_WORK"
[ -z "$PD_PREFIX" ] || mkdir -p "$PD_PREFIX"
case $PD_METHOD in
    wheel) install_wheel ;;
    source) install_source ;;
    *) die "PD_METHOD must be wheel or source, not $PD_METHOD" ;;
esac
step "done"

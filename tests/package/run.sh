#!/usr/bin/env bash
# Installs the build tree to an empty prefix, moves that, and builds and runs consumers by find_package (C++ and C) and by
# pkg-config.
#
#   run.sh BUILD_DIR CMAKE GENERATOR CC CXX
set -euo pipefail

build=$1 cmake=$2 generator=$3 cc=$4 cxx=$5
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log"
prefix=$work/moved
mv "$work/first" "$prefix"

echo "== find_package"
"$cmake" -S "$here/consumer" -B "$work/build" -G "$generator" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE=Debug >"$work/configure.log"
"$cmake" --build "$work/build"
"$work/build/consumer"
"$work/build/consumer_c"

echo "== pkg-config"
pc=$(find "$prefix" -name attune.pc)
flags=$(PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --cflags --libs attune)
libdir=$(PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --variable=libdir attune)
# shellcheck disable=SC2086  # the flags are several words
"$cxx" -std=c++20 "$here/consumer/consumer.cpp" -o "$work/by_pkg_config" $flags "-Wl,-rpath,$libdir"
"$work/by_pkg_config"

echo "== programs"
"$prefix/bin/attune" --version
for op in forward backward; do test -f "$prefix/share/attune/bench/${op}_grid.py"; done
test -x "$prefix/share/attune/bench/build_fa3.sh"
test -f "$prefix/share/attune/bench/fa3_forward.cu"
test -x "$prefix/libexec/attune/attune-worker"

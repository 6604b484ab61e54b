#!/usr/bin/env bash
# Builds FlashAttention-3's forward kernels (bf16, head dims 64, 128, 256) as a shared library for forward_grid.py --fa3.
#   build_fa3.sh FLASH_ATTENTION CUTLASS OUT.so [JOBS]
# FLASH_ATTENTION: a checkout of Dao-AILab/flash-attention; CUTLASS: the checkout that it pins (csrc/cutlass). Needs nvcc
# of CUDA 12.8 or newer and about 6 GB of memory a job; some minutes a head dim. Compiler flags as in FlashAttention's
# setup.py, without line tables; what the grid never uses (variable lengths, paging, fp8, ...) is left out by its switches.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
fa=$1/hopper cutlass=$2/include out=$3 jobs=${4:-1}
here=$(cd "$(dirname "$0")" && pwd)
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
refuse() { echo "build_fa3.sh: $*" >&2; exit 2; }
[ -f "$fa/flash_fwd_launch_template.h" ] || refuse "FLASH_ATTENTION: '$1' (allowed: a checkout with hopper/flash_fwd_launch_template.h)"
[ -f "$cutlass/cutlass/cutlass.h" ] || refuse "CUTLASS: '$2' (allowed: a checkout with include/cutlass/cutlass.h; git submodule update --init makes one)"
[ -d "$(dirname "$out")" ] || refuse "OUT.so: '$out' (allowed: in a folder that exists)"
[[ $jobs =~ ^[1-9][0-9]*$ ]] || refuse "JOBS: '$jobs' (allowed: a number from 1)"
[ -x "$nvcc" ] || refuse "nvcc: neither in PATH nor in /usr/local/cuda/bin"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags=(-O3 -std=c++17 --use_fast_math -DNDEBUG -DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED -DCUTLASS_ENABLE_GDC_FOR_SM90
  -DCUTLASS_DEBUG_TRACE_LEVEL=0 --expt-relaxed-constexpr --expt-extended-lambda -gencode "arch=compute_90a,code=sm_90a"
  -Xcompiler -fPIC -Xcompiler -fvisibility=default -w)
for part in BACKWARD SPLIT PAGEDKV APPENDKV LOCAL SOFTCAP PACKGQA FP8 VARLEN SM8x; do
  flags+=("-DFLASHATTENTION_DISABLE_$part")
done
# 255 has xargs start nothing more.
printf '%s\n' 64 128 256 | xargs -P "$jobs" -I{} bash -c '"$@" || exit 255' nvcc \
  "$nvcc" "${flags[@]}" -I"$fa" -I"$cutlass" -DFA3_HEAD_DIM={} -c "$here/fa3_forward.cu" -o "$work/{}.o"
"$nvcc" -shared -cudart static -o "$out" "$work"/*.o

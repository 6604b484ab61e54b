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
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags=(-O3 -std=c++17 --use_fast_math -DNDEBUG -DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED -DCUTLASS_ENABLE_GDC_FOR_SM90
  -DCUTLASS_DEBUG_TRACE_LEVEL=0 --expt-relaxed-constexpr --expt-extended-lambda -gencode arch=compute_90a,code=sm_90a
  -Xcompiler -fPIC,-fvisibility=default -w)
for part in BACKWARD SPLIT PAGEDKV APPENDKV LOCAL SOFTCAP PACKGQA FP8 VARLEN SM8x; do
  flags+=("-DFLASHATTENTION_DISABLE_$part")
done
printf '%s\n' 64 128 256 | xargs -P "$jobs" -I{} \
  "$nvcc" "${flags[@]}" -I"$fa" -I"$cutlass" -DFA3_HEAD_DIM={} -c "$here/fa3_forward.cu" -o "$work/{}.o"
"$nvcc" -shared -cudart static -o "$out" "$work"/*.o

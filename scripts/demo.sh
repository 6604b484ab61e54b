#!/usr/bin/env bash
# The main job from end to end, as far as this machine can do it. Usage: demo.sh ATTUNE
set -euo pipefail

attune=$(realpath "$1")
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export ATTUNE_CACHE_DIR=$folder/cache
model=tests/data/models/llama-3.1-8b.json
lengths=1024,4096,16384

say() { printf '\n== %s\n' "$*"; }

# Prints a command as its user would type it, then runs it.
step() {
  local words=() word
  for word in "$@"; do words+=("${word//"$folder"/\$demo}"); done
  printf '\n$ attune %s\n' "${words[*]}"
  "$attune" "$@"
}

# What needs nothing but NVRTC: from a problem to a pack that could be shipped.
without_gpu() {
  local kernel=$folder/kernel
  say 'A kernel as CUDA source, for Llama 3.1 8B attention on Hopper (the first lines of it)'
  step emit --arch sm_90a --heads 32 --heads-kv 8 --causal -o "$kernel.cu" 2>&1
  head -n 3 "$kernel.cu" | cut -c 1-160
  printf '...\n'
  sed -n '/^extern "C" __global__/,$p' "$kernel.cu" | head -n 12

  if ! "$attune" doctor --for compile >/dev/null 2>&1; then
    say 'What this machine could not show'
    printf '%s\n' 'There is no NVRTC here, so nothing can be compiled: attune doctor says how to get one.'
    return
  fi

  say 'Its cubin, and what stands in it'
  step compile --arch sm_90a --heads 32 --heads-kv 8 --causal -o "$kernel.cubin"
  step inspect "$kernel.cubin"

  say 'Candidates, compiled and ranked by the cost model'
  step tune --no-gpu --model "$model" --seqlens 4096 --max-candidates 3
  step cache stats

  say 'A pack of the best guesses, for machines with no compiler'
  step pack create --model "$model" --seqlens 1024,4096 --config default -o "$folder/llama.pack"
  step pack verify "$folder/llama.pack"
  step inspect "$folder/llama.pack"

  if "$attune" doctor --for emulate >/dev/null 2>&1; then
    say 'Attention, computed on the CPU emulator and compared with a float64 reference: the kernel of the pack for 4096 tokens'
    step verify --device cpu --pack "$folder/llama.pack" --seqlen 4096
    say 'The best guess at full size: one key head of Llama 3.1 8B and its four query heads, 512 tokens'
    step verify --device cpu --causal --heads 4 --heads-kv 1 --batch 1 --seqlen 512
  fi

  say 'What this machine could not show'
  printf '%s\n' \
    'There is no usable GPU here. With one, this script races the candidates (attune tune), compares the winners with a' \
    'float64 reference (attune verify), exports them, and launches them from the pack in a process without a compiler' \
    '(attune bench --no-compiler).'
}

with_gpu() {
  say 'Tuning Llama 3.1 8B attention for this GPU'
  # Status 5: the time ran out before the last problem was raced to the end. What was found so far serves.
  step tune --model "$model" --seqlens "$lengths" --budget "${ATTUNE_DEMO_BUDGET:-3m}" || [[ $? == 5 ]]
  step explain --seqlen 4096

  say 'The winners against the float64 reference'
  step verify --model "$model" --seqlens "$lengths"

  say 'A pack of the winners'
  step pack create --all -o "$folder/llama.pack"
  step pack verify "$folder/llama.pack"

  say 'Launched from the pack, in a process that has neither a compiler nor a cache'
  ATTUNE_NVRTC=/nonexistent step bench --pack "$folder/llama.pack" --allow-unsigned --no-compiler --no-cache \
    --model "$model" --seqlens "$lengths" --regime burst
}

say 'What this machine has'
step doctor
if "$attune" doctor --for tune >/dev/null 2>&1; then
  with_gpu
else
  without_gpu
fi

// Problems for backward plans, on the GPU and, with smaller ones, on the CPU device.
#pragma once

#include <string>
#include <vector>

#include <attune/problem.h>

namespace attune::tests {

struct BackwardCase {
  std::string problem;  ///< canonical text without op=backward
  std::string config;   ///< empty: the best guess
  bool gaps = false;    ///< rows, heads and batches lie further apart than they need, differently for each tensor
  bool d_lse = false;   ///< the loss depends on LSE too

  Problem parsed() const { return parse_problem("op=backward," + problem); }
};

/// Few elements, so that the emulator needs seconds for all of them: each kind of head dim, both dtypes, masks, ragged
/// lengths, grouped heads, rows and keys that see nothing, strides, dLSE, both splits.
inline std::vector<BackwardCase> small_backward_cases() {
  return {
      {"head_dim=64,heads=2,batch=1,seqlen_q=130,seqlen_k=150", ""},
      {"head_dim=64,heads=4,heads_kv=2,batch=2,causal=1,seqlen_q=100,dtype=fp16", "", true, true},
      {"head_dim=128,heads=2,heads_kv=1,batch=1,causal=1,seqlen_q=96,seqlen_k=190", ""},
      {"head_dim=128,heads=1,batch=2,causal=1,seqlen_q=190,seqlen_k=96,layout=bhsd", "", true},
      {"head_dim=128,head_dim_v=64,heads=2,batch=1,seqlen_q=70,seqlen_k=128,deterministic=1", "", false, true},
      {"head_dim=256,heads=1,batch=1,causal=1,seqlen_q=100", ""},
      {"head_dim=40,head_dim_v=72,heads=3,heads_kv=1,batch=1,seqlen_q=65,seqlen_k=33,dtype=fp16", "", true},
      {"head_dim=96,heads=1,batch=1,causal=1,seqlen_q=77,deterministic=1", ""},
      {"head_dim=64,heads=2,batch=1,seqlen_q=1,seqlen_k=200", ""},
      {"head_dim=64,heads=2,batch=1,seqlen_q=200,seqlen_k=1", ""},
      {"head_dim=64,heads=2,heads_kv=1,batch=2,seqlen_q=33,seqlen_k=0", "", true},
      {"head_dim=64,heads=2,heads_kv=1,batch=2,seqlen_q=0,seqlen_k=33", "", true},
      {"head_dim=128,heads=1,batch=1,seqlen_q=80,seqlen_k=100", "split=columns"},
      {"head_dim=128,heads=2,heads_kv=1,batch=1,causal=1,seqlen_q=190,seqlen_k=96", "split=products,dq=pass", true},
      {"head_dim=192,head_dim_v=128,heads=1,batch=2,seqlen_q=150,seqlen_k=70,deterministic=1", "split=products,dq=pass",
       false, true},
      // The kernel finishes dQ itself: more pairs than slots, grouped heads, rows and whole tiles that see no key,
      // strides.
      {"head_dim=64,heads=4,heads_kv=2,batch=3,seqlen_q=140,seqlen_k=150",
       "block_m=128,lag=1,ping_pong=1,late_fences=1,persistent=1,finish=ring,registers=224,workers=2", true},
      {"head_dim=128,heads=4,heads_kv=2,batch=2,causal=1,seqlen_q=200,seqlen_k=70,dtype=fp16",
       "lag=1,ping_pong=1,late_fences=1,prefetch=1,persistent=1,finish=ring,registers=224,workers=1", true, true},
      // Tiles that one warpgroup does not see: the first of each head, and all of them.
      {"head_dim=128,heads=4,heads_kv=2,batch=1,causal=1,seqlen_q=200",
       "lag=1,ping_pong=1,late_fences=1,skip=1,registers=240", true},
      {"head_dim=64,heads=2,batch=1,causal=1,seqlen_q=150,seqlen_k=180", "persistent=1,skip=1,registers=224"},
      // Who comes first stores what the others add to; rows that see no key; the last tiles first.
      {"head_dim=128,heads=4,heads_kv=2,batch=1,causal=1,seqlen_q=230,seqlen_k=140", "sums=stored", true},
      {"head_dim=64,heads=3,batch=2,causal=1,seqlen_q=330,seqlen_k=150,deterministic=1",
       "block_m=128,lag=1,ping_pong=1,visits=descending,sums=stored,persistent=1,finish=ring,registers=224,workers=3",
       true, true},
      {"head_dim=64,heads=6,heads_kv=2,batch=1,causal=1,seqlen_q=230,seqlen_k=300,deterministic=1",
       "lag=1,ping_pong=1,late_fences=1,visits=descending,sums=stored", true},
      // Blocks of keys without a gap between them.
      {"head_dim=128,heads=4,heads_kv=2,batch=2,causal=1,seqlen_q=200,seqlen_k=170,dtype=fp16",
       "lag=1,ping_pong=1,late_fences=1,prefetch=1,skip=1,dkv=direct,k_stages=2,boundary=overlapped,persistent=1,"
       "registers=224,workers=2",
       true, true},
      {"head_dim=64,heads=4,batch=1,seqlen_q=150,seqlen_k=300",
       "block_m=128,lag=1,ping_pong=1,late_fences=1,dkv=direct,k_stages=2,boundary=overlapped,persistent=1,"
       "registers=224,workers=1",
       true},
      // Blocks of keys for shares of a KV head's query heads.
      {"head_dim=128,heads=4,heads_kv=1,batch=2,causal=1,seqlen_q=100,seqlen_k=150,dtype=fp16",
       "lag=1,ping_pong=1,late_fences=1,dkv=parts,parts=2", true, true},
      {"head_dim=64,head_dim_v=40,heads=6,heads_kv=2,batch=1,causal=1,seqlen_q=140,seqlen_k=130",
       "lag=1,ping_pong=1,late_fences=1,dkv=parts,k_stages=2,boundary=overlapped,persistent=1,registers=224,workers=3",
       true},
      {"head_dim=64,heads=2,heads_kv=1,batch=2,seqlen_q=0,seqlen_k=33", "dkv=parts", true},
      {"head_dim=64,heads=2,heads_kv=1,batch=2,seqlen_q=33,seqlen_k=0", "persistent=1,finish=ring,registers=224", true},
      {"head_dim=64,heads=2,heads_kv=1,batch=2,seqlen_q=0,seqlen_k=33", "persistent=1,finish=ring,registers=224", true},
  };
}

}  // namespace attune::tests

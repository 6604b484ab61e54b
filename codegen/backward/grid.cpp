// How a backward launch divides its work.
#include <algorithm>
#include <limits>
#include <string>

#include "base/error.h"
#include "codegen/backward/layout.h"
#include "codegen/backward/params.h"

namespace attune::codegen {
namespace {

constexpr std::int64_t divided_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Enough slots that nobody waits for one while every thread block is busy: those of all sections that have blocks of
// keys under way, and some for tiles that are complete but not finished. A pair's slot was that of a pair of an earlier
// section.
std::int64_t ring_slots(const Problem& p, std::int64_t tiles_n, std::int64_t section, std::int64_t workers) {
  // The longest causal block lasts twice as long as the mean: so many more start beside it.
  const std::int64_t under_way = p.causal ? 2 * workers : workers;
  const std::int64_t sections = divided_up(under_way, section * tiles_n) + 1;
  return section * sections + divided_up(under_way, 4 * tiles_n);
}

// Shares of a KV head's query heads. The fewest that give every worker two blocks of keys: a device is as busy as its
// last one, and each share costs a float32 dK and dV.
int parts_of(const KernelSpec& spec, int asked, const Problem& p, std::int64_t blocks, std::int64_t workers) {
  const int group = p.heads / p.heads_kv;
  const auto divides = [&](int parts) { return group % parts == 0; };
  if (spec.config.backward.dkv != backward::DkvPath::parts) {
    if (asked > 1) fail(ErrorCode::invalid_argument, "config parts: {} without dkv = parts (allowed: 0, 1)", asked);
    return 1;
  }
  if (asked > 0 && !divides(asked)) {
    std::string allowed = "0";
    for (int parts = 1; parts <= group; parts++)
      if (divides(parts)) allowed += ", " + std::to_string(parts);
    fail(ErrorCode::invalid_argument, "config parts: {} with {} query heads of each KV head (allowed: {})", asked,
         group, allowed);
  }
  if (p.seqlen_q == 0) return 1;  // the main kernel stores zeros
  if (asked > 0) return asked;
  int parts = 1;
  while (parts < group && (!divides(parts) || blocks * parts < 2 * workers)) parts++;
  return parts;
}

}  // namespace

BackwardGrid backward_grid(const KernelSpec& spec, const backward::Tunables& launch_part, const Problem& p, int sms) {
  const backward::Tunables& t = spec.config.backward;
  const bool ring = t.finish == backward::Finish::ring;
  const std::int64_t tiles_n = divided_up(p.seqlen_k, t.block_n()), key_blocks = tiles_n * p.heads_kv * p.batch;
  const std::int64_t workers = launch_part.workers > 0 ? launch_part.workers : sms;
  // A ring is the smaller, the fewer pairs are under way. Causal blocks of a pair that take turns and begin together
  // wait for each other, so few of each should.
  const std::int64_t usual = ring ? 1
                             : p.causal && backward::takes_turns(spec)
                                 ? std::max<std::int64_t>(workers / 3, default_section(p))
                                 : default_section(p);
  const std::int64_t section = launch_part.section > 0 ? launch_part.section : usual;
  BackwardGrid grid;
  grid.parts = parts_of(spec, launch_part.parts, p, key_blocks, workers);
  const std::int64_t pairs = p.heads_kv * p.batch * grid.parts;
  grid.section = static_cast<int>(std::max<std::int64_t>(std::min(section * grid.parts, pairs), 1));
  grid.blocks = tiles_n * pairs;
  if (t.persistent && p.seqlen_q > 0) grid.blocks = std::min(grid.blocks, workers);
  // Those of queries that compute dQ come behind those of keys.
  if (const int rows = launch_shape(spec).dq_rows; rows > 0)
    grid.blocks += divided_up(p.seqlen_q, rows) * p.heads * p.batch;
  std::int64_t slots = pairs;
  if (ring) slots = tiles_n == 0 ? 0 : std::min(slots, ring_slots(p, tiles_n, grid.section, workers));
  grid.slots = static_cast<int>(slots);
  const std::int64_t tiles = divided_up(p.seqlen_q, t.block_m) * p.heads * p.batch;
  grid.finishing = tiles;
  if (t.dkv == backward::DkvPath::parts && tiles > 0) grid.finishing += kFinishers * key_blocks;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (t.dkv == backward::DkvPath::parts && std::max(tiles_n * pairs, grid.finishing) > kMost)
    fail(ErrorCode::invalid_argument, "config parts: {} of {} blocks of keys (allowed: up to {} in all)", grid.parts,
         key_blocks, kMost);
  grid.prepared = static_cast<int>(tiles);
  if (t.prepare == backward::Prepare::inside && tiles_n > 0) {
    // What the first blocks of keys need at once comes before, with the whole chip's bandwidth.
    grid.prepared = static_cast<int>(std::min(tiles, divided_up(workers * t.block_n(), t.block_m)));
    grid.ahead = static_cast<int>(workers);
  }
  return grid;
}

BackwardParams backward_params(const KernelSpec& spec, const Problem& p, const BackwardGrid& grid) {
  const LaunchShape shape = launch_shape(spec);
  BackwardParams params;
  params.seqlen_q = static_cast<std::int32_t>(p.seqlen_q);
  params.seqlen_k = static_cast<std::int32_t>(p.seqlen_k);
  params.heads = p.heads;
  params.heads_kv = p.heads_kv * grid.parts;
  params.group = p.heads / params.heads_kv;
  params.tiles_m = static_cast<std::int32_t>(divided_up(p.seqlen_q, shape.block_m));
  params.tiles_n = static_cast<std::int32_t>(divided_up(p.seqlen_k, shape.block_n));
  params.pairs = static_cast<std::int32_t>(params.heads_kv * p.batch);
  params.section = grid.section;
  params.slots = grid.slots;
  params.tiles_of_pair = params.tiles_m * params.group;
  params.prepared = grid.prepared;
  params.ahead = grid.ahead;
  params.parts = grid.parts;
  return params;
}

}  // namespace attune::codegen

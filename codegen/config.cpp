#include "codegen/config.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/error.h"
#include "base/fields.h"
#include "codegen/names.h"

namespace attune::codegen {
namespace {

// Names in the order of the enumerators.
constexpr std::array<const char*, 4> kFamilies{"sm90", "reference", "sm90_backward", "reference_backward"};
constexpr std::array<const char*, 3> kSoftmaxes{"exact", "first_max", "zero"};
constexpr std::array<const char*, 3> kOrders{"qk_pv", "pv_qk", "serial"};
constexpr std::array<const char*, 2> kQSources{"shared", "registers"};
constexpr std::array<const char*, 3> kOBuffers{"own", "over_q", "direct"};
constexpr std::array<const char*, 2> kBoundaries{"overlapped", "drained"};
constexpr std::array<const char*, 3> kGrids{"plain", "persistent", "dynamic"};
constexpr std::array<const char*, 3> kDiagonals{"masked", "trimmed", "skipped"};

Fields kernel_fields(const Config& c) {
  if (is_reference(c.family)) return {{"family", name_of(kFamilies, c.family)}};
  if (c.family == Family::sm90_backward) {
    Fields fields = backward::kernel_fields(c.backward);
    fields.insert(fields.begin(), {"family", name_of(kFamilies, c.family)});
    return fields;
  }
  return {{"family", name_of(kFamilies, c.family)},
          {"consumers", std::to_string(c.consumers)},
          {"block_n", std::to_string(c.block_n)},
          {"stages", std::to_string(c.stages)},
          {"softmax", name_of(kSoftmaxes, c.softmax)},
          {"order", name_of(kOrders, c.order)},
          {"ping_pong", flag(c.ping_pong)},
          {"q", name_of(kQSources, c.q)},
          {"q_columns", std::to_string(c.q_columns)},
          {"q_buffers", std::to_string(c.q_buffers)},
          {"q_ahead", flag(c.q_ahead)},
          {"o", name_of(kOBuffers, c.o)},
          {"o_pieces", std::to_string(c.o_pieces)},
          {"boundary", name_of(kBoundaries, c.boundary)},
          {"grid", name_of(kGrids, c.grid)},
          {"cluster", std::to_string(c.cluster)},
          {"diagonal", name_of(kDiagonals, c.diagonal)},
          {"exact_tail", flag(c.exact_tail)},
          {"remember", flag(c.remember)},
          {"skip_idle", flag(c.skip_idle)},
          {"warp_epilogue", flag(c.warp_epilogue)},
          {"dependent_launch", flag(c.dependent_launch)},
          {"early_copies", flag(c.early_copies)},
          {"first_turn", flag(c.first_turn)}};
}

}  // namespace

std::string kernel_part(const Config& config) { return join_fields(kernel_fields(config)); }

std::string to_string(const Config& config) {
  Fields fields = kernel_fields(config);
  if (config.family == Family::sm90) {
    fields.emplace_back("workers", std::to_string(config.workers));
    fields.emplace_back("section", std::to_string(config.section));
  } else if (config.family == Family::sm90_backward) {
    fields.emplace_back("workers", std::to_string(config.backward.workers));
    fields.emplace_back("section", std::to_string(config.backward.section));
    fields.emplace_back("parts", std::to_string(config.backward.parts));
  }
  return join_fields(fields);
}

Config without_launch_part(Config config) {
  config.workers = config.section = 0;
  config.backward.workers = config.backward.section = config.backward.parts = 0;
  return config;
}

Config parse_config(std::string_view text) {
  Config c;
  const auto number = [](std::string_view key, std::string_view value, int low, int high) {
    return static_cast<int>(parse_int(std::string("config ") + std::string(key), value, low, high));
  };
  const auto truth = [](std::string_view key, std::string_view value) {
    return parse_bool(std::string("config ") + std::string(key), value);
  };
  const Fields fields = parse_fields("config", text);
  for (const auto& [key, value] : fields)
    if (key == "family") c.family = value_of<Family>(kFamilies, key, value);
  for (const auto& [key, value] : fields) {
    if (key == "family") continue;
    if (c.family == Family::sm90_backward) {
      if (!backward::set_field(c.backward, key, value))
        fail(ErrorCode::invalid_argument, "config: key '{}' is unknown (allowed with family=sm90_backward: {})", key,
             backward::keys());
      continue;
    }
    if (key == "consumers")
      c.consumers = number(key, value, 1, 3);
    else if (key == "block_n")
      c.block_n = number(key, value, 16, 256);
    else if (key == "stages")
      c.stages = number(key, value, 1, 8);
    else if (key == "softmax")
      c.softmax = value_of<Softmax>(kSoftmaxes, key, value);
    else if (key == "order")
      c.order = value_of<Order>(kOrders, key, value);
    else if (key == "ping_pong")
      c.ping_pong = truth(key, value);
    else if (key == "q")
      c.q = value_of<QSource>(kQSources, key, value);
    else if (key == "q_columns")
      c.q_columns = number(key, value, 0, 240);
    else if (key == "q_buffers")
      c.q_buffers = number(key, value, 1, 2);
    else if (key == "q_ahead")
      c.q_ahead = truth(key, value);
    else if (key == "o")
      c.o = value_of<OBuffer>(kOBuffers, key, value);
    else if (key == "o_pieces")
      c.o_pieces = number(key, value, 1, 4);
    else if (key == "boundary")
      c.boundary = value_of<Boundary>(kBoundaries, key, value);
    else if (key == "grid")
      c.grid = value_of<Grid>(kGrids, key, value);
    else if (key == "cluster")
      c.cluster = number(key, value, 1, 2);
    else if (key == "diagonal")
      c.diagonal = value_of<Diagonal>(kDiagonals, key, value);
    else if (key == "exact_tail")
      c.exact_tail = truth(key, value);
    else if (key == "remember")
      c.remember = truth(key, value);
    else if (key == "skip_idle")
      c.skip_idle = truth(key, value);
    else if (key == "warp_epilogue")
      c.warp_epilogue = truth(key, value);
    else if (key == "dependent_launch")
      c.dependent_launch = truth(key, value);
    else if (key == "early_copies")
      c.early_copies = truth(key, value);
    else if (key == "first_turn")
      c.first_turn = truth(key, value);
    else if (key == "workers")
      c.workers = number(key, value, 0, 1 << 20);
    else if (key == "section")
      c.section = number(key, value, 0, 1 << 20);
    else
      fail(ErrorCode::invalid_argument,
           "config: key '{}' is unknown (allowed: family, consumers, block_n, stages, softmax, order, ping_pong, q, "
           "q_columns, q_buffers, q_ahead, o, o_pieces, boundary, grid, cluster, diagonal, exact_tail, remember, "
           "skip_idle, "
           "warp_epilogue, dependent_launch, early_copies, first_turn, workers, section)",
           key);
  }
  return c;
}

int default_section(const Problem& p) {
  if (p.op == Op::backward) {
    // Q, dO and the float32 sums of dQ of all query heads that read a KV head: every key block of it visits them.
    const double bytes_per_head = static_cast<double>(std::max<std::int64_t>(p.seqlen_q, 1)) *
                                  (6 * p.head_dim + 2 * p.head_dim_v) * p.heads / p.heads_kv;
    const auto pairs = static_cast<double>(std::max<std::int64_t>(p.heads_kv * p.batch, 1));
    return static_cast<int>(std::clamp(33554432.0 / bytes_per_head, 1.0, pairs));
  }
  const double bytes_per_head = static_cast<double>(std::max<std::int64_t>(p.seqlen_k, 1)) *
                                (p.head_dim + p.head_dim_v) * 2 * p.heads_kv / p.heads;
  // Half of L2 holds a section's K and V up to head dim 128. Above that larger sections measured faster: a key block
  // lasts longer there, and what counts is that a section has enough tiles to fill the device evenly.
  const double budget = std::max(p.head_dim, p.head_dim_v) <= 128 ? 33554432.0 : 4 * 33554432.0;
  return std::clamp(static_cast<int>(budget / bytes_per_head), 1, 16);
}

}  // namespace attune::codegen

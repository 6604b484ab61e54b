#include "tuner/searcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"

namespace attune::tuner {
namespace {

constexpr std::size_t kOfEveryKind = 3;

// The axes along which the model may err as a whole. Two configs of one kind err alike.
std::vector<std::string> kinds_of(const codegen::Config& c) {
  const auto number = [](auto value) { return static_cast<int>(value); };
  if (c.family == codegen::Family::sm90_backward) {
    const codegen::backward::Tunables& t = c.backward;
    return {fmt::format("split {} block_m {}", number(t.split), t.block_m),
            fmt::format("stages {} {} {}", t.q_stages, t.do_stages, t.ds_stages),
            fmt::format("lag {} ping_pong {}", t.lag, t.ping_pong),
            fmt::format("late_fences {} prefetch {}", t.late_fences, t.prefetch),
            fmt::format("v_in_registers {} registers {}", t.v_in_registers, t.registers),
            fmt::format("dq {} dkv {} k_stages {}", number(t.dq), number(t.dkv), t.k_stages),
            fmt::format("skip {} lag {}", t.skip, t.lag),
            fmt::format("boundary {} block_m {}", number(t.boundary), t.block_m),
            fmt::format("persistent {} finish {}", t.persistent, number(t.finish)),
            fmt::format("prepare {} finish {} persistent {}", number(t.prepare), number(t.finish), t.persistent),
            fmt::format("sums {} finish {}", number(t.sums), number(t.finish))};
  }
  return {fmt::format("softmax {} order {} remember {}", number(c.softmax), number(c.order), c.remember),
          fmt::format("consumers {}", c.consumers),
          fmt::format("block_n {}", c.block_n),
          fmt::format("ping_pong {} consumers {}", c.ping_pong, c.consumers),
          fmt::format("q {} {} {} o {} boundary {}", number(c.q), c.q_buffers, number(c.q_ahead), number(c.o),
                      number(c.boundary)),
          fmt::format("q_columns {}", c.q_columns),
          fmt::format("stages {}", c.stages),
          fmt::format("grid {} cluster {}", number(c.grid), c.cluster),
          fmt::format("diagonal {}", number(c.diagonal)),
          fmt::format("warp_epilogue {}", c.warp_epilogue)};
}

}  // namespace

RankedSearcher::RankedSearcher(const Arch& arch, const Problem& problem) {
  const std::vector<codegen::Config> all = codegen::candidates(arch, problem);
  std::vector<double> seconds;
  for (const codegen::Config& config : all) seconds.push_back(codegen::estimate(arch, problem, config).total);
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return seconds[a] < seconds[b]; });
  std::set<std::string> seen;
  for (const std::size_t i : order) {
    std::string kernel = codegen::kernel_part(all[i]);
    if (seen.insert(kernel).second) ranked_.push_back({all[i], std::move(kernel), kinds_of(all[i])});
  }
}

void RankedSearcher::take_by_rank(std::vector<std::size_t>& chosen, std::size_t up_to, const KernelTexts* among) {
  for (std::size_t i = 0; i < ranked_.size() && chosen.size() < up_to; ++i) {
    if (ranked_[i].taken || (among != nullptr && !among->contains(ranked_[i].kernel))) continue;
    ranked_[i].taken = true;
    chosen.push_back(i);
  }
}

std::vector<codegen::Config> RankedSearcher::configs_of(std::vector<std::size_t> chosen) const {
  std::sort(chosen.begin(), chosen.end());
  std::vector<codegen::Config> configs;
  for (const std::size_t i : chosen) configs.push_back(ranked_[i].config);
  return configs;
}

std::vector<codegen::Config> RankedSearcher::next(std::size_t count, const KernelTexts& preferred) {
  std::vector<std::size_t> chosen;
  // Half of a batch at most goes to diversity; at the ranks that the model likes, it costs nothing.
  std::map<std::string, std::size_t> of_kind;
  for (std::size_t i = 0; i < ranked_.size() && chosen.size() < (count + 1) / 2; ++i) {
    Ranked& ranked = ranked_[i];
    if (ranked.taken) continue;
    const auto scarce = [&](const std::string& kind) { return of_kind[kind] < kOfEveryKind; };
    if (!std::any_of(ranked.kinds.begin(), ranked.kinds.end(), scarce)) continue;
    for (const std::string& kind : ranked.kinds) ++of_kind[kind];
    ranked.taken = true;
    chosen.push_back(i);
  }
  take_by_rank(chosen, chosen.size() + (count - chosen.size()) / 3, nullptr);
  take_by_rank(chosen, count, &preferred);
  take_by_rank(chosen, count, nullptr);
  return configs_of(std::move(chosen));
}

std::vector<codegen::Config> RankedSearcher::next_among(std::size_t count, const KernelTexts& kernels) {
  std::vector<std::size_t> chosen;
  take_by_rank(chosen, count, &kernels);
  return configs_of(std::move(chosen));
}

ListSearcher::ListSearcher(const Arch& arch, const Problem& problem, const std::vector<std::string>& configs) {
  std::set<std::string> seen;
  for (const std::string& text : configs) {
    const codegen::Config config = codegen::parse_config(text);
    if (codegen::is_reference(config.family)) {
      fail(ErrorCode::invalid_argument, "config: '{}' is the yardstick, no entrant (allowed: family sm90{})", text,
           problem.op == Op::backward ? "_backward" : "");
    }
    if (const auto why = codegen::violates(arch, codegen::specialise(arch, problem, config))) {
      fail(ErrorCode::invalid_argument, "config: {} ({}, for {})", *why, text, to_string(problem));
    }
    if (seen.insert(codegen::to_string(config)).second) configs_.push_back(config);
  }
}

std::vector<codegen::Config> ListSearcher::next(std::size_t count, const KernelTexts&) {
  const std::size_t end = std::min(configs_.size(), handed_out_ + count);
  std::vector<codegen::Config> batch(configs_.begin() + static_cast<std::ptrdiff_t>(handed_out_),
                                     configs_.begin() + static_cast<std::ptrdiff_t>(end));
  handed_out_ = end;
  return batch;
}

std::vector<codegen::Config> ListSearcher::next_among(std::size_t, const KernelTexts&) { return {}; }

}  // namespace attune::tuner

// Which configs of a problem to compile and race, and in which order.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "codegen/space.h"

namespace attune::tuner {

/// Texts of kernels (codegen::kernel_part).
using KernelTexts = std::set<std::string>;

/// Hands out configs in batches, each config once. Not thread-safe.
class Searcher {
 public:
  virtual ~Searcher() = default;
  /// The next configs, at most `count`; none: there are no more. `preferred` holds kernels that are compiled for other
  /// problems anyway.
  virtual std::vector<codegen::Config> next(std::size_t count, const KernelTexts& preferred) = 0;
  /// The next configs whose kernels are among `kernels`.
  virtual std::vector<codegen::Config> next_among(std::size_t count, const KernelTexts& kernels) = 0;
  /// Configs that pass the rules, handed out or not.
  virtual std::size_t space() const = 0;
};

/// By the cost model, one config a kernel. The model's estimates are rough, so every batch holds the best few of every
/// kind (of softmax, consumers, block_n and so on) before it is filled up by rank; of that filling, up to two thirds
/// are taken from `preferred` first.
class RankedSearcher : public Searcher {
 public:
  RankedSearcher(const Arch& arch, const Problem& problem);
  std::vector<codegen::Config> next(std::size_t count, const KernelTexts& preferred) override;
  std::vector<codegen::Config> next_among(std::size_t count, const KernelTexts& kernels) override;
  std::size_t space() const override { return ranked_.size(); }

 private:
  struct Ranked {
    codegen::Config config;
    std::string kernel;
    std::vector<std::string> kinds;
    bool taken = false;
  };
  void take_by_rank(std::vector<std::size_t>& chosen, std::size_t up_to, const KernelTexts* among);
  std::vector<codegen::Config> configs_of(std::vector<std::size_t> chosen) const;

  std::vector<Ranked> ranked_;  // fastest estimate first
};

/// Given texts, in their order. Throws Error(invalid_argument) for a text that is no config, or one that breaks a rule
/// for this problem.
class ListSearcher : public Searcher {
 public:
  ListSearcher(const Arch& arch, const Problem& problem, const std::vector<std::string>& configs);
  std::vector<codegen::Config> next(std::size_t count, const KernelTexts& preferred) override;
  std::vector<codegen::Config> next_among(std::size_t count, const KernelTexts& kernels) override;
  std::size_t space() const override { return configs_.size(); }

 private:
  std::vector<codegen::Config> configs_;
  std::size_t handed_out_ = 0;
};

}  // namespace attune::tuner

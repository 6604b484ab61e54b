// Flags that many commands share. Each struct adds itself to a command and afterwards tells what was asked for; values
// are read as text, so that every mistake is reported in the words of the library: the argument, what it was, what is
// allowed.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <attune/problem.h>

#include "cache/store.h"
#include "cli/output.h"
#include "codegen/config.h"
#include "codegen/kernel_spec.h"
#include "runtime/device.h"

namespace attune::cli {

/// --arch --op --dtype --head-dim ... or --problem with the canonical text, which the other flags override.
struct ProblemFlags {
  void add(CLI::App& command);

  /// The problem; what is not given has the defaults of `struct Problem`, but batch 4. Throws Error(invalid_argument),
  /// also for a problem that has nothing to compute.
  Problem problem() const;
  /// By default that of `problem()`'s only supported chip; Error(unsupported) for an unknown name.
  Arch arch() const;
  /// Names of the flags that were given, --arch not among them.
  std::vector<std::string> given() const;
  /// Whether it was said what kind of scores is meant; if not, a problem and its peaked twin are.
  bool says_scores() const { return scores_.has_value() || problem_.find("scores=") != std::string::npos; }
  /// --problem was given.
  bool spells_all() const { return !problem_.empty(); }
  /// Whether a problem agrees with every flag that was given.
  bool admits(const Problem& problem) const;
  /// `base` with the fields that were given, unchecked.
  Problem over(Problem base) const;

 private:
  std::string arch_ = "sm_90a", problem_;
  std::optional<std::string> op_, dtype_, head_dim_, head_dim_v_, heads_, heads_kv_, batch_, seqlen_, seqlen_q_,
      seqlen_k_, layout_, scores_;
  bool causal_ = false, not_causal_ = false, deterministic_ = false;
};

/// A kernel: --spec, or a problem with --config.
struct KernelFlags {
  void add(CLI::App& command);

  ProblemFlags problem;
  std::string config, spec;

  struct Choice {
    std::optional<Problem> problem;  ///< nothing with --spec
    codegen::Config config;          ///< launch part included
    codegen::KernelSpec spec;
  };
  /// The default config if none was given. Throws Error(invalid_argument) for a config that breaks a rule of the space.
  Choice choice() const;
};

/// Parses a config and checks it against the rules for a problem. Throws Error(invalid_argument).
codegen::Config checked_config(const Arch& arch, const Problem& problem, const std::string& text);

/// Parses a kernel's text and checks it against the rules. Throws Error(invalid_argument), Error(unsupported).
codegen::KernelSpec checked_spec(const std::string& text);

/// --device N
struct DeviceFlag {
  /// `takes_cpu`: the command knows what to do with `cpu`.
  void add(CLI::App& command, bool takes_cpu = false);
  /// --device cpu
  bool is_cpu() const { return device_ == "cpu"; }
  /// Throws Error(invalid_argument), Error(unsupported) for `cpu`.
  int ordinal() const;
  /// Throws Error(unsupported): the CPU emulator is of no use to this command.
  [[noreturn]] static void refuse_cpu();
  /// Throws Error(no_device), Error(invalid_argument), Error(unsupported) for `cpu`.
  std::shared_ptr<runtime::Device> open() const;

 private:
  std::string device_ = "0";
  bool takes_cpu_ = false;
};

/// --cache-dir DIR
struct CacheFlag {
  void add(CLI::App& command);

  bool given() const { return !directory_.empty(); }
  std::string directory() const;
  /// Warnings go to `output`.
  cache::Store open(Output& output, bool read_only = false) const;
  /// Like open(), for commands that are of no use without the disk: Error(cache) if it cannot be used.
  cache::Store require(Output& output, bool read_only = false) const;

 private:
  std::string directory_;
};

/// An integer flag's value. Throws Error(invalid_argument).
std::int64_t parse_count(const std::string& name, const std::string& text, std::int64_t low = 1,
                         std::int64_t high = 1ll << 40);
/// "90", "90s", "1.5m", "2h": seconds above 0. Throws Error(invalid_argument).
double parse_duration(const std::string& name, const std::string& text);
/// "512", "64k", "4M", "2G" (powers of 1024). Throws Error(invalid_argument).
std::int64_t parse_bytes(const std::string& name, const std::string& text);
/// "512,1024": integers of at least 1. Throws Error(invalid_argument).
std::vector<std::int64_t> parse_counts(const std::string& name, const std::string& text);

}  // namespace attune::cli

// Which configs are worth trying for a problem. Axes first, rules after.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <span>

#include "codegen/backward/space.h"
#include "codegen/default_table.h"
#include "codegen/schedule.h"
#include "codegen/space.h"

namespace attune::codegen {
namespace {

std::vector<int> block_ns(int head_dim) {
  if (head_dim <= 64) return {96, 128, 160, 176, 192};
  if (head_dim <= 96) return {96, 128, 144, 160, 176, 192};
  if (head_dim <= 128) return {80, 96, 112, 128, 144, 160, 176, 192};
  if (head_dim <= 192) return {64, 80, 96, 112, 128};
  return {48, 64, 80};
}

constexpr int kManyTiles = 8192;  // keys of a causal head

// Few rows: less than two tiles of the usual size an SM.
bool is_small(const Arch& arch, const Problem& p) {
  return p.batch * p.heads * ((p.seqlen_q + 127) / 128) < 2 * arch.sms;
}

std::vector<int> consumer_counts(const Arch& arch, const Problem& p, int head_dim) {
  std::vector<int> counts{2};
  if (head_dim <= 128) counts.push_back(3);
  // A smaller tile spreads the work over more SMs.
  if (is_small(arch, p)) counts.push_back(1);
  return counts;
}

// Where Q is read from, where O is staged and how tiles meet.
struct Buffering {
  QSource q;
  int q_buffers;
  bool q_ahead;
  OBuffer o;
  int o_pieces;
  Boundary boundary;
};
constexpr Buffering kBufferings[] = {
    {QSource::registers, 1, true, OBuffer::own, 1, Boundary::overlapped},
    {QSource::registers, 1, false, OBuffer::own, 1, Boundary::overlapped},
    {QSource::shared, 1, false, OBuffer::own, 1, Boundary::overlapped},
    {QSource::shared, 2, true, OBuffer::own, 1, Boundary::overlapped},
    {QSource::shared, 1, false, OBuffer::own, 2, Boundary::overlapped},
    {QSource::shared, 1, false, OBuffer::own, 2, Boundary::drained},
    {QSource::shared, 1, false, OBuffer::direct, 1, Boundary::drained},
    {QSource::shared, 1, false, OBuffer::over_q, 1, Boundary::drained},
};

// Columns of Q in registers where the rest is read from shared memory: where the registers hold some of it, not all.
std::vector<int> q_columns(const Problem& p, const Buffering& buffering, int consumers, int block_n) {
  if (buffering.q != QSource::shared || consumers != 2) return {0};
  if (p.head_dim > 192) return block_n <= 64 ? std::vector<int>{0, 64, 96, 128} : std::vector<int>{0};
  if (p.head_dim > 128) return {0, 64, 96};
  // Causal kernels of this width want narrower blocks, beside which there is room for all of Q.
  if (p.head_dim > 96 && block_n >= 144 && block_n <= 176 && !p.causal) return {0, 32, 64};
  return {0};
}

struct SoftmaxChoice {
  Softmax softmax;
  Order order;
  bool remember;
};
constexpr SoftmaxChoice kSoftmaxChoices[] = {
    {Softmax::zero, Order::pv_qk, true},
    {Softmax::zero, Order::pv_qk, false},
    {Softmax::first_max, Order::pv_qk, true},
    {Softmax::exact, Order::qk_pv, true},
};
// Both orders: on scores where speculation is no rival, each wins somewhere.
constexpr SoftmaxChoice kExactChoices[] = {
    {Softmax::exact, Order::pv_qk, true},
    {Softmax::exact, Order::qk_pv, true},
};

std::span<const SoftmaxChoice> softmax_choices(const Problem& p) {
  return p.scores == ScoreKind::peaked ? std::span<const SoftmaxChoice>(kExactChoices) : kSoftmaxChoices;
}

std::vector<Diagonal> diagonals(const Problem& p) {
  if (!p.causal) return {Diagonal::masked};
  return {Diagonal::trimmed, Diagonal::skipped, Diagonal::masked};
}

std::vector<int> clusters(const Arch& arch, const Problem& p) {
  // Where tiles are few all thread blocks want K and V from L2 at once, and hardly a tile waits for the one before it.
  const bool few_tiles = is_small(arch, p) && !p.causal && p.seqlen_q > 128 && std::max(p.head_dim, p.head_dim_v) > 64;
  return few_tiles || clusters_pay(arch, p) ? std::vector<int>{1, 2} : std::vector<int>{1};
}

std::vector<Grid> grids(const Arch& arch, const Problem& p) {
  std::vector<Grid> all{Grid::dynamic};
  // No counter needed where tiles are equal, or many and taken there and back.
  if (!p.causal || p.seqlen_k >= kManyTiles) all.push_back(Grid::persistent);
  const std::int64_t tiles = p.batch * p.heads * ((p.seqlen_q + 63) / 64);
  if (tiles <= 4 * arch.sms) all.push_back(Grid::plain);
  return all;
}

// What the simulator sees of a spec: configs that differ in nothing else share its verdict.
std::string barrier_structure(const KernelSpec& spec) {
  const Config& c = spec.config;
  const int skipping_n = c.skips_blocks() ? c.block_n : 0;
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", c.cluster, c.tells_claims(), c.consumers,
                     c.stages, static_cast<int>(c.order), c.ping_pong, static_cast<int>(c.q), c.q_buffers, c.q_ahead,
                     static_cast<int>(c.o), static_cast<int>(c.boundary), c.grid == Grid::plain, skipping_n,
                     c.skip_idle, first_width(spec, 0) != c.block_n, static_cast<int>(spec.edge), c.first_turn);
}

// Whether the next tile's products may go on beside the store of this O. Its pieces wait for each other, which only
// pays where its buffer cannot hold all of it; at head dim 256 it did not even there.
bool may_overlap(const Arch& arch, KernelSpec spec) {
  if (spec.config.o_pieces == 1) return true;
  spec.config.o_pieces = 1;
  return spec.head_dim_v <= 128 && violates(arch, spec);
}

// Most of listing a space is playing its structures, which problems share.
bool runs(const KernelSpec& spec) {
  static std::mutex mutex;
  static std::map<std::string, bool>* const known = new std::map<std::string, bool>;
  const std::string structure = barrier_structure(spec);
  {
    const std::lock_guard lock(mutex);
    if (const auto it = known->find(structure); it != known->end()) return it->second;
  }
  const bool right = simulate(spec).empty();
  const std::lock_guard lock(mutex);
  return known->try_emplace(structure, right).first->second;
}

// A masked diagonal is dominated wherever one of the sharper ways is possible.
bool dominated(const Config& c) {
  const bool sharper = (c.consumers == 2 && c.block_n == 128) || c.block_n < c.block_m();
  if (c.cluster > 1 && c.diagonal == Diagonal::skipped) return c.consumers == 2 && c.block_n == 128;
  return c.diagonal == Diagonal::masked && sharper;
}

}  // namespace

bool has_idle_rows(const Problem& p, const Config& c) {
  return (p.seqlen_q + 63) / 64 % (c.cluster * c.consumers) != 0;
}

bool clusters_pay(const Arch& arch, const Problem& p) {
  // Measured: docs/kernels/NOTES.md, 40.
  return std::max(p.head_dim, p.head_dim_v) > 64 && !is_small(arch, p) && p.seqlen_q >= 1024 && p.seqlen_k >= 1024;
}

std::string tile_text(const Config& c) {
  if (c.family == Family::sm90_backward)
    return fmt::format("{} {} {} {}", c.backward.block_m, static_cast<int>(c.backward.split), c.backward.lag,
                       c.backward.registers);
  return fmt::format("{} {} {} {} {}", c.consumers, c.block_n, static_cast<int>(c.q), c.q_columns, c.cluster);
}

std::vector<Config> launch_variants(const Arch& arch, const Problem& p, const Config& config) {
  if (config.family == Family::sm90_backward) return backward::launch_variants(arch, p, config);
  std::vector<Config> all{config};
  if (config.family != Family::sm90 || config.grid == Grid::plain) return all;
  const auto add = [&](int workers, int section) {
    Config c = config;
    c.workers = workers;
    c.section = section;
    all.push_back(c);
  };
  // A few idle SMs cost little and can leave the others a higher clock or an even last wave.
  add(arch.sms - arch.sms % 8, config.section);
  if (!config.takes_sections(p.causal) || config.grid != Grid::dynamic) return all;
  const int heads = static_cast<int>(p.batch * p.heads);
  for (const int section : std::set<int>{2, 4, 8, 16, 32, 64, heads})
    if (section <= heads && section != default_section(p)) add(0, section);
  return all;
}

std::vector<Config> candidates(const Arch& arch, const Problem& p) {
  if (p.op == Op::backward) return backward::candidates(arch, p);
  const int head_dim = std::max(p.head_dim, p.head_dim_v);
  std::vector<Config> all;
  const auto consider = [&](Config c) {
    c.exact_tail = !p.causal && p.seqlen_k > 0 && p.seqlen_k % c.block_n != 0 && p.seqlen_k % c.block_n % 16 == 0;
    if (p.causal && dominated(c)) return;
    const KernelSpec spec = specialise(arch, p, c);
    if (violates(arch, spec)) return;
    if (c.boundary == Boundary::overlapped && !may_overlap(arch, spec)) return;
    c.skip_idle = has_idle_rows(p, c);
    if (c.skip_idle && !runs(specialise(arch, p, c))) c.skip_idle = false;
    if (!c.skip_idle && !runs(spec)) return;
    all.push_back(c);
  };
  for (int consumers : consumer_counts(arch, p, head_dim))
    for (int block_n : block_ns(head_dim))
      for (const SoftmaxChoice& softmax : softmax_choices(p))
        for (const Buffering& buffering : kBufferings)
          for (int columns : q_columns(p, buffering, consumers, block_n))
            for (bool ping_pong : {true, false})
              for (Diagonal diagonal : diagonals(p))
                for (Grid grid : grids(arch, p))
                  for (int cluster : clusters(arch, p))
                    consider(
                        {.consumers = consumers,
                         .block_n = block_n,
                         .softmax = softmax.softmax,
                         .order = softmax.order,
                         .ping_pong = ping_pong,
                         .q = buffering.q,
                         .q_columns = columns,
                         .q_buffers = buffering.q_buffers,
                         .q_ahead = buffering.q_ahead,
                         .o = buffering.o,
                         .o_pieces = buffering.o_pieces,
                         .boundary = buffering.boundary,
                         .grid = grid,
                         .diagonal = diagonal,
                         .remember = softmax.remember,
                         .cluster = cluster,
                         // A larger problem would not notice.
                         .dependent_launch = is_small(arch, p),
                         .early_copies = is_small(arch, p) && cluster == 1,
                         .first_turn = ping_pong && (is_small(arch, p) || buffering.boundary == Boundary::drained)});
  return all;
}

std::optional<Config> in_other_code(const Config& config) {
  if (config.family != Family::sm90) return std::nullopt;
  Config other = config;
  other.dependent_launch = !config.dependent_launch;
  return other;
}

std::vector<Config> tabled_guesses(const Arch& arch, const Problem& p) {
  std::vector<Config> chosen;
  for (const Config& c : tabled_configs(arch, p)) {
    chosen.push_back(c);
    // The table's kernels build with the ptxas that it was made with.
    if (const std::optional<Config> other = in_other_code(c)) chosen.push_back(*other);
  }
  return chosen;
}

std::vector<Config> default_configs(const Arch& arch, const Problem& p) {
  constexpr std::size_t kGuesses = 16;
  constexpr int kRelatives = 2;
  const std::vector<Config> all = candidates(arch, p);
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < all.size(); i++) order.emplace_back(estimate(arch, p, all[i]).total, i);
  std::sort(order.begin(), order.end());
  std::vector<Config> chosen = tabled_guesses(arch, p);
  // What keeps one config from building cleanly usually keeps its closest relatives, too.
  std::map<std::string, int> relatives;
  for (const auto& [seconds, i] : order) {
    if (chosen.size() == kGuesses) break;
    const Config& c = all[i];
    if (std::find(chosen.begin(), chosen.end(), c) != chosen.end()) continue;
    if (relatives[tile_text(c)]++ < kRelatives) chosen.push_back(c);
  }
  if (chosen.empty())
    chosen.push_back(Config{.family = p.op == Op::forward ? Family::reference : Family::reference_backward});
  return chosen;
}

Config default_config(const Arch& arch, const Problem& p) {
  // The table's come before the model's, which need the whole space listed and rated.
  const std::vector<Config> tabled = tabled_configs(arch, p);
  return tabled.empty() ? default_configs(arch, p).front() : tabled.front();
}

}  // namespace attune::codegen

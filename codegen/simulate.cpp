// Plays a kernel's barriers and buffers before it is printed. Every agent (producer, consumer warpgroups) becomes a
// list of operations on mbarriers, turns and buffers. They run twice: with the producer as eager as it can be, so that
// a buffer released before its product was waited for is overwritten and found, and with the consumers as eager as they
// can be, so that a buffer read before it was awaited is empty and found. Of a cluster all thread blocks are played at
// once: each producer brings a share of every block of keys to all of them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <numeric>
#include <vector>

#include "codegen/schedule.h"

namespace attune::codegen {
namespace {

// Names are numbers until a fault is to be described: the space has many structures to play.
enum class What { k, v, q };
constexpr int kWhats = 3, kMostBlocks = 2, kPlaces = 16;

// A barrier, buffer or turn: of which thread block, and which stage, warpgroup or tile.
struct Object {
  enum class Kind { buffer, full, empty, turn, claim };
  static constexpr int kKinds = 5;
  Kind kind = Kind::buffer;
  What what = What::k;
  int block = 0, place = 0;

  std::size_t index() const {
    return static_cast<std::size_t>(
        ((static_cast<int>(kind) * kWhats + static_cast<int>(what)) * kMostBlocks + block) * kPlaces + place);
  }
  bool operator==(const Object&) const = default;
};
constexpr std::size_t kObjects = std::size_t{Object::kKinds} * kWhats * kMostBlocks * kPlaces;

// A block of keys, or Q, of one of the tiles that are played.
struct Content {
  What what = What::k;
  int tile = -1, block = 0;  // -1: nothing yet
  bool operator==(const Content&) const = default;
};

struct Op {
  enum class Kind { wait, arrive, load, read, wait_group, sync_turn, grant_turn };
  Kind kind;
  Object object;
  int value = 0;         // parity of a wait, arrivals, pending groups, which share a load brings
  Content content = {};  // what a load brings, what a read expects
};

struct Agent {
  std::string name;
  std::vector<Op> ops;
  std::size_t next = 0;
  std::deque<Object> in_flight;  // buffers that its unfinished products read, oldest first
  bool lingered = false;         // products take time: the others go on before a wait for them ends
};

struct Barrier {
  int expected = 0, pending = 0, phase = 0;
};

// Stage and parity of a ring as a consumer or the producer steps through it.
struct Ring {
  What what;
  int block, size, stage = 0, parity;
  Object buffer() const { return {Object::Kind::buffer, what, block, stage}; }
  Object full() const { return {Object::Kind::full, what, block, stage}; }
  Object empty() const { return {Object::Kind::empty, what, block, stage}; }
  void advance() {
    if (++stage == size) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Blocks of keys that each warpgroup of a cluster passes over, were the tiles long enough: top to bottom.
using Skips = std::vector<int>;

struct Tile {
  int blocks = 0;
  Skips skips;
  int idle = 0;  // warpgroups without rows, the cluster's last ones
};
using Tiles = std::vector<Tile>;

// All skips that tiles can have, those with most blocks first: wherever their last rows end between two block borders,
// and where keys end before that.
std::vector<Skips> all_skips(const KernelSpec& spec) {
  const Config& c = spec.config;
  const int warpgroups = c.cluster * c.consumers;
  if (!c.skips_blocks() || !spec.causal) return {Skips(static_cast<std::size_t>(warpgroups), 0)};
  std::vector<Skips> all;
  const int step = spec.edge == Edge::diagonal ? std::gcd(c.cluster_m(), c.block_n) : 1;
  for (int end = step; end <= c.block_n; end += step) {
    Skips skips;
    for (int w = 0; w < warpgroups; w++) {
      const int above = 64 * (warpgroups - 1 - w) - end;  // rows from this warpgroup's last one to a border above it
      skips.push_back(above < 0 ? 0 : above / c.block_n + 1);
    }
    // Fewer keys than the diagonal reaches: no warpgroup sees the blocks that are not there.
    for (int missing = 0; missing <= skips.front(); missing++) {
      Skips fewer;
      for (int blocks : skips) fewer.push_back(std::max(0, blocks - missing));
      all.push_back(std::move(fewer));
    }
  }
  std::sort(all.begin(), all.end(), std::greater<>());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

class Simulation {
 public:
  enum class Eager { producer, consumers };

  Simulation(const KernelSpec& spec, const Schedule& schedule, Tiles tiles, Eager eager)
      : spec_(spec), c_(spec.config), tiles_(std::move(tiles)), schedule_(schedule) {
    turns_ = c_.ping_pong && c_.consumers > 1 && c_.order != Order::serial;
    for (int rank = 0; rank < c_.cluster; rank++) {
      for (Ring ring : {ring_of(What::k, rank, 1), ring_of(What::v, rank, 1)})
        for (int i = 0; i < c_.stages; i++, ring.advance()) {
          barrier(ring.full()) = {c_.cluster, c_.cluster, 0};
          barrier(ring.empty()) = {c_.cluster * c_.consumers, c_.cluster * c_.consumers, 0};
        }
      Ring ring = ring_of(What::q, rank, 1);
      for (int i = 0; i < c_.q_buffers; i++, ring.advance()) {
        barrier(ring.full()) = {1, 1, 0};
        barrier(ring.empty()) = {c_.consumers, c_.consumers, 0};
      }
    }
    for (int rank = 0; rank < c_.cluster; rank++) agents_.push_back(producer(rank));
    for (int rank = 0; rank < c_.cluster; rank++)
      for (int w = 0; w < c_.consumers; w++) agents_.push_back(consumer(rank, w));
    if (eager == Eager::consumers) std::rotate(agents_.begin(), agents_.begin() + c_.cluster, agents_.end());
  }

  std::string run() {
    while (true) {
      bool progress = false, done = true;
      for (Agent& agent : agents_) {
        const bool lingered = agent.lingered;
        bool moved = false;
        while (agent.next < agent.ops.size() && fault_.empty() && step(agent)) moved = true;
        done = done && agent.next == agent.ops.size();
        moved = moved || agent.lingered != lingered;
        progress = progress || moved;
        if (moved) break;  // the eager ones go first again
      }
      if (!fault_.empty()) return describe(fault_);
      if (progress) continue;
      if (done) return {};
      return describe("deadlock: " + who_waits());
    }
  }

 private:
  static Content of(What what, std::size_t tile, int block) { return {what, static_cast<int>(tile), block}; }
  static Object turn(int rank, int warpgroup) { return {Object::Kind::turn, What::k, rank, warpgroup}; }
  static Object claim(std::size_t tile) { return {Object::Kind::claim, What::k, 0, static_cast<int>(tile)}; }
  Barrier& barrier(const Object& object) { return barriers_[object.index()]; }

  Ring ring_of(What what, int rank, int parity) const {
    return {what, rank, what == What::q ? c_.q_buffers : c_.stages, 0, parity};
  }
  // The same place in another thread block.
  static Ring ring_at(Ring ring, int rank) {
    ring.block = rank;
    return ring;
  }

  static const char* text(What what) { return what == What::k ? "K" : what == What::v ? "V" : "Q"; }
  std::string block_text(int rank) const { return c_.cluster == 1 ? "" : fmt::format("block {} ", rank); }
  std::string text(const Object& o) const {
    const std::string buffer = fmt::format("{}{}[{}]", block_text(o.block), text(o.what), o.place);
    switch (o.kind) {
      case Object::Kind::buffer: return buffer;
      case Object::Kind::full: return buffer + ".full";
      case Object::Kind::empty: return buffer + ".empty";
      case Object::Kind::turn: return fmt::format("{}turn {}", block_text(o.block), o.place);
      case Object::Kind::claim: return fmt::format("claim of tile {}", o.place);
    }
    return {};
  }
  static std::string text(const Content& c) {
    return c.tile < 0 ? "" : fmt::format("{}(tile {}, block {})", text(c.what), c.tile, c.block);
  }

  Agent producer(int rank) {
    Agent a{.name = block_text(rank) + "producer", .ops = {}, .in_flight = {}};
    Ring k = ring_of(What::k, rank, 1), v = ring_of(What::v, rank, 1), q = ring_of(What::q, rank, 1);
    const auto load = [&](Ring& ring, const Content& content) {
      a.ops.push_back({Op::Kind::wait, ring.empty(), ring.parity, {}});
      for (int to = 0; to < c_.cluster; to++) {
        a.ops.push_back({Op::Kind::load, ring_at(ring, to).buffer(), rank, content});
        a.ops.push_back({Op::Kind::arrive, ring_at(ring, to).full(), 1, {}});
      }
      ring.advance();
    };
    const auto load_q = [&](std::size_t t) {
      if (t >= tiles_.size()) return;
      a.ops.push_back({Op::Kind::wait, q.empty(), q.parity, {}});
      for (int share = 0; share < c_.cluster; share++)
        a.ops.push_back({Op::Kind::load, q.buffer(), share, of(What::q, t, 0)});
      a.ops.push_back({Op::Kind::arrive, q.full(), 1, {}});
      q.advance();
    };
    const auto ask_for = [&](std::size_t t) {
      if (rank != 0 && c_.tells_claims()) a.ops.push_back({Op::Kind::wait, claim(t), 0, {}});
    };
    if (c_.q_ahead) load_q(0);
    for (std::size_t t = 0; t < tiles_.size(); t++) {
      const int blocks = tiles_[t].blocks;
      const int ahead_at = blocks - 2 - (c_.tells_claims() ? rank : 0);
      load(k, of(What::k, t, blocks - 1));
      if (!c_.q_ahead) load_q(t);
      const auto tell = [&] {
        if (rank != 0 || !c_.tells_claims()) return;
        barrier(claim(t + 1)) = {1, 1, 0};
        a.ops.push_back({Op::Kind::arrive, claim(t + 1), 1, {}});
      };
      const auto look_ahead = [&] {
        ask_for(t + 1);
        load_q(t + 1);
      };
      for (int n = blocks - 2; n >= 0; --n) {
        if (loads_v_first(schedule_)) load(v, of(What::v, t, n + 1));
        load(k, of(What::k, t, n));
        if (!loads_v_first(schedule_)) load(v, of(What::v, t, n + 1));
        if (n == blocks - 2) tell();
        if (c_.q_ahead && n == ahead_at) look_ahead();
      }
      if (blocks == 1) tell();
      load(v, of(What::v, t, 0));
      if (c_.q_ahead && ahead_at < 0) look_ahead();
      if (!c_.q_ahead) ask_for(t + 1);
    }
    return a;
  }

  // A consumer's rings and position while its program is unrolled.
  struct Position {
    Ring k, v, q;
    std::size_t tile = 0;
    int n = 0, skipped = 0, previous_block = 0;
    std::size_t previous_tile = 0;
  };

  Agent consumer(int rank, int warpgroup) {
    Agent a{.name = fmt::format("{}consumer {}", block_text(rank), warpgroup), .ops = {}, .in_flight = {}};
    const Program program = lower(spec_, schedule_, first_width(spec_, warpgroup));
    Position at{ring_of(What::k, rank, 0), ring_of(What::v, rank, 0), ring_of(What::q, rank, 0)};
    if (turns_ && warpgroup == c_.consumers - 1) a.ops.push_back({Op::Kind::grant_turn, turn(rank, 0), 0, {}});
    // Which of the cluster's warpgroups this one is in a tile, from top to bottom.
    const auto place_in = [&](std::size_t t) {
      const int block = c_.swaps_tiles(spec_.causal) ? (rank + static_cast<int>(t)) % c_.cluster : rank;
      return block * c_.consumers + warpgroup;
    };
    const auto take_tile = [&] {
      a.ops.push_back({Op::Kind::wait, at.q.full(), at.q.parity, {}});
      const Tile& tile = tiles_[at.tile];
      at.skipped = std::min(tile.skips[static_cast<std::size_t>(place_in(at.tile))], tile.blocks - 1);
      at.n = tile.blocks - 1 - at.skipped;
    };
    const auto release_q = [&] { a.ops.push_back({Op::Kind::arrive, at.q.empty(), 1, {}}); };
    const auto play = [&](const std::vector<Line>& lines) { unroll(a, at, lines, rank, warpgroup); };
    const auto loops = [&](bool first_is_narrow) {
      for (bool second = first_is_narrow; at.n > 0; second = false) {
        remember_previous(at);
        at.n--;
        play(second                                                     ? program.second
             : program.has_masked && at.n + 2 >= tiles_[at.tile].blocks ? program.masked
                                                                        : program.block);
      }
    };
    const auto idle = [&](std::size_t t) { return place_in(t) >= c_.cluster * c_.consumers - tiles_[t].idle; };
    bool begun = false;  // a flattened program has a turn at each step but its first
    const auto step_alone = [&] {
      if (begun && program.flattened && turns_ && !c_.first_turn) turn_over(a, rank, warpgroup);
      begun = true;
    };
    take_tile();
    while (true) {
      if (idle(at.tile)) {
        if (c_.moves_q()) release_q();
        for (int n = 0; n < tiles_[at.tile].blocks; n++) {
          step_alone();
          if (turns_ && (c_.first_turn || (!program.flattened && n > 0))) turn_over(a, rank, warpgroup);
          for (Ring* ring : {&at.k, &at.v}) {
            a.ops.push_back({Op::Kind::wait, ring->full(), ring->parity, {}});
            pass(a, *ring);
          }
        }
        if (!c_.moves_q()) release_q();
      } else {
        step_alone();
        play(program.first);
        while (true) {
          loops(program.has_second);
          remember_previous(at);
          if (!program.flattened || at.tile + 1 == tiles_.size() || idle(at.tile + 1)) break;
          at.q.advance();
          at.tile++;
          take_tile();
          play(program.boundary);
        }
        play(program.drain);
        if (c_.o == OBuffer::over_q) release_q();
      }
      at.q.advance();
      if (at.tile + 1 == tiles_.size()) return a;
      at.tile++;
      take_tile();
    }
  }

  void pass(Agent& a, Ring& ring) const {
    for (int to = 0; to < c_.cluster; to++) a.ops.push_back({Op::Kind::arrive, ring_at(ring, to).empty(), 1, {}});
    ring.advance();
  }
  void turn_over(Agent& a, int rank, int warpgroup) const {
    a.ops.push_back({Op::Kind::sync_turn, turn(rank, warpgroup), 0, {}});
    a.ops.push_back({Op::Kind::grant_turn, turn(rank, (warpgroup + 1) % c_.consumers), 0, {}});
  }

  static void remember_previous(Position& at) {
    at.previous_tile = at.tile;
    at.previous_block = at.n;
  }

  void unroll(Agent& a, Position& at, const std::vector<Line>& lines, int rank, int warpgroup) {
    const Object own_turn = turn(rank, warpgroup), next_turn = turn(rank, (warpgroup + 1) % c_.consumers);
    for (const Line& line : lines) {
      switch (line.kind) {
        case Line::Kind::await_k: a.ops.push_back({Op::Kind::wait, at.k.full(), at.k.parity, {}}); break;
        case Line::Kind::await_v: a.ops.push_back({Op::Kind::wait, at.v.full(), at.v.parity, {}}); break;
        case Line::Kind::take_turn:
          if (turns_) a.ops.push_back({Op::Kind::sync_turn, own_turn, 0, {}});
          break;
        case Line::Kind::pass_turn:
          if (turns_) a.ops.push_back({Op::Kind::grant_turn, next_turn, 0, {}});
          break;
        case Line::Kind::issue_qk:
          a.ops.push_back({Op::Kind::read, at.k.buffer(), 0, of(What::k, at.tile, at.n)});
          break;
        case Line::Kind::issue_pv:
          a.ops.push_back({Op::Kind::read, at.v.buffer(), 0, of(What::v, at.previous_tile, at.previous_block)});
          break;
        case Line::Kind::wait: a.ops.push_back({Op::Kind::wait_group, {}, line.pending, {}}); break;
        case Line::Kind::release_k: pass(a, at.k); break;
        case Line::Kind::release_v: pass(a, at.v); break;
        case Line::Kind::release_q:
          if (at.n == 0 || c_.moves_q()) a.ops.push_back({Op::Kind::arrive, at.q.empty(), 1, {}});
          break;
        case Line::Kind::skip_k:
          for (int i = 0; i < at.skipped; i++) {
            if (turns_) turn_over(a, rank, warpgroup);
            a.ops.push_back({Op::Kind::wait, at.k.full(), at.k.parity, {}});
            pass(a, at.k);
          }
          break;
        case Line::Kind::skip_v:
          for (; at.skipped > 0; at.skipped--) {
            a.ops.push_back({Op::Kind::wait, at.v.full(), at.v.parity, {}});
            pass(a, at.v);
          }
          break;
        case Line::Kind::fence:
        case Line::Kind::softmax:
        case Line::Kind::mask:
        case Line::Kind::save_row:
        case Line::Kind::epilogue: break;  // registers and the output buffer: nothing another agent waits for
      }
    }
  }

  // Runs one operation; false if it has to wait.
  bool step(Agent& a) {
    const Op& op = a.ops[a.next];
    switch (op.kind) {
      case Op::Kind::wait:
        if (barrier(op.object).phase % 2 == op.value) return false;
        break;
      case Op::Kind::arrive: {
        Barrier& at = barrier(op.object);
        at.pending -= op.value;
        if (at.pending < 0) fault_ = fmt::format("{} arrives once too often at {}", a.name, text(op.object));
        if (at.pending == 0) {
          at.pending = at.expected;
          at.phase++;
        }
        break;
      }
      case Op::Kind::load:
        for (const Agent& reader : agents_)
          if (std::find(reader.in_flight.begin(), reader.in_flight.end(), op.object) != reader.in_flight.end())
            fault_ = fmt::format("{} is overwritten by {} while a product of {} may still read it", text(op.object),
                                 text(op.content), reader.name);
        contents_[op.object.index()][static_cast<std::size_t>(op.value)] = op.content;
        break;
      case Op::Kind::read:
        for (int share = 0; share < c_.cluster; share++)
          if (const Content& found = contents_[op.object.index()][static_cast<std::size_t>(share)]; found != op.content)
            fault_ = fmt::format("{} expects {} in {} and finds '{}'", a.name, text(op.content), text(op.object),
                                 text(found));
        a.in_flight.push_back(op.object);
        break;
      case Op::Kind::wait_group:
        a.lingered = !a.lingered;
        if (a.lingered) return false;
        while (a.in_flight.size() > static_cast<std::size_t>(op.value)) a.in_flight.pop_front();
        break;
      case Op::Kind::sync_turn:
        if (!granted_[op.object.index()]) return false;
        granted_[op.object.index()] = false;
        break;
      case Op::Kind::grant_turn:
        if (granted_[op.object.index()])
          fault_ = fmt::format("{} grants {} twice: unequal turns", a.name, text(op.object));
        granted_[op.object.index()] = true;
        break;
    }
    a.next++;
    return true;
  }

  std::string who_waits() const {
    std::string list;
    for (const Agent& a : agents_)
      if (a.next < a.ops.size())
        list += fmt::format("{}{} waits on {}", list.empty() ? "" : ", ", a.name, text(a.ops[a.next].object));
    return list;
  }

  std::string describe(const std::string& fault) const {
    std::vector<std::string> blocks, idle;
    for (const Tile& tile : tiles_) {
      blocks.push_back(std::to_string(tile.blocks));
      idle.push_back(std::to_string(tile.idle));
    }
    std::string text = fmt::format("tiles of {} blocks", fmt::join(blocks, ", "));
    if (c_.skips_blocks())
      text += fmt::format(", of which warpgroups pass over {}", fmt::join(tiles_.front().skips, ", "));
    if (c_.skip_idle) text += fmt::format(", with {} warpgroups without rows", fmt::join(idle, ", "));
    return fmt::format("{} ({})", fault, text);
  }

  const KernelSpec& spec_;
  const Config& c_;
  Tiles tiles_;
  const Schedule& schedule_;
  bool turns_ = false;
  std::vector<Agent> agents_;
  // By Object::index().
  std::array<Barrier, kObjects> barriers_{};
  std::array<std::array<Content, kMostBlocks>, kObjects> contents_{};  // by the thread block that loaded it
  std::array<bool, kObjects> granted_{};
  std::string fault_;
};

// Plays all rows of up to so many of these tiles.
std::string play_rows(const KernelSpec& spec, const Schedule& schedule, const Tiles& kinds, int most_tiles) {
  for (int tiles = 1; tiles <= most_tiles; tiles++) {
    std::vector<std::size_t> at(static_cast<std::size_t>(tiles), 0);  // indices into kinds, counted through
    while (true) {
      Tiles row;
      for (std::size_t index : at) row.push_back(kinds[index]);
      for (Simulation::Eager eager : {Simulation::Eager::producer, Simulation::Eager::consumers})
        if (std::string fault = Simulation(spec, schedule, row, eager).run(); !fault.empty()) return fault;
      std::size_t i = 0;
      while (i < at.size() && ++at[i] == kinds.size()) at[i++] = 0;
      if (i == at.size()) break;
    }
  }
  return {};
}

Tiles of_lengths(std::initializer_list<int> lengths, const Skips& skips, int idle = 0) {
  Tiles tiles;
  for (int blocks : lengths) tiles.push_back({blocks, skips, idle});
  return tiles;
}

}  // namespace

std::string simulate(const KernelSpec& spec, const Schedule& schedule) {
  const Config& c = spec.config;
  const auto up_to = [&](int tiles) { return c.grid == Grid::plain ? 1 : tiles; };
  const std::vector<Skips> skips = all_skips(spec);
  const Skips& most = skips.front();
  // A warpgroup passes over blocks only in tiles that have more of them; behind as many as can be passed over come some
  // that are not. All rows of all kinds would take long.
  const int passed = most.front(), longest = passed + 3;
  Tiles short_ones = of_lengths({1, 2, 3}, most);
  if (passed > 2) short_ones.push_back({passed + 1, most});
  if (std::string fault = play_rows(spec, schedule, short_ones, up_to(3)); !fault.empty()) return fault;
  for (const Skips& some : skips)
    if (passed > 0)
      if (std::string fault = play_rows(spec, schedule, of_lengths({1, passed + 1, longest}, some), up_to(2));
          !fault.empty())
        return fault;
  for (int idle = 1; c.skip_idle && idle < c.cluster * c.consumers; idle++) {
    Tiles tiles = of_lengths({1, longest}, most);
    for (const Tile& tile : of_lengths({1, longest}, most, idle)) tiles.push_back(tile);
    if (std::string fault = play_rows(spec, schedule, tiles, up_to(idle == 1 ? 3 : 2)); !fault.empty()) return fault;
  }
  return {};
}

}  // namespace attune::codegen

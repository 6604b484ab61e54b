#include "codegen/backward/tunables.h"

#include <array>

#include "codegen/names.h"

namespace attune::codegen::backward {
namespace {

constexpr std::array<const char*, 3> kSplits{"rows", "columns", "products"};
constexpr std::array<const char*, 3> kDqPaths{"bulk", "direct", "pass"};
constexpr std::array<const char*, 2> kVisits{"ascending", "descending"};
constexpr std::array<const char*, 2> kSums{"zeroed", "stored"};
constexpr std::array<const char*, 2> kFinishes{"launch", "ring"};
constexpr std::array<const char*, 2> kPrepares{"launch", "inside"};
constexpr std::array<const char*, 3> kDkvPaths{"staged", "direct", "parts"};
constexpr std::array<const char*, 2> kBoundaries{"drained", "overlapped"};

}  // namespace

Fields kernel_fields(const Tunables& t) {
  return {{"block_m", std::to_string(t.block_m)},
          {"split", name_of(kSplits, t.split)},
          {"k_stages", std::to_string(t.k_stages)},
          {"q_stages", std::to_string(t.q_stages)},
          {"do_stages", std::to_string(t.do_stages)},
          {"ds_stages", std::to_string(t.ds_stages)},
          {"lag", flag(t.lag)},
          {"ping_pong", flag(t.ping_pong)},
          {"late_fences", flag(t.late_fences)},
          {"prefetch", flag(t.prefetch)},
          {"v_in_registers", flag(t.v_in_registers)},
          {"skip", flag(t.skip)},
          {"visits", name_of(kVisits, t.visits)},
          {"dq", name_of(kDqPaths, t.dq)},
          {"sums", name_of(kSums, t.sums)},
          {"dkv", name_of(kDkvPaths, t.dkv)},
          {"boundary", name_of(kBoundaries, t.boundary)},
          {"persistent", flag(t.persistent)},
          {"finish", name_of(kFinishes, t.finish)},
          {"prepare", name_of(kPrepares, t.prepare)},
          {"registers", std::to_string(t.registers)}};
}

bool set_field(Tunables& t, std::string_view key, std::string_view value) {
  const auto number = [&](int low, int high) {
    return static_cast<int>(parse_int("config " + std::string(key), value, low, high));
  };
  const auto truth = [&] { return parse_bool("config " + std::string(key), value); };
  if (key == "block_m")
    t.block_m = number(16, 128);
  else if (key == "split")
    t.split = value_of<Split>(kSplits, key, value);
  else if (key == "k_stages")
    t.k_stages = number(1, 2);
  else if (key == "q_stages")
    t.q_stages = number(1, 4);
  else if (key == "do_stages")
    t.do_stages = number(1, 4);
  else if (key == "ds_stages")
    t.ds_stages = number(1, 4);
  else if (key == "lag")
    t.lag = truth();
  else if (key == "ping_pong")
    t.ping_pong = truth();
  else if (key == "late_fences")
    t.late_fences = truth();
  else if (key == "prefetch")
    t.prefetch = truth();
  else if (key == "v_in_registers")
    t.v_in_registers = truth();
  else if (key == "skip")
    t.skip = truth();
  else if (key == "visits")
    t.visits = value_of<Visits>(kVisits, key, value);
  else if (key == "dq")
    t.dq = value_of<DqPath>(kDqPaths, key, value);
  else if (key == "sums")
    t.sums = value_of<Sums>(kSums, key, value);
  else if (key == "dkv")
    t.dkv = value_of<DkvPath>(kDkvPaths, key, value);
  else if (key == "boundary")
    t.boundary = value_of<Boundary>(kBoundaries, key, value);
  else if (key == "persistent")
    t.persistent = truth();
  else if (key == "finish")
    t.finish = value_of<Finish>(kFinishes, key, value);
  else if (key == "prepare")
    t.prepare = value_of<Prepare>(kPrepares, key, value);
  else if (key == "registers")
    t.registers = number(24, 240);
  else if (key == "workers")
    t.workers = number(0, 1 << 20);
  else if (key == "section")
    t.section = number(0, 1 << 20);
  else if (key == "parts")
    t.parts = number(0, 1 << 20);
  else
    return false;
  return true;
}

std::string keys() {
  std::string all;
  for (const auto& [key, value] : kernel_fields({})) all += key + ", ";
  return all + "workers, section, parts";
}

}  // namespace attune::codegen::backward

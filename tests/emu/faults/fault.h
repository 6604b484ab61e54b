// A planted fault: what is broken, and what the emulator has to say about it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include <attune/emulator.h>

#include "tests/emu/faults/attention_launch.h"

namespace attune::emulator {

/// A race is one in every order of the threads, but what it leads to (a deadlock, a wrong phase) is not.
enum class Seeds {
  every,   ///< the finding appears with every seed
  others,  ///< with some; with the others something else is found
  some,    ///< with some; with the others perhaps nothing
};

struct Expectation {
  std::optional<FindingKind> kind;  ///< nothing: only the output is wrong
  std::string message;              ///< part of it
  std::string instruction;          ///< part of the PTX instruction that is named
  Seeds seeds = Seeds::every;
};

/// An edit of an emitted attention kernel: `find` stands exactly `times` times in its source.
struct AttentionFault {
  std::string name;
  std::string base;  ///< of attention_bases()
  std::string find;
  int times;
  std::string replace;
  Expectation expected;
  LaunchEdits launch = {};
};

/// faults/<file>.cu compiled with -DFAULT=<number>.
struct SmallFault {
  std::string name;
  std::string file;
  int number;
  Expectation expected;
  std::size_t compared = 1024;  ///< floats of the output, from the first, that are as without the fault
};

}  // namespace attune::emulator

// Memory, launches and reports of the machine.

#include "tests/emu/kernel_text.h"
#include "tests/emu/native_kernel.h"
#include "tests/emu/refusal.h"

using namespace attune;
using namespace attune::emulator;
using namespace attune::emulator::tests;

namespace {

void nothing(ThreadContext*) {}

/// One access of one thread at parameter 0.
template <typename T>
void load_one(ThreadContext* c) {
  load<T>(c, AddressSpace::global, parameter<std::uint64_t>(c, 0), 1);
}
void store_one(ThreadContext* c) { store(c, AddressSpace::global, parameter<std::uint64_t>(c, 0), 1u, 1); }

Report access(Machine& machine, Entry entry, const void* address) {
  Launch launch = threads(1);
  launch.parameters[0] = reinterpret_cast<std::uintptr_t>(address);
  return run(machine, entry, launch);
}

}  // namespace

TEST_CASE("allocations") {
  MachineOptions options;
  options.memory_limit = 1 << 20;
  const std::unique_ptr<Machine> machine = Machine::create(options);
  auto* memory = static_cast<char*>(machine->allocate(1000));
  CHECK(reinterpret_cast<std::uintptr_t>(memory) % 256 == 0);
  CHECK(machine->allocated() == 1000);
  CHECK(machine->owns(memory, 1000));
  CHECK(machine->owns(memory + 999, 1));
  CHECK_FALSE(machine->owns(memory, 1001));
  CHECK_FALSE(machine->owns(memory - 1, 1));
  CHECK(contains(refusal(ErrorCode::out_of_memory, [&] { machine->allocate(1 << 20); }),
                 "1000 of 1048576 are allocated"));
  refusal(ErrorCode::invalid_argument, [&] { machine->free(memory + 1); });
  refusal(ErrorCode::invalid_argument, [&] { machine->unbind(memory); });
  machine->free(nullptr);
  machine->free(memory);
  CHECK(machine->allocated() == 0);
  CHECK_FALSE(machine->owns(memory, 1));
  refusal(ErrorCode::invalid_argument, [&] { machine->free(memory); });
  refusal(ErrorCode::invalid_argument, [&] { machine->mark_written(memory, 4); });
  CHECK(machine->allocate(0) != nullptr);
}

TEST_CASE("bindings") {
  const std::unique_ptr<Machine> machine = Machine::create();
  std::vector<std::uint32_t> values(16, 7);
  machine->bind(values.data(), 32, true, false);
  CHECK(machine->owns(&values[7], 4));
  CHECK_FALSE(machine->owns(&values[8], 4));
  refusal(ErrorCode::invalid_argument, [&] { machine->bind(&values[4], 4, true, true); });
  refusal(ErrorCode::invalid_argument, [&] { machine->bind(values.data(), 64, true, true); });
  refusal(ErrorCode::invalid_argument, [&] { machine->bind(nullptr, 64, true, true); });
  machine->bind(&values[8], 32, false, true);
  CHECK(access(*machine, load_one<std::uint32_t>, &values[3]).clean());
  CHECK(contains(find(access(*machine, store_one, &values[3]), FindingKind::out_of_bounds).message,
                 "store of 4 bytes at offset 12 of binding of 32 bytes, which is read-only"));
  CHECK(has(access(*machine, load_one<std::uint32_t>, &values[9]), FindingKind::uninitialised_read));
  CHECK(access(*machine, store_one, &values[9]).clean());
  CHECK(values[9] == 1);
  CHECK(access(*machine, load_one<std::uint32_t>, &values[9]).clean());
  machine->unbind(values.data());
  CHECK(has(access(*machine, load_one<std::uint32_t>, &values[3]), FindingKind::out_of_bounds));
}

TEST_CASE("what was written lasts from launch to launch") {
  const std::unique_ptr<Machine> machine = Machine::create();
  auto* memory = static_cast<std::uint32_t*>(machine->allocate(64));
  CHECK(has(access(*machine, load_one<std::uint32_t>, memory), FindingKind::uninitialised_read));
  CHECK(access(*machine, store_one, memory).clean());
  CHECK(access(*machine, load_one<std::uint32_t>, memory).clean());
  CHECK(has(access(*machine, load_one<std::uint64_t>, memory), FindingKind::uninitialised_read));
  machine->mark_written(memory + 1, 4);
  CHECK(access(*machine, load_one<std::uint64_t>, memory).clean());
  machine->mark_written(memory, 64, false);
  CHECK(has(access(*machine, load_one<std::uint64_t>, memory), FindingKind::uninitialised_read));
}

TEST_CASE("addresses at fault") {
  const std::unique_ptr<Machine> machine = Machine::create();
  auto* memory = static_cast<char*>(machine->allocate(4096));
  const auto message = [&](Entry entry, const void* address, FindingKind kind) {
    return find(access(*machine, entry, address), kind).message;
  };
  CHECK(contains(message(load_one<std::uint32_t>, memory + 4096, FindingKind::out_of_bounds),
                 "right behind the allocation of 4096 bytes"));
  CHECK(contains(message(store_one, memory + 4112, FindingKind::out_of_bounds),
                 "16 bytes behind the allocation of 4096 bytes"));
  CHECK(contains(message(load_one<std::uint32_t>, memory - 8, FindingKind::out_of_bounds),
                 "8 bytes before the allocation of 4096 bytes"));
  CHECK(contains(message(load_one<std::uint32_t>, nullptr, FindingKind::out_of_bounds), "is null"));
  CHECK(contains(message(load_one<std::uint32_t>, memory + 2, FindingKind::misaligned), "is not a multiple of 4"));
  // Without checks of synchronisation these are found, too.
  Launch launch = threads(1);
  launch.checks = false;
  launch.parameters[0] = reinterpret_cast<std::uintptr_t>(memory + 4096);
  CHECK(has(run(*machine, load_one<std::uint32_t>, launch), FindingKind::out_of_bounds));
}

TEST_CASE("shared and local addresses at fault") {
  const auto message = [](Entry entry, FindingKind kind) { return find(run(entry, threads(1)), kind).message; };
  CHECK(contains(
      message([](ThreadContext* c) { store(c, AddressSpace::shared, 1020, 1u, 1); }, FindingKind::out_of_bounds),
      "lies in the first 1024 bytes, which are the system's"));
  CHECK(contains(message([](ThreadContext* c) { store(c, AddressSpace::shared, kShared + 4096, 1u, 1); },
                         FindingKind::out_of_bounds),
                 "ends 4 bytes past the end of the 4096 bytes of shared memory"));
  CHECK(contains(message([](ThreadContext* c) { load<std::uint32_t>(c, AddressSpace::shared, kShared + 40, 1); },
                         FindingKind::uninitialised_read),
                 "shared memory"));
  CHECK(contains(
      message([](ThreadContext* c) { load<std::uint32_t>(c, AddressSpace::global, kSharedWindow + kShared, 1); },
              FindingKind::out_of_bounds),
      "global address"));
  CHECK(
      contains(message([](ThreadContext* c) { store(c, AddressSpace::local, 64, 1u, 1); }, FindingKind::out_of_bounds),
               "past the 64 bytes of the thread's local memory"));
  CHECK(contains(message(
                     [](ThreadContext* c) {
                       store(c, AddressSpace::generic, kLocalWindow + 8, 1u, 1);
                       load<std::uint64_t>(c, AddressSpace::local, 8, 2);
                     },
                     FindingKind::uninitialised_read),
                 "byte 12 was never written"));
}

TEST_CASE("generic addresses") {
  clean_results<std::uint32_t>(
      [](ThreadContext* c) {
        const std::uint64_t shared = att_cvta_from(c, kShared, AddressSpace::shared);
        store(c, AddressSpace::generic, shared, 5u, 1);
        CHECK(load<std::uint32_t>(c, AddressSpace::shared, att_cvta_to(c, shared, AddressSpace::shared, 2), 3) == 5);
        CHECK(att_is_space(c, shared, AddressSpace::shared) == 1);
        CHECK(att_is_space(c, shared, AddressSpace::global) == 0);
        const std::uint64_t local = att_cvta_from(c, 4, AddressSpace::local);
        CHECK(att_cvta_to(c, local, AddressSpace::local, 4) == 4);
        CHECK(att_is_space(c, local, AddressSpace::local) == 1);
        CHECK(att_is_space(c, parameter<std::uint64_t>(c, 0), AddressSpace::global) == 1);
        result(c, 0u);
      },
      threads(1));
}

TEST_CASE("threads know where they are") {
  Launch launch = threads(1);
  launch.options.block = {4, 3, 2};
  launch.options.grid = {2, 6, 2};
  launch.options.cluster = {1, 3, 1};
  const auto values = clean_results<std::uint64_t>(
      [](ThreadContext* c) {
        const auto special = [&](SpecialRegister which) { return att_special(c, static_cast<std::uint32_t>(which)); };
        CHECK(special(SpecialRegister::tid_x) + 4 * special(SpecialRegister::tid_y) +
                  12 * special(SpecialRegister::tid_z) ==
              c->index);
        CHECK(special(SpecialRegister::ntid_y) == 3);
        CHECK(special(SpecialRegister::nctaid_y) == 6);
        CHECK(special(SpecialRegister::ctaid_y) ==
              3 * special(SpecialRegister::clusterid_y) + special(SpecialRegister::cluster_ctaid_y));
        CHECK(special(SpecialRegister::cluster_ctarank) == special(SpecialRegister::cluster_ctaid_y));
        CHECK(special(SpecialRegister::nclusterid_y) == 2);
        CHECK(special(SpecialRegister::lanemask_lt) == (1u << c->lane) - 1);
        CHECK(special(SpecialRegister::lanemask_gt) + special(SpecialRegister::lanemask_le) == 0xFFFFFFFF);
        CHECK(special(SpecialRegister::dynamic_smem_size) == 4096);
        result(c, special(SpecialRegister::ctaid_x) + 10 * special(SpecialRegister::ctaid_y) +
                      100 * special(SpecialRegister::ctaid_z));
      },
      launch);
  // Every block of the grid ran once.
  std::vector<int> seen(200);
  for (std::size_t i = 0; i < values.size(); i += 24) ++seen[values[i]];
  for (std::uint64_t z = 0; z < 2; ++z)
    for (std::uint64_t y = 0; y < 6; ++y)
      for (std::uint64_t x = 0; x < 2; ++x) CHECK(seen[x + 10 * y + 100 * z] == 1);
}

TEST_CASE("traps, assertions and printing") {
  const Report trap = run(
      [](ThreadContext* c) {
        if (c->index == 3) att_trap(c, 4);
        sync(c, 0, 0, 5);
      },
      threads(32));
  REQUIRE(trap.findings.size() == 1);
  CHECK(trap.findings[0].kind == FindingKind::trap);
  CHECK(trap.findings[0].thread.thread.x == 3);
  CHECK(contains(trap.text(), "trap: the kernel executed a trap"));

  const std::unique_ptr<Machine> machine = Machine::create();
  static char text[] = "%d %5.2f|%-4u|%s %llx %c%%\n\0word";
  machine->bind(text, sizeof text, true, false);
  const auto kernel = [](ThreadContext* c) {
    const auto format = reinterpret_cast<std::uintptr_t>(text);
    const std::uint64_t at = kLocalWindow;
    store(c, AddressSpace::generic, at, -3, 1);
    store(c, AddressSpace::generic, at + 8, 1.5, 1);
    store(c, AddressSpace::generic, at + 16, 7u, 1);
    store(c, AddressSpace::generic, at + 24, std::uint64_t{format + sizeof text - 5}, 1);
    store(c, AddressSpace::generic, at + 32, std::uint64_t{0xABCDEF0123}, 1);
    store(c, AddressSpace::generic, at + 40, 'x', 1);
    CHECK(att_vprintf(c, format, at, 2) == 6);
    att_assert_fail(c, format + sizeof text - 5, format + sizeof text - 5, 12, format + sizeof text - 5, 3);
  };
  const Report printed = run(*machine, kernel, threads(1));
  CHECK(printed.output == "-3  1.50|7   |word abcdef0123 x%\nassertion `word` failed in word (word:12)\n");
  CHECK(contains(find(printed, FindingKind::trap).message, "assertion `word` failed in word (word:12)"));
}

TEST_CASE("a field is no wider than 512 characters, whatever is asked for") {
  const std::unique_ptr<Machine> machine = Machine::create();
  static char text[] = "%2000000000d|%-*d|%.2000000000f|%05.1f";
  machine->bind(text, sizeof text, true, false);
  const auto kernel = [](ThreadContext* c) {
    const std::uint64_t at = kLocalWindow;
    store(c, AddressSpace::generic, at, 1, 1);
    store(c, AddressSpace::generic, at + 4, 2000000000, 1);
    store(c, AddressSpace::generic, at + 8, 2, 1);
    store(c, AddressSpace::generic, at + 16, 0.5, 1);
    store(c, AddressSpace::generic, at + 24, 2.25, 1);
    att_vprintf(c, reinterpret_cast<std::uintptr_t>(text), at, 2);
  };
  const Report printed = run(*machine, kernel, threads(1));
  CHECK(printed.seconds < 1);
  CHECK(printed.output.size() < 3 * 512 + 20);
  CHECK(contains(printed.output, "1|2 "));
  CHECK(printed.output.ends_with("|002.2"));
}

TEST_CASE("limits") {
  Launch launch = threads(64, 1000);
  launch.options.instruction_limit = 100000;
  const Report report = run(
      [](ThreadContext* c) {
        for (;;) loop(c, 10, 2);
      },
      launch);
  REQUIRE(report.findings.size() == 1);
  CHECK(report.findings[0].kind == FindingKind::no_progress);
  CHECK(report.instructions > 100000);
  CHECK(report.instructions < 200000);

  launch.options.max_findings = 3;
  const Report many = run(
      [](ThreadContext* c) {
        for (std::uint32_t site = 1; site < 50; ++site) store(c, AddressSpace::shared, 0, 1u, site);
        sync(c, 0, 0, 60);
      },
      launch);
  CHECK(many.findings.size() == 3);
  CHECK(many.findings[0].count >= 1);
}

TEST_CASE("launches that a device would refuse") {
  const std::unique_ptr<Machine> machine = Machine::create();
  const auto refused = [&](auto change, ErrorCode code = ErrorCode::invalid_argument) {
    Launch launch = threads(32);
    std::shared_ptr<ProgramImage> image = native_image(nothing);
    std::string name = "kernel";
    std::uint64_t value = 0;
    void* arguments[kParameters] = {&value, &value, &value, &value};
    change(&launch.options, &image->kernels[0], &name, arguments);
    const LoadedProgram program(image, 0, 0);
    return refusal(code, [&] { machine->launch(program, name, launch.options, arguments); });
  };
  using Options = LaunchOptions*;
  using Kernel = KernelCode*;
  using Name = std::string*;
  CHECK(contains(refused([](Options, Kernel, Name name, void**) { *name = "other"; }, ErrorCode::not_found),
                 "no 'other' (it has: kernel)"));
  CHECK(contains(refused([](Options o, Kernel, Name, void**) { o->block.x = 0; }), "block: (0,1,1)"));
  CHECK(contains(refused([](Options o, Kernel, Name, void**) { o->block.x = 1025; }), "1 to 1024 threads"));
  CHECK(contains(refused([](Options o, Kernel, Name, void**) { o->block = {64, 32, 1}; }), "(64,32,1)"));
  CHECK(contains(refused([](Options o, Kernel, Name, void**) { o->block = {1, 1, 65}; }), "(1,1,65)"));
  CHECK(contains(refused([](Options, Kernel k, Name, void**) { k->info.max_threads = 16; }),
                 "more than the 16 of .maxntid"));
  CHECK(contains(refused([](Options, Kernel k, Name, void**) { k->info.required_block = {64, 1, 1}; }), ".reqntid"));
  CHECK(contains(refused([](Options o, Kernel, Name, void**) { o->grid.y = 65536; }), "grid: (1,65536,1)"));
  CHECK(contains(refused([](Options o, Kernel, Name, void**) { o->cluster.x = 17; }), "1 to 16 blocks"));
  CHECK(contains(refused([](Options o, Kernel, Name, void**) {
                   o->grid.x = 3;
                   o->cluster.x = 2;
                 }),
                 "not a multiple of the cluster"));
  CHECK(contains(refused([](Options o, Kernel k, Name, void**) {
                   o->grid.x = 4;
                   o->cluster.x = 4;
                   k->required_cluster = {2, 1, 1};
                 }),
                 ".reqnctapercluster"));
  CHECK(contains(refused([](Options o, Kernel, Name, void**) { o->dynamic_shared_bytes = 232449; }), "232448"));
  CHECK(contains(refused([](Options o, Kernel k, Name, void**) {
                   o->dynamic_shared_bytes = 232448;
                   k->info.static_shared_bytes = 16;
                 }),
                 "16 of the kernel's own"));
  CHECK(contains(refused([](Options o, Kernel, Name, void**) {
                   o->block.x = 1024;
                   o->registers_per_thread = 72;
                 }),
                 "registers_per_thread: 72 for 1024 threads"));
  CHECK(contains(refused([](Options o, Kernel, Name, void**) { o->resident_blocks = 0; }), "resident_blocks"));
  CHECK(contains(refused([](Options o, Kernel, Name, void**) { o->max_findings = 0; }), "max_findings"));
  CHECK(contains(refused([](Options, Kernel, Name, void** arguments) { arguments[2] = nullptr; }),
                 "parameter 2 of kernel"));
}

TEST_CASE("a program of somebody else") {
  class Other final : public Program {
   public:
    const std::vector<KernelInfo>& kernels() const override { return kernels_; }
    const std::vector<ModuleVariable>& variables() const override { return variables_; }
    void reset_variables() const override {}
    double parse_seconds() const override { return 0; }
    double translate_seconds() const override { return 0; }

   private:
    std::vector<KernelInfo> kernels_;
    std::vector<ModuleVariable> variables_;
  };
  refusal(ErrorCode::invalid_argument, [] { Machine::create()->launch(Other(), "kernel", LaunchOptions(), nullptr); });
}

TEST_CASE("variables: the host finds them by name, and a program has its own") {
  const auto program = Program::load(count_text()), other = Program::load(count_text());
  const auto machine = Machine::create();
  auto* out = static_cast<std::uint32_t*>(machine->allocate(4));
  void* arguments[] = {&out};
  const auto count = [&](const Program& one) {
    const Report report = machine->launch(one, "count", LaunchOptions(), arguments);
    CHECK_MESSAGE(report.clean(), report.text());
    return *out;
  };
  REQUIRE(program->variables().size() == 2);
  const ModuleVariable& counter = program->variables()[0];
  CHECK(counter.name == "counter");
  CHECK(counter.bytes == 4);
  CHECK(!counter.constant);
  const ModuleVariable& step = program->variables()[1];
  CHECK(step.name == "step");
  CHECK(step.constant);
  CHECK(count(*program) == 6);
  CHECK(count(*program) == 7);
  CHECK(count(*other) == 6);
  *static_cast<std::uint32_t*>(counter.data) = 100;
  *static_cast<std::uint32_t*>(step.data) = 10;
  CHECK(count(*program) == 110);
  CHECK(*static_cast<const std::uint32_t*>(counter.data) == 110);
  program->reset_variables();
  CHECK(count(*program) == 6);
}

TEST_CASE("variables of the module") {
  alignas(16) static std::uint32_t table[4] = {1, 2, 3, 4};
  std::shared_ptr<ProgramImage> image = native_image([](ThreadContext* c) {
    const auto address = reinterpret_cast<std::uintptr_t>(table);
    CHECK(load<std::uint32_t>(c, AddressSpace::constant, address + 8, 1) == 3);
    CHECK(att_is_space(c, address, AddressSpace::constant) == 1);
    store(c, AddressSpace::generic, address, 9u, 2);
    load<std::uint32_t>(c, AddressSpace::generic, address + 16, 3);
  });
  GlobalVariable variable;
  variable.name = "table";
  variable.bytes = sizeof table;
  variable.constant = true;
  image->globals.push_back(variable);
  image->global_addresses.push_back(reinterpret_cast<std::uint8_t*>(table));
  const LoadedProgram program(image, 0, 0);
  std::uint64_t value = 0;
  void* arguments[kParameters] = {&value, &value, &value, &value};
  LaunchOptions options;
  const Report report = Machine::create()->launch(program, "kernel", options, arguments);
  REQUIRE(report.findings.size() == 2);
  CHECK(contains(report.findings[0].message, "offset 0 of variable table, which is read-only"));
  CHECK(contains(report.findings[1].message, "right behind the variable table"));
}

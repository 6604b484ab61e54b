#include "runtime/cubin.h"

#include <llvm/BinaryFormat/ELF.h>
#include <llvm/Object/ELF.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/error.h"

namespace attune::runtime {
namespace {

using llvm::object::ELF64LE;
using Elf = llvm::object::ELFFile<ELF64LE>;
using Section = ELF64LE::Shdr;

constexpr std::uint16_t kMachineCuda = 190;
constexpr std::uint8_t kAbiCuda13 = 0x41;  // moved the architecture by a byte
constexpr std::size_t kMaxSections = 1 << 16;
constexpr std::int64_t kInstructionBytes = 16;

// Attributes of .nv.info: a format byte, the attribute, a 16-bit value or size.
constexpr std::uint8_t kFormatSized = 4;
constexpr std::uint8_t kMaxThreads = 0x05;
constexpr std::uint8_t kFrameSize = 0x11;
constexpr std::uint8_t kRegisters = 0x2f;

[[noreturn]] void malformed(const std::string& what) {
  fail(ErrorCode::invalid_argument, "cubin: {}; this is no whole CUDA ELF file", what);
}

template <typename T>
T expect(llvm::Expected<T> value, const char* what) {
  if (!value) {
    // Taking the text also marks the error as handled, which LLVM insists on.
    malformed(fmt::format("{}: {}", what, llvm::toString(value.takeError())));
  }
  return *std::move(value);
}

std::uint32_t word_at(llvm::ArrayRef<std::uint8_t> bytes, std::size_t offset) {
  std::uint32_t word = 0;
  std::memcpy(&word, bytes.data() + offset, sizeof word);
  return word;
}

// Calls visit(attribute, payload) for each sized attribute of a .nv.info section.
template <typename Visit>
void for_each_attribute(llvm::ArrayRef<std::uint8_t> bytes, const Visit& visit) {
  std::size_t at = 0;
  while (at + 4 <= bytes.size()) {
    const std::uint8_t format = bytes[at], attribute = bytes[at + 1];
    const std::size_t size = bytes[at + 2] | bytes[at + 3] << 8;
    at += 4;
    if (format != kFormatSized) continue;  // the value stood in the two bytes
    if (size > bytes.size() - at) malformed(".nv.info: an attribute reaches beyond its section");
    visit(attribute, bytes.slice(at, size));
    at += size;
  }
}

class Reader {
 public:
  explicit Reader(const Elf& elf) : elf_(elf), sections_(expect(elf.sections(), "section table")) {
    if (sections_.size() > kMaxSections) malformed(fmt::format("{} sections", sections_.size()));
    names_ = expect(elf.getSectionStringTable(sections_), "section names");
  }

  CubinInfo read() {
    CubinInfo info;
    const auto& header = elf_.getHeader();
    const std::uint32_t flags = header.e_flags;
    info.sm = static_cast<int>((header.e_ident[llvm::ELF::EI_OSABI] == kAbiCuda13 ? flags >> 8 : flags) & 0xff);
    read_kernels();
    for (const Section& section : sections_) {
      const std::string name = name_of(section);
      if (name == ".nv.info")
        read_module_attributes(section);
      else if (name.starts_with(".nv.info."))
        read_kernel_attributes(section, name.substr(9));
      else if (name.starts_with(".nv.shared."))
        read_shared(section, name.substr(11));
    }
    for (auto& [name, kernel] : kernels_) info.kernels.push_back(std::move(kernel));
    return info;
  }

 private:
  std::string name_of(const Section& section) {
    return expect(elf_.getSectionName(section, names_), "section name").str();
  }
  llvm::ArrayRef<std::uint8_t> bytes_of(const Section& section) {
    return expect(elf_.getSectionContents(section), "section contents");
  }

  // A kernel is a .text.<name> section; a device function that was not inlined has one too, but no global symbol.
  void read_kernels() {
    for (const Section& section : sections_) {
      const std::string name = name_of(section);
      if (!name.starts_with(".text.")) continue;
      CubinKernel& kernel = kernels_[name.substr(6)];
      kernel.name = name.substr(6);
      kernel.code_bytes = static_cast<std::int64_t>(bytes_of(section).size());
      kernel.instructions = kernel.code_bytes / kInstructionBytes;
    }
  }

  std::string symbol_name(std::uint32_t index) {
    for (const Section& section : sections_) {
      if (section.sh_type != llvm::ELF::SHT_SYMTAB) continue;
      const auto symbols = expect(elf_.symbols(&section), "symbol table");
      if (index >= symbols.size()) malformed(fmt::format("symbol {} of {}", index, symbols.size()));
      const llvm::StringRef strings = expect(elf_.getStringTableForSymtab(section, sections_), "symbol names");
      return expect(symbols[index].getName(strings), "symbol name").str();
    }
    malformed("there is no symbol table");
  }

  void read_module_attributes(const Section& section) {
    for_each_attribute(bytes_of(section), [&](std::uint8_t attribute, llvm::ArrayRef<std::uint8_t> payload) {
      if ((attribute != kRegisters && attribute != kFrameSize) || payload.size() < 8) return;
      const auto it = kernels_.find(symbol_name(word_at(payload, 0)));
      if (it == kernels_.end()) return;
      const int value = static_cast<int>(word_at(payload, 4) & 0x7fffffff);
      (attribute == kRegisters ? it->second.registers : it->second.stack_bytes) = value;
    });
  }

  void read_kernel_attributes(const Section& section, const std::string& kernel) {
    const auto it = kernels_.find(kernel);
    if (it == kernels_.end()) return;
    for_each_attribute(bytes_of(section), [&](std::uint8_t attribute, llvm::ArrayRef<std::uint8_t> payload) {
      if (attribute != kMaxThreads || payload.size() < 12) return;
      std::int64_t threads = 1;
      for (const std::size_t offset : {0, 4, 8}) {
        threads = std::min<std::int64_t>(threads * word_at(payload, offset), 1 << 20);
      }
      it->second.max_threads = static_cast<int>(threads);
    });
  }

  void read_shared(const Section& section, const std::string& kernel) {
    const auto it = kernels_.find(kernel);
    if (it != kernels_.end()) it->second.shared_bytes = static_cast<std::int64_t>(section.sh_size & 0x7fffffff);
  }

  const Elf& elf_;
  Elf::Elf_Shdr_Range sections_;
  llvm::StringRef names_;
  std::map<std::string, CubinKernel> kernels_;
};

}  // namespace

CubinInfo read_cubin(std::string_view bytes) {
  if (bytes.size() < sizeof(ELF64LE::Ehdr)) malformed(fmt::format("{} bytes are too few", bytes.size()));
  // The ELF structures are read in place, so they must lie aligned as they do in a file that was mapped.
  const std::vector<std::uint64_t> aligned = [&] {
    std::vector<std::uint64_t> words(bytes.size() / sizeof(std::uint64_t) + 1);
    std::memcpy(words.data(), bytes.data(), bytes.size());
    return words;
  }();
  const llvm::StringRef image(reinterpret_cast<const char*>(aligned.data()), bytes.size());
  if (!image.starts_with("\x7f"
                         "ELF"))
    malformed("the first bytes are not those of an ELF file");
  const unsigned char elf_class = static_cast<unsigned char>(image[llvm::ELF::EI_CLASS]);
  const unsigned char data = static_cast<unsigned char>(image[llvm::ELF::EI_DATA]);
  if (elf_class != llvm::ELF::ELFCLASS64 || data != llvm::ELF::ELFDATA2LSB) malformed("not 64-bit little-endian");
  const Elf elf = expect(Elf::create(image), "header");
  if (elf.getHeader().e_machine != kMachineCuda) {
    malformed(fmt::format("machine {} is not CUDA's", static_cast<int>(elf.getHeader().e_machine)));
  }
  return Reader(elf).read();
}

}  // namespace attune::runtime

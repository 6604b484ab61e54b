#include "cli/files.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace attune::cli {
namespace {

namespace fs = std::filesystem;

void write_to(const fs::path& file, std::string_view bytes) {
  errno = 0;
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) fail(ErrorCode::io, "{}: cannot be written ({})", file.string(), std::strerror(errno));
}

}  // namespace

std::string read_file(const std::string& path, std::uint64_t limit) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) fail(ErrorCode::not_found, "{}: no such file", path);
  if (fs::is_directory(status)) fail(ErrorCode::io, "{}: is a folder, not a file", path);
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::string bytes;
  char block[1 << 16];
  while (in.read(block, sizeof block) || in.gcount() > 0) {
    bytes.append(block, static_cast<std::size_t>(in.gcount()));
    if (bytes.size() > limit) fail(ErrorCode::io, "{}: is larger than {} bytes", path, limit);
  }
  if (!in.eof()) fail(ErrorCode::io, "{}: cannot be read ({})", path, std::strerror(errno));
  return bytes;
}

void write_file(const std::string& path, std::string_view bytes) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) return write_to(path, bytes);
  // A link keeps pointing to the file: what it points to is replaced.
  fs::path target = path;
  if (fs::is_symlink(fs::symlink_status(path, error))) target = fs::canonical(path, error);
  const fs::path beside = target.string() + ".part-" + std::to_string(getpid());
  try {
    write_to(beside, bytes);
    fs::rename(beside, target, error);
    if (error) fail(ErrorCode::io, "{}: cannot be written ({})", path, error.message());
  } catch (const Error&) {
    fs::remove(beside, error);
    throw;
  }
}

}  // namespace attune::cli

#include "cache/system.h"

#include <limits.h>
#include <signal.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

namespace attune::cache {
namespace {

// f_type of file systems whose locks or shared mappings do not hold between machines. FUSE is among them because what
// stands behind it cannot be seen.
constexpr std::array<std::uint32_t, 19> kNetworkFileSystems = {
    0x00006969,  // NFS
    0x0000517b,  // SMB
    0xfe534d42,  // SMB 2
    0xff534d42,  // CIFS
    0x65735546,  // FUSE, virtiofs, sshfs
    0x00c36400,  // Ceph
    0x0bd00bd0,  // Lustre
    0x47504653,  // GPFS
    0x19830326,  // BeeGFS
    0x01161970,  // GFS2
    0x7461636f,  // OCFS2
    0x01021997,  // 9P
    0x5346414f,  // AFS
    0x6b414653,  // kAFS
    0x73757245,  // Coda
    0xaad7aaea,  // PanFS
    0x786f4256,  // VirtualBox shared folders
    0xbacbacbc,  // VMware shared folders
    0x0000564c,  // NCP
};

std::string read_text(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

struct ProcessState {
  char state = 0;
  std::int64_t start = 0;
};

// proc(5): "pid (name) state ppid ..."; the name may hold spaces and brackets; start time is field 22.
std::optional<ProcessState> process_state(const std::string& pid) {
  const std::string text = read_text("/proc/" + pid + "/stat");
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  ProcessState result;
  fields >> result.state;
  std::string field;
  for (int i = 4; i < 22; ++i) fields >> field;
  fields >> result.start;
  if (!fields) return std::nullopt;
  return result;
}

}  // namespace

std::int64_t System::now_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

bool System::is_network_file_system(const std::string& directory) {
  struct statfs info{};
  if (statfs(directory.c_str(), &info) != 0) return false;
  const auto type = static_cast<std::uint32_t>(info.f_type);
  return std::find(kNetworkFileSystems.begin(), kNetworkFileSystems.end(), type) != kNetworkFileSystems.end();
}

ProcessIdentity System::self() {
  ProcessIdentity identity;
  identity.boot = read_text("/proc/sys/kernel/random/boot_id");
  std::erase(identity.boot, '\n');
  std::array<char, PATH_MAX> name{};
  const ssize_t length = readlink("/proc/self/ns/pid", name.data(), name.size());
  if (length > 0) identity.boot.append(" ").append(name.data(), static_cast<std::size_t>(length));
  identity.pid = getpid();
  if (const auto state = process_state("self")) identity.start = state->start;
  return identity;
}

bool System::may_be_alive(const ProcessIdentity& process) {
  const ProcessIdentity here = self();
  if (process.boot.empty() || process.boot != here.boot) return true;
  if (const auto state = process_state(std::to_string(process.pid))) {
    const bool gone = state->state == 'Z' || state->state == 'X';  // killed, and its parent has not noticed yet
    return !gone && (process.start == 0 || state->start == process.start);
  }
  return kill(static_cast<pid_t>(process.pid), 0) == 0 || errno != ESRCH;
}

System& real_system() {
  static System system;
  return system;
}

}  // namespace attune::cache

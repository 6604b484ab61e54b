// attune-worker: runs kernels for the tuner in a process of its own, which may hang or crash and be killed.
// It is started by attune; by hand: echo '{"cmd":"hello"}' | attune-worker --device 0

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "base/error.h"
#include "runtime/driver_device.h"
#include "runtime/nvml.h"
#include "tuner/measure/session.h"

namespace {

using attune::ErrorCode;
using attune::fail;

constexpr int kUsage = 2;

struct Options {
  std::string device = "0";  // ordinal or UUID
  pid_t parent = 0;          // 0: none to die with
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if ((flag != "--device" && flag != "--parent") || i + 1 == argc) {
      fail(ErrorCode::invalid_argument, "argument: '{}' (allowed: --device ORDINAL|UUID, --parent PID)", flag);
    }
    const std::string_view value = argv[++i];
    if (flag == "--device") {
      options.device = value;
    } else {
      const auto result = std::from_chars(value.data(), value.data() + value.size(), options.parent);
      if (result.ec != std::errc() || options.parent < 1)
        fail(ErrorCode::invalid_argument, "--parent: '{}' is no process id", value);
    }
  }
  return options;
}

// The process must not outlive the tuner, however that ends; and it is the tuner that decides what Ctrl-C means.
void tie_to_parent(pid_t parent) {
  signal(SIGINT, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  if (parent == 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kUsage);  // it died before the line above
}

// What libraries print must not get between the messages: stdout becomes stderr, messages go to a copy of it.
int claim_stdout() {
  const int copy = dup(STDOUT_FILENO);
  if (copy < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) fail(ErrorCode::io, "stdout: {}", std::strerror(errno));
  return copy;
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) _exit(kUsage);  // nobody listens any more
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

class LineReader {
 public:
  bool operator()(std::string* line) {
    for (;;) {
      const std::size_t end = buffer_.find('\n', searched_);
      if (end != std::string::npos) {
        line->assign(buffer_, 0, end);
        buffer_.erase(0, end + 1);
        searched_ = 0;
        return true;
      }
      searched_ = buffer_.size();
      if (searched_ > attune::tuner::kLongestLine) return false;
      char chunk[65536];
      const ssize_t got = read(STDIN_FILENO, chunk, sizeof chunk);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      buffer_.append(chunk, static_cast<std::size_t>(got));
    }
  }

 private:
  std::string buffer_;
  std::size_t searched_ = 0;
};

std::shared_ptr<attune::runtime::Device> open(const std::string& device) {
  int ordinal = -1;
  const auto result = std::from_chars(device.data(), device.data() + device.size(), ordinal);
  const bool number = result.ec == std::errc() && result.ptr == device.data() + device.size();
  if (number && ordinal >= 0) return attune::runtime::open_device(ordinal);
  for (const attune::runtime::DeviceProperties& found : attune::runtime::list_devices()) {
    if (found.uuid == device) return attune::runtime::open_device(found.ordinal);
  }
  fail(ErrorCode::no_device, "device: no visible device has the UUID '{}'", device);
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  tie_to_parent(options.parent);
  const int out = claim_stdout();
  attune::tuner::SessionPorts ports;
  ports.read_line = LineReader();
  ports.write = [out](const std::string& text) { write_all(out, text); };
  ports.open_device = [&options] { return open(options.device); };
  ports.open_nvml = attune::runtime::Nvml::open;
  ports.version = ATTUNE_VERSION;
  attune::tuner::Session session(std::move(ports));
  const int status = session.run();
  // A lost context cannot be torn down in good order, and nothing here needs to be: the process ends as it is.
  std::fflush(nullptr);
  _exit(status);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attune-worker: %s\n", error.what());
    return kUsage;
  }
}

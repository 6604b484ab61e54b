// Where NVRTC is. Nothing is opened here: the caller tries the candidates in order.

#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace attune {

struct Toolkit {
  std::filesystem::path nvrtc_library;  ///< to dlopen; a bare name is left to the dynamic loader
  std::string origin;                   ///< "environment", "installed toolkit", "wheels" or "dynamic loader"
};

/// The NVRTC libraries of version 12.8 or newer, in order of preference:
///   1. $ATTUNE_NVRTC, which, when set, is the only one;
///   2. installed toolkits: $CUDA_HOME, <installed>/cuda, <installed>/cuda-* (newest first);
///   3. folders of wheels: $ATTUNE_TOOLKIT_DIR, ${XDG_DATA_HOME:-~/.local/share}/attune/toolkit;
///   4. bare names for the dynamic loader, whose version is unknown before they are opened.
/// Reads the environment and the file system at each call. A folder that cannot be read counts as empty.
std::vector<Toolkit> find_toolkits(const std::filesystem::path& installed = "/usr/local");

/// One paragraph: what find_toolkits looks for, and how to get one.
std::string toolkit_help();

}  // namespace attune

// Completion, man page and manual know every command and every option.
#include <doctest/doctest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "cli/app.h"

using namespace attune::cli;

namespace {

std::string text_of(const std::string& file) {
  // Beside tests/data in the source tree.
  std::ifstream in(std::string(ATTUNE_TEST_DATA) + "/../../" + file);
  REQUIRE_MESSAGE(in, file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The text without what roff does to hyphens and fonts.
std::string unrolled(std::string text) {
  for (std::size_t at = 0; (at = text.find("\\-", at)) != std::string::npos;) text.replace(at, 2, "-");
  return text;
}

bool is_word_part(char c) { return c == '-' || (c >= 'a' && c <= 'z'); }

bool has_word(const std::string& text, const std::string& word) {
  for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += word.size()) {
    const bool begins = at == 0 || !is_word_part(text[at - 1]);
    const bool ends = at + word.size() == text.size() || !is_word_part(text[at + word.size()]);
    if (begins && ends) return true;
  }
  return false;
}

const auto kEvery = [](const CLI::App*) { return true; };

std::set<std::string> options_of(const CLI::App& app) {
  std::set<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.insert("--" + name);
  return names;
}

struct Leaf {
  std::string path;
  std::set<std::string> options;
};

// Commands that do something, with their options; groups stand for what is in them.
std::vector<Leaf> leaves(const CLI::App& app, const std::string& path = {}) {
  const auto subcommands = app.get_subcommands(kEvery);
  if (subcommands.empty()) return {{path, options_of(app)}};
  std::vector<Leaf> all;
  for (const CLI::App* sub : subcommands)
    for (Leaf& leaf : leaves(*sub, path.empty() ? sub->get_name() : path + " " + sub->get_name())) all.push_back(leaf);
  return all;
}

std::vector<Leaf> commands() {
  Invocation invocation;
  return leaves(*make_app(invocation));
}

// What the completion script offers after a command: asked of bash itself.
std::set<std::string> completed(const std::string& path) {
  const std::string script = std::string(ATTUNE_TEST_DATA) + "/../../cli/completion/attune.bash";
  const std::string command = "bash -c 'source \"" + script + "\"; COMP_WORDS=(attune " + path +
                              " --); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _attune; printf \"%s\\n\" "
                              "\"${COMPREPLY[@]}\"'";
  std::set<std::string> words;
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  char line[256];
  while (fgets(line, sizeof line, pipe) != nullptr)
    words.insert(std::string(line).substr(0, std::string(line).find('\n')));
  pclose(pipe);
  words.erase("");
  return words;
}

}  // namespace

TEST_CASE("the eleven commands are there, each with --json and --help") {
  std::set<std::string> first_words;
  for (const Leaf& leaf : commands()) {
    CAPTURE(leaf.path);
    first_words.insert(leaf.path.substr(0, leaf.path.find(' ')));
    CHECK(leaf.options.contains("--json"));
    CHECK(leaf.options.contains("--help"));
  }
  CHECK(first_words == std::set<std::string>{"bench", "cache", "compile", "doctor", "emit", "emulate", "explain",
                                             "inspect", "pack", "tune", "verify"});
}

TEST_CASE("the man page names every command and option") {
  const std::string page = unrolled(text_of("docs/attune.1"));
  for (const Leaf& leaf : commands()) {
    CHECK_MESSAGE(page.find("attune " + leaf.path) != std::string::npos, leaf.path);
    for (const std::string& option : leaf.options) CHECK_MESSAGE(has_word(page, option), leaf.path << " " << option);
  }
}

TEST_CASE("the manual names every command and option") {
  const std::string manual = text_of("docs/cli.md");
  for (const Leaf& leaf : commands()) {
    CHECK_MESSAGE(manual.find("attune " + leaf.path) != std::string::npos, leaf.path);
    for (const std::string& option : leaf.options) CHECK_MESSAGE(has_word(manual, option), leaf.path << " " << option);
  }
}

TEST_CASE("completion offers exactly the options of each command") {
  for (const Leaf& leaf : commands()) {
    CAPTURE(leaf.path);
    CHECK(completed(leaf.path) == leaf.options);
  }
}

TEST_CASE("completion offers the commands") {
  const std::string script = text_of("cli/completion/attune.bash");
  for (const Leaf& leaf : commands()) {
    std::istringstream words(leaf.path);
    for (std::string word; words >> word;) CHECK_MESSAGE(has_word(script, word), word);
  }
}

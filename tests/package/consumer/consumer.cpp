// Uses what needs no GPU: parses a problem and catches the error of a wrong one.

#include <attune/error.h>
#include <attune/problem.h>

#include <cstdio>

int main() {
  const attune::Problem problem = attune::parse_problem("head_dim=64,heads=8,causal=1");
  std::printf("%s\n", attune::to_string(problem).c_str());
  try {
    attune::parse_problem("head_dim=129");
  } catch (const attune::Error& error) {
    std::printf("%s\n", error.what());
    return error.code() == attune::ErrorCode::invalid_argument ? 0 : 1;
  }
  return 1;
}

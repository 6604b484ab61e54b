// What `attune verify` prints.
#pragma once

#include <string>

#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/table.h"
#include "cli/verify_subjects.h"
#include "tuner/measurer.h"

namespace attune::cli {

class VerifyReport {
 public:
  /// A row of the table. `what`: which inputs. Returns the row's object in the document, for members of the caller's.
  Json& add(const Subject& subject, const std::string& what, const tuner::Verdict& verdict);
  /// A row for what has no build.
  void add_failure(const Subject& subject);
  /// A row for what was not run, which is no failure.
  void skip(const Subject& subject, const std::string& what, const std::string& why);

  void print(Output& output) const { table_.print(output); }
  /// Fills the document. `complaint` is said if not all was good.
  ExitCode finish(Output& output, const std::string& complaint);

 private:
  bool all_good_ = true;
  Json results_ = Json::array();
  Table table_{{{"problem", Align::left},
                {"config", Align::left},
                {"from", Align::left},
                {"inputs", Align::left},
                {"cases"},
                {"O rel L2"},
                {"O worst row"},
                {"O max abs"},
                {"LSE max abs"},
                {"of bound"},
                {"verdict", Align::left}}};
};

}  // namespace attune::cli

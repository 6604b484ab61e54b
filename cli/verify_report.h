// What `attune verify` prints: a table for each operation that it met.
#pragma once

#include <initializer_list>
#include <string>

#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/table.h"
#include "cli/verify_subjects.h"
#include "tuner/measurer.h"

namespace attune::cli {

class VerifyReport {
 public:
  VerifyReport();

  /// A row of the table. `what`: which inputs. Returns the row's object in the document, for members of the caller's.
  Json& add(const Subject& subject, const std::string& what, const tuner::Verdict& verdict);
  /// A row for what has no build.
  void add_failure(const Subject& subject);
  /// A row for what was not run, which is no failure.
  void skip(const Subject& subject, const std::string& what, const std::string& why);

  void print(Output& output) const;
  /// Fills the document. `complaint` is said if not all was good.
  ExitCode finish(Output& output, const std::string& complaint);

 private:
  static Table table_of(std::initializer_list<const char*> errors);

  Table& table(const Subject& subject) { return subject.problem.op == Op::backward ? backward_ : forward_; }

  bool all_good_ = true;
  Json results_ = Json::array();
  Table forward_, backward_;
};

}  // namespace attune::cli

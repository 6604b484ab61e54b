// The tables of the cache and the SQL that derives winners from trials. cache/KEY.md explains the rules.
#pragma once

#include <string>

#include "cache/database.h"

namespace attune::cache {

inline constexpr int kSchemaVersion = 1;
inline constexpr int kApplicationId = 0x6174746e;

enum class SchemaState {
  ours,     ///< this version
  empty,    ///< a new file
  newer,    ///< a later version's
  foreign,  ///< not a cache
};
SchemaState schema_state(Database& database);

/// Makes the tables in an empty database, in one transaction; does nothing if another process was faster.
void create_schema(Database& database);

/// The views of a file that an earlier version made are replaced by those of this one. Does nothing where they are.
void renew_views(Database& database);

/// SELECT of (plan_key, regime, session, config, build_key, median, low, high, uid, time) from the trials of one plan
/// that stand. Its only parameter is the plan key.
const std::string& standing_trials_of_plan();

}  // namespace attune::cache

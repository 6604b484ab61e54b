#include "cache/database.h"

#include <random>
#include <thread>
#include <utility>

namespace attune::cache {
namespace {

// A path as SQLite reads it in a URI. Whatever is not plainly harmless is escaped.
std::string uri_of(const std::string& file, std::string_view parameters) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string uri = "file:";
  for (const char c : file) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '/' ||
                       c == '.' || c == '-' || c == '_';
    if (plain) {
      uri += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      uri += '%';
      uri += kDigits[byte >> 4];
      uri += kDigits[byte & 15];
    }
  }
  return uri.append("?").append(parameters);
}

FaultKind kind_of(int code) {
  if (code == SQLITE_IOERR_SHMSIZE) return FaultKind::full;  // the WAL's index could not grow
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return FaultKind::busy;
    case SQLITE_FULL: return FaultKind::full;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_ERROR:  // a table or a column is missing: the version number lies
    case SQLITE_MISMATCH: return FaultKind::corrupt;
    case SQLITE_READONLY:
    case SQLITE_PERM: return FaultKind::read_only;
    default: return FaultKind::io;
  }
}

}  // namespace

Database::Database(const std::string& file, Access access, std::chrono::milliseconds busy_timeout) {
  switch (access) {
    case Access::write: open(file, SQLITE_OPEN_READWRITE, busy_timeout); break;
    case Access::read: open(file, SQLITE_OPEN_READONLY, busy_timeout); break;
    case Access::immutable:
      open(uri_of(file, "immutable=1"), SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, busy_timeout);
      break;
  }
}

Database::Database() { open(":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, std::chrono::milliseconds(0)); }

void Database::open(const std::string& name, int flags, std::chrono::milliseconds busy_timeout) {
  sqlite3* connection = nullptr;
  const int code = sqlite3_open_v2(name.c_str(), &connection, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  connection_.reset(connection);  // there is one even if opening failed, unless memory ran out
  if (code != SQLITE_OK) {
    if (connection == nullptr) throw Fault(FaultKind::io, sqlite3_errstr(code));
    raise(sqlite3_extended_errcode(connection));
  }
  sqlite3_extended_result_codes(connection, 1);
  sqlite3_db_config(connection, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(connection, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  set_busy_timeout(busy_timeout);
  // No temporary files. Full synchronisation: a committed trial survives loss of power. The cell check notices damage
  // where it is read instead of where it leads to.
  execute("PRAGMA temp_store=MEMORY; PRAGMA synchronous=FULL; PRAGMA cell_size_check=ON");
}

// SQLite's own handler sleeps longer and longer, up to 100 ms, so that a process that writes without pause keeps others
// out until they give up. Short sleeps of random length give all the same chance.
int Database::wait_when_busy(void* database, int attempts) {
  auto& self = *static_cast<Database*>(database);
  const auto now = std::chrono::steady_clock::now();
  if (attempts == 0) self.waiting_since_ = now;
  if (now - self.waiting_since_ >= self.busy_timeout_) return 0;
  thread_local std::minstd_rand random(std::random_device{}());
  std::this_thread::sleep_for(std::chrono::microseconds(200 + random() % 2000));
  return 1;
}

void Database::set_busy_timeout(std::chrono::milliseconds timeout) {
  busy_timeout_ = timeout;
  sqlite3_busy_handler(connection_.get(), &Database::wait_when_busy, this);
}

void Database::end_transaction() {
  // After a commit, and after some faults, there is nothing to roll back.
  if (sqlite3_get_autocommit(connection_.get()) == 0) {
    sqlite3_exec(connection_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
  }
}

void Database::raise(int code) const {
  throw Fault(kind_of(code),
              std::string(sqlite3_errmsg(connection_.get())) + " (SQLite error " + std::to_string(code) + ")", this);
}

void Database::execute(const std::string& sql) {
  const int code = sqlite3_exec(connection_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) raise(code);
}

bool Database::moved() const {
  int result = 0;
  sqlite3_file_control(connection_.get(), "main", SQLITE_FCNTL_HAS_MOVED, &result);
  return result != 0;
}

Database::StatementPointer Database::borrow(std::string_view sql) {
  if (const auto idle = statements_.find(sql); idle != statements_.end() && idle->second) {
    return std::move(idle->second);
  }
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(connection_.get(), sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (code != SQLITE_OK) raise(code);
  return StatementPointer(statement);
}

void Database::give_back(std::string_view sql, StatementPointer statement) {
  sqlite3_reset(statement.get());
  sqlite3_clear_bindings(statement.get());
  const auto idle = statements_.find(sql);
  if (idle == statements_.end()) {
    statements_.emplace(sql, std::move(statement));
  } else {
    idle->second = std::move(statement);
  }
}

Query::Query(Database& database, std::string_view sql)
    : database_(database), sql_(sql), statement_(database.borrow(sql)) {}

Query::~Query() { database_.give_back(sql_, std::move(statement_)); }

void Query::check(int code) const {
  if (code != SQLITE_OK) database_.raise(code);
}

Query& Query::bind(std::string_view text) {
  // A null pointer would bind NULL, which an empty text is not.
  check(sqlite3_bind_text64(statement_.get(), next_++, text.empty() ? "" : text.data(), text.size(), SQLITE_TRANSIENT,
                            SQLITE_UTF8));
  return *this;
}

Query& Query::bind_blob(std::string_view bytes) {
  check(sqlite3_bind_blob64(statement_.get(), next_++, bytes.empty() ? "" : bytes.data(), bytes.size(),
                            SQLITE_TRANSIENT));
  return *this;
}

Query& Query::bind(std::int64_t number) {
  check(sqlite3_bind_int64(statement_.get(), next_++, number));
  return *this;
}

Query& Query::bind(double number) {
  check(sqlite3_bind_double(statement_.get(), next_++, number));
  return *this;
}

bool Query::step() {
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) database_.raise(code);
  return false;
}

void Query::run() {
  while (step()) {
  }
}

std::string Query::text(int column) const {
  const void* bytes = sqlite3_column_blob(statement_.get(), column);
  const int size = sqlite3_column_bytes(statement_.get(), column);
  return bytes == nullptr ? std::string()
                          : std::string(static_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

Transaction::Transaction(Database& database) : database_(database) { Query(database, "BEGIN IMMEDIATE").run(); }

void Transaction::commit() { Query(database_, "COMMIT").run(); }

Transaction::~Transaction() { database_.end_transaction(); }

ReadTransaction::ReadTransaction(Database& database) : database_(database) { Query(database, "BEGIN").run(); }

ReadTransaction::~ReadTransaction() { database_.end_transaction(); }

}  // namespace attune::cache

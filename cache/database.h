// One SQLite connection, its prepared statements, and its errors as exceptions that never leave the cache module.
#pragma once

#include <sqlite3.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace attune::cache {

/// What the Store does about a fault depends on its kind only.
enum class FaultKind { busy, full, corrupt, read_only, io };

class Database;

class Fault : public std::runtime_error {
 public:
  Fault(FaultKind kind, const std::string& message, const Database* database = nullptr)
      : std::runtime_error(message), kind_(kind), database_(database) {}
  FaultKind kind() const noexcept { return kind_; }
  /// Whether it arose in this database and not in another one or in the folder.
  bool is_of(const Database* database) const noexcept { return database != nullptr && database_ == database; }

 private:
  FaultKind kind_;
  const Database* database_;
};

/// Not thread-safe: the Store's mutex guards it. Every function throws Fault.
class Database {
 public:
  enum class Access {
    write,
    read,       ///< the file is not changed; side files of the WAL may be
    immutable,  ///< nothing is locked or written: for a read-only file system, and only if there is no WAL
  };

  /// The file must exist. Reads nothing yet.
  Database(const std::string& file, Access access, std::chrono::milliseconds busy_timeout);
  /// In memory.
  Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database() = default;

  /// Runs statements without parameters.
  void execute(const std::string& sql);
  std::int64_t changes() const { return sqlite3_changes64(connection_.get()); }
  /// Whether the file of this connection's name is another one by now, or gone.
  bool moved() const;
  void set_busy_timeout(std::chrono::milliseconds timeout);

 private:
  friend class Query;
  friend class Transaction;
  friend class ReadTransaction;
  struct Close {
    void operator()(sqlite3* connection) const { sqlite3_close_v2(connection); }
  };
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  using StatementPointer = std::unique_ptr<sqlite3_stmt, Finalize>;

  void open(const std::string& name, int flags, std::chrono::milliseconds busy_timeout);
  [[noreturn]] void raise(int code) const;
  StatementPointer borrow(std::string_view sql);
  void give_back(std::string_view sql, StatementPointer statement);
  void end_transaction();
  static int wait_when_busy(void* database, int attempts);

  std::chrono::milliseconds busy_timeout_{0};
  std::chrono::steady_clock::time_point waiting_since_;
  std::unique_ptr<sqlite3, Close> connection_;
  std::map<std::string, StatementPointer, std::less<>> statements_;  // idle ones, by their text
};

/// A prepared statement with its parameters, which are numbered from 1 in the order of bind().
///
///   Query query(database, "SELECT reason FROM rejections WHERE build_key = ?");
///   query.bind(key);
///   while (query.step()) use(query.text(0));
class Query {
 public:
  Query(Database& database, std::string_view sql);
  ~Query();
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  Query& bind(std::string_view text);
  Query& bind_blob(std::string_view bytes);
  Query& bind(std::int64_t number);
  Query& bind(double number);

  /// True while there is a row.
  bool step();
  /// For statements without rows.
  void run();

  std::string text(int column) const;  ///< of texts and blobs alike
  std::int64_t integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }
  double real(int column) const { return sqlite3_column_double(statement_.get(), column); }

 private:
  void check(int code) const;

  Database& database_;
  std::string_view sql_;
  Database::StatementPointer statement_;
  int next_ = 1;
};

/// Begins at once as a writer, so that a wait for the lock happens here and not in the middle. Rolls back unless
/// committed.
class Transaction {
 public:
  explicit Transaction(Database& database);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit();

 private:
  Database& database_;
};

/// One snapshot for several queries.
class ReadTransaction {
 public:
  explicit ReadTransaction(Database& database);
  ~ReadTransaction();
  ReadTransaction(const ReadTransaction&) = delete;
  ReadTransaction& operator=(const ReadTransaction&) = delete;

 private:
  Database& database_;
};

}  // namespace attune::cache

// A bootstrap for tests in which ranks are threads: they exchange bytes through a table, without timeouts. A
// rank that has left, by an exception for example, is not waited for: the others' calls throw.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <convoy/comm/bootstrap/bootstrap.hpp>
#include <convoy/core/error.hpp>

namespace rank_table {

class Table {
 public:
  explicit Table(int ranks)
      : size(ranks), bytes(static_cast<std::size_t>(ranks)), sync_(ranks, Complete{this}) {}
  /// Returns once all ranks have called it. Throws Error if one has left instead.
  void meet() {
    sync_.arrive_and_wait();
    if (incomplete_) throw convoy::Error("a rank has left the others");
  }
  /// A rank's last call.
  void leave() {
    left_ = true;
    sync_.arrive_and_drop();
  }

  const int size;
  std::vector<std::vector<std::byte>> bytes;

 private:
  struct Complete {
    Table* table;
    void operator()() noexcept { table->incomplete_ = table->left_; }
  };

  std::atomic<bool> left_ = false;
  bool incomplete_ = false;  // whether a rank had left before the last meeting
  std::barrier<Complete> sync_;
};

class AtTable {
 public:
  AtTable(Table& table, int rank) : table_(&table), rank_(rank) {}
  int rank() const { return rank_; }
  int size() const { return table_->size; }
  void broadcast(std::span<std::byte> data) {
    if (rank_ == 0) table_->bytes[0].assign(data.begin(), data.end());
    table_->meet();
    std::copy_n(table_->bytes[0].begin(), data.size(), data.begin());
    table_->meet();
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    table_->bytes[static_cast<std::size_t>(rank_)].assign(mine.begin(), mine.end());
    table_->meet();
    auto to = all.begin();
    for (const auto& part : table_->bytes) to = std::copy(part.begin(), part.end(), to);
    table_->meet();
  }

 private:
  Table* table_;
  int rank_;
};
static_assert(convoy::comm::Bootstrap<AtTable>);

/// Calls `body(rank's AtTable)` on a thread for each rank. Returns the ranks' error messages; empty if there
/// were none.
template <class F>
std::vector<std::string> run(int ranks, const F& body) {
  Table table(ranks);
  std::vector<std::string> sentences(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(AtTable(table, rank));
      } catch (const std::exception& error) {
        sentences[static_cast<std::size_t>(rank)] = error.what();
      }
      table.leave();
    });
  for (std::thread& thread : threads) thread.join();
  return sentences;
}

}  // namespace rank_table

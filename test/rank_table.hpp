// A bootstrap for tests in which ranks are threads: they exchange bytes through a table, without timeouts.
#pragma once

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <span>
#include <vector>

#include <convoy/comm/bootstrap/bootstrap.hpp>

namespace rank_table {

struct Table {
  explicit Table(int ranks) : size(ranks), bytes(static_cast<std::size_t>(ranks)), sync(ranks) {}
  int size;
  std::vector<std::vector<std::byte>> bytes;
  std::barrier<> sync;
};

class AtTable {
 public:
  AtTable(Table& table, int rank) : table_(&table), rank_(rank) {}
  int rank() const { return rank_; }
  int size() const { return table_->size; }
  void broadcast(std::span<std::byte> data) {
    if (rank_ == 0) table_->bytes[0].assign(data.begin(), data.end());
    table_->sync.arrive_and_wait();
    std::copy_n(table_->bytes[0].begin(), data.size(), data.begin());
    table_->sync.arrive_and_wait();
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    table_->bytes[static_cast<std::size_t>(rank_)].assign(mine.begin(), mine.end());
    table_->sync.arrive_and_wait();
    auto to = all.begin();
    for (const auto& part : table_->bytes) to = std::copy(part.begin(), part.end(), to);
    table_->sync.arrive_and_wait();
  }

 private:
  Table* table_;
  int rank_;
};
static_assert(convoy::comm::Bootstrap<AtTable>);

}  // namespace rank_table

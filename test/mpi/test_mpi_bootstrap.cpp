// RANKS: 1 3
// The bootstrap over MPI carries the bytes that it is given.
#include <cstddef>
#include <vector>

#include <doctest/doctest.h>

#include <convoy/comm/bootstrap/mpi.hpp>

using namespace convoy;

TEST_CASE("bytes go over MPI") {
  comm::MpiBootstrap world{transport::Mpi()};
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{100000}}) {
    const auto value = [](int rank) { return static_cast<std::byte>(rank + 5); };
    std::vector<std::byte> data(bytes, value(world.rank()));
    world.broadcast(data);
    CHECK(data == std::vector<std::byte>(bytes, value(0)));
    const std::vector<std::byte> mine(bytes, value(world.rank()));
    std::vector<std::byte> all(bytes * static_cast<std::size_t>(world.size()));
    world.all_gather(mine, all);
    int wrong = 0;
    for (std::size_t i = 0; i < all.size(); ++i) wrong += all[i] != value(static_cast<int>(i / bytes));
    CHECK(wrong == 0);
    std::vector<std::byte> of_all(all.size());
    world.gather(mine, of_all);
    CHECK(of_all == (world.rank() == 0 ? all : std::vector<std::byte>(all.size())));
  }
}

// RANKS: 2
// A message of more bytes than MPI can count.
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "../skip.hpp"
#include <convoy/comm/transport/mpi.hpp>
#include <convoy/comm/transport/segments.hpp>

using namespace convoy;
using transport::Mpi;

TEST_CASE("a message may be longer than MPI can count") {
  constexpr int lane = 1;
  constexpr std::size_t length = (std::size_t{1} << 31) + 100;
  Mpi endpoint = Mpi().isolated();
  std::int32_t room = transport::detail::available_memory() > 4 * length;
  MPI_Bcast(&room, 1, MPI_INT32_T, 0, endpoint.comm());
  if (room == 0) SKIP("there is too little memory here");
  const std::unique_ptr<char, void (*)(void*)> data(static_cast<char*>(std::calloc(length, 1)), std::free);
  Mpi::Request request;
  if (endpoint.rank() == 0) {
    data.get()[0] = 1;
    data.get()[length - 1] = 2;
    endpoint.send(request, 1, lane, data.get(), length);
    while (!endpoint.sent(request) && endpoint.departed(1).empty()) transport::nap(0);
  } else {
    endpoint.receive(request, 0, lane, data.get(), length);
    transport::Arrival arrival;
    while (arrival.data == nullptr && endpoint.departed(0).empty()) arrival = endpoint.arrived(request);
    CHECK(arrival.bytes == length);
    CHECK(data.get()[0] == 1);
    CHECK(data.get()[length - 1] == 2);
  }
  CHECK(endpoint.departed(1 - endpoint.rank()) == "");
  MPI_Barrier(endpoint.comm());
}

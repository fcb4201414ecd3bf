// Ranks that make different calls with equal byte counts: the calls, named as in error messages, and the
// error that every rank must report.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/error.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/memory/buffer.hpp>

namespace mismatch {

inline constexpr convoy::Seconds deadline(20);

struct Row {
  const char* most;  // all ranks but the last
  const char* last;
  int ranks = 3;  // at most: with more ranks, others may wait, and only the deadline ends them
};

inline constexpr Row rows[] = {
    {"all_reduce sum of f32", "all_reduce max of f32"},
    {"all_reduce sum of f32", "all_reduce mean of f32"},
    {"all_reduce sum of f32", "all_reduce sum of f64"},
    {"all_reduce sum of f32", "all_reduce sum of i32"},
    {"all_reduce min of bf16", "all_reduce min of f16"},
    {"reduce_scatter sum of f32", "reduce_scatter max of f32"},
    {"all_gather of f32", "all_gather of i32"},
    {"all_reduce sum of f32", "reduce_scatter sum of f32"},
    {"all_reduce sum of f32", "broadcast of u8 from rank 0", 2},
    {"broadcast of u8 from rank 0", "all_reduce sum of f32", 2},
    {"broadcast of f32 from rank 0", "broadcast of f64 from rank 0", 2},
    {"barrier", "all_reduce min of i32"},
    {"all_reduce sum of f32", "barrier"},
    {"all_reduce sum of f32 of bucket 0", "all_reduce sum of f32 of bucket 8"},
};

template <class C, class E, class O>
void reduce_as(C& comm, const std::string& what, O op) {
  convoy::Buffer<E> values(8000 / sizeof(E), comm.memory());
  if (what.starts_with("all_reduce"))
    comm.all_reduce(std::span<E>(values), op);
  else if (what.starts_with("reduce_scatter"))
    comm.reduce_scatter(std::span<E>(values), op);
  else
    comm.all_gather(std::span<E>(values));
}
template <class C, class O>
void operate(C& comm, const std::string& what, O op) {
  if (what.ends_with(" f32")) return reduce_as<C, convoy::f32>(comm, what, op);
  if (what.ends_with(" f64")) return reduce_as<C, convoy::f64>(comm, what, op);
  if (what.ends_with(" bf16")) return reduce_as<C, convoy::bf16>(comm, what, op);
  if (what.ends_with(" f16")) return reduce_as<C, convoy::f16>(comm, what, op);
  if constexpr (O::value != convoy::comm::Op::mean) return reduce_as<C, convoy::i32>(comm, what, op);
}

// There are fewer than 9 lanes, so buckets 0 and 8 share one on every transport.
template <class C>
void exchange_buckets(C& comm, int first) {
  convoy::Buffer<float> gradients(9 * 1000, comm.memory()), parameters(9 * 1000, comm.memory());
  std::vector<convoy::Range> cuts;
  for (int b = 0; b < 9; ++b) cuts.push_back({b * 1000, (b + 1) * 1000});
  comm.open({}, {gradients, parameters, cuts});
  comm.begin(first);
  comm.begin(8 - first);
  comm.finish([](convoy::Range, float) {});
}

template <class C>
void act(C& comm, const std::string& what) {
  using namespace convoy;
  if (what.find("bucket") != std::string::npos) return exchange_buckets(comm, what.back() - '0');
  if (what == "barrier") return comm.barrier();
  if (what.starts_with("broadcast of f32")) {
    Buffer<f32> values(2000, comm.memory());
    return comm.broadcast(std::span<f32>(values), 0);
  }
  if (what.starts_with("broadcast of f64")) {
    Buffer<f64> values(1000, comm.memory());
    return comm.broadcast(std::span<f64>(values), 0);
  }
  if (what.starts_with("broadcast")) {
    Buffer<u8> values(8000, comm.memory());
    return comm.broadcast(std::span<u8>(values), 0);
  }
  if (what.find("max") != std::string::npos) return operate(comm, what, comm::max);
  if (what.find("min") != std::string::npos) return operate(comm, what, comm::min);
  if (what.find("mean") != std::string::npos) return operate(comm, what, comm::mean);
  operate(comm, what, comm::sum);
}

// The error that this rank reports. Throws if there is none, or only after the deadline.
template <class C>
std::string said_of(const Row& row, C& comm) {
  try {
    act(comm, comm.rank() == comm.size() - 1 ? row.last : row.most);
    comm.barrier();
  } catch (const convoy::CommError& error) {
    if (error.elapsed >= deadline.count()) return convoy::concat("too late: ", error.what());
    return error.what();
  }
  return "nothing";
}

// What is wrong with the ranks' errors; empty if they are right.
inline std::string complaint(const Row& row, const std::vector<std::string>& said) {
  const std::string most(row.most), last(row.last);
  const int ranks = static_cast<int>(said.size());
  bool told = false;
  std::string all = most + " meets " + last + ":";
  for (int r = 0; r < ranks; ++r) {
    const std::string& s = said[static_cast<std::size_t>(r)];
    all += "\n  " + s;
    if (!s.starts_with(convoy::concat("rank ", r, ": "))) return all;
    for (int other = 0; other < ranks - 1; ++other) {
      const std::string a = convoy::concat("rank ", ranks - 1, " is in ", last),
                        b = convoy::concat("rank ", other, " is in ", most);
      told = told || s.find(a + " where " + b + " (") != std::string::npos ||
             s.find(b + " where " + a + " (") != std::string::npos;
    }
  }
  return told ? "" : all;
}

}  // namespace mismatch

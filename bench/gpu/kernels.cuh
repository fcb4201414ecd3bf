// Kernels: optimizers, codecs and attention, compared to a copy where they are bound by memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "cases.cuh"
#include <convoy/comm/codec/half.cuh>
#include <convoy/comm/codec/int8.cuh>
#include <convoy/comm/codec/top_k.cuh>
#include <convoy/core/philox.hpp>
#include <convoy/core/range.hpp>
#include <convoy/exec/cuda/cuda.cuh>
#include <convoy/memory/device.cuh>
#include <convoy/memory/space.hpp>
#include <convoy/optim/adam.hpp>
#include <convoy/optim/adamw.hpp>
#include <convoy/optim/arena.hpp>
#include <convoy/optim/device.cuh>
#include <convoy/optim/lamb.hpp>
#include <convoy/optim/lars.hpp>
#include <convoy/optim/muon.hpp>
#include <convoy/optim/sgd.hpp>

namespace gpu_bench {

using namespace convoy;

/// One step over `count` parameters, compared to a copy, including norms if a rule needs them.
template <class R>
void optimizer(memory::Device& space, std::int64_t count, double copy) {
  const std::string name = concat("optimizer/", R::name, "/", count);
  if (!wanted(name)) return;
  const memory::Array<float, memory::Device> parameters(space, static_cast<std::size_t>(count)),
      gradients(space, static_cast<std::size_t>(count));
  optim::Arena<R, memory::Device> arena(space, {}, std::vector<optim::ArenaTensor>{{{0, count}, {}, 0}},
                                        std::vector<optim::Group>{{}});
  arena.own(std::vector<Range>{{0, count}});
  arena.begin(1, 1e-3f);
  const bool decides = arena.decides();
  double arrays = 3.0 + 2.0 * R::slots;
  if (decides) arrays += arena.optimizer().has_direction() ? 3.0 + R::slots : 2.0;
  const auto times = milliseconds(space, 20, [&] {
    if (decides) {
      arena.arrived({0, count}, 1, parameters.data(), gradients.data());
      static_cast<void>(arena.decide(parameters.data()));  // without a guard it takes one round
    }
    arena.update({0, count}, 1, parameters.data(), gradients.data());
  });
  report_bandwidth(name, arrays * 4.0 * static_cast<double>(count), times, copy);
}

/// One step of Muon over a matrix, with f32 and with tf32 products.
inline void muon(memory::Device& space, std::int64_t rows, std::int64_t columns) {
  const std::string name = concat("optimizer/muon/", rows, "x", columns);
  if (!wanted(name, {"f32", "tf32"})) return;
  const Range whole{0, rows * columns};
  const auto size = static_cast<std::size_t>(whole.size());
  const memory::Array<float, memory::Device> parameters(space, size), gradients(space, size);
  const optim::Muon::Options options;
  const auto low = static_cast<double>(std::min(rows, columns)),
             high = static_cast<double>(std::max(rows, columns));
  const double flops = options.iterations * 2 * low * low * (2 * high + low);
  for (const bool reduced : {false, true}) {
    const std::string part = concat(name, reduced ? "/tf32" : "/f32");
    if (!wanted(part)) continue;
    space.set_reduced_products(reduced);
    optim::Arena<optim::Muon, memory::Device> arena(
        space, options, std::vector<optim::ArenaTensor>{{whole, {}, 0, rows}}, std::vector<optim::Group>{{}});
    arena.own(std::vector<Range>{whole});
    arena.begin(1, 1e-3f);
    const auto times =
        milliseconds(space, 20, [&] { arena.update(whole, 1, parameters.data(), gradients.data()); });
    std::printf("{\"name\": \"%s\", \"ms\": %.4f, \"TFLOP_per_sec\": %.1f}\n", part.c_str(), median(times),
                flops / median(times) * 1e-9);
    std::fflush(stdout);
  }
  space.set_reduced_products(false);
}

/// Encoding of a bucket of `count` gradients and decoding of what `ranks` ranks have sent, compared to a
/// copy. Bytes are those that must be read and written once.
template <class Codec>
void codec(memory::Device& space, const Codec& codec, std::int64_t count, double copy) {
  using Kernels = comm::codec::Kernels<Codec>;
  constexpr int ranks = 8;
  const std::string name = concat("codec/", Codec::name, "/", count);
  const bool any = comm::codec::Scattered<Codec>  ? wanted(name, {"encode", "fold", "decode"})
                   : comm::codec::Gathered<Codec> ? wanted(name, {"encode", "sum"})
                                                  : wanted(name, {"encode", "decode"});
  if (!any) return;
  const auto size = static_cast<std::size_t>(count);
  const memory::Array<float, memory::Device> values(space, size), error(space, size), sums(space, size);
  std::vector<float> some(size);
  Philox random(1);
  for (float& value : some) value = random.uniform(-1, 1);
  space.write(values.data(), some.data(), size * sizeof(float));
  const double floats = 4.0 * static_cast<double>(count);
  const auto report = [&](const char* what, double bytes, auto&& run) {
    const std::string part = concat(name, "/", what);
    if (wanted(part)) report_bandwidth(part, bytes, milliseconds(space, 20, run), copy);
  };
  if constexpr (comm::codec::Scattered<Codec>) {
    const std::int64_t whole = ranks * Codec::block, block = (count + whole - 1) / whole * Codec::block;
    const comm::codec::Parts parts{count, block, codec.bytes(block)};
    const double encoded = static_cast<double>(ranks * parts.bytes);
    const memory::Array<std::byte, memory::Device> all(space, static_cast<std::size_t>(ranks * parts.bytes)),
        own(space, static_cast<std::size_t>(parts.bytes));
    report("encode", 3 * floats + encoded, [&] {
      Kernels::encode(codec, space.stream(), all.data(), values.data(), error.data(), error.data(), parts);
    });
    report("fold", 2 * floats / ranks + encoded * (ranks + 1) / ranks, [&] {
      Kernels::fold(codec, space.stream(), own.data(), all.data(), all.data(), 0, ranks, sums.data(),
                    sums.data(), parts);
    });
    report("decode", floats + encoded,
           [&] { Kernels::decode(codec, space.stream(), sums.data(), all.data(), parts); });
  } else if constexpr (comm::codec::Gathered<Codec>) {
    const std::int64_t bytes = codec.bytes(count);
    const memory::Array<std::byte, memory::Device> all(space, static_cast<std::size_t>(ranks * bytes)),
        room(space, static_cast<std::size_t>(Kernels::room(codec, count)));
    for (int r = 0; r < ranks; ++r)
      Kernels::encode(codec, space.stream(), all.data() + r * bytes, values.data(), error.data(),
                      error.data(), count, room.data());
    report("encode", 3 * floats + static_cast<double>(bytes), [&] {
      Kernels::encode(codec, space.stream(), all.data(), values.data(), error.data(), error.data(), count,
                      room.data());
    });
    report("sum", floats + static_cast<double>(ranks * bytes),
           [&] { Kernels::sum(codec, space.stream(), sums.data(), all.data(), ranks, count); });
  } else {
    const memory::Array<typename Codec::Element, memory::Device> half(space, size);
    report("encode", 3.5 * floats, [&] {
      Kernels::encode(codec, space.stream(), half.data(), values.data(), error.data(), error.data(), count);
    });
    report("decode", 1.5 * floats,
           [&] { Kernels::decode(codec, space.stream(), sums.data(), half.data(), count); });
  }
}

/// Self-attention over packed queries, keys and values, forward and backward. FLOPs count its matrix
/// products: two forward and, with recomputed scores, five backward.
template <class T>
void attention(memory::Device& space, int rows, int heads, int positions, int features) {
  const std::string name =
      concat("attention/", name_of(dtype_of<T>), "/", rows, "x", heads, "x", positions, "x", features);
  if (!wanted(name, {"forward", "backward"})) return;
  const int width = heads * features;
  const std::size_t vectors = static_cast<std::size_t>(rows) * static_cast<std::size_t>(positions);
  const auto values = [&](std::size_t each) {
    std::vector<T> some(vectors * each);
    Philox random(1);
    for (T& value : some) value = T(random.uniform(-1, 1));
    memory::Array<T, memory::Device> made(space, some.size());
    space.write(made.data(), some.data(), some.size() * sizeof(T));
    space.synchronize();
    return made;
  };
  const auto one = static_cast<std::size_t>(width), three = 3 * one;
  const auto x = values(three), dx = values(three), y = values(one), dy = values(one);
  const std::size_t statistics = vectors * static_cast<std::size_t>(heads);
  const memory::Array<float, memory::Device> kept(space, statistics), means(space, statistics);
  exec::cuda::AttentionTask<T> task;
  task.rows = rows;
  task.heads = heads;
  task.queries = task.keys = positions;
  task.key_features = task.value_features = features;
  task.scale = 1.0f / std::sqrt(static_cast<float>(features));
  for (int part = 0; part < 3; ++part) {
    task.part[part] = x.data() + part * width;
    task.gradient[part] = dx.data() + part * width;
    task.step[part] = 3 * width;
  }
  task.y = y.data();
  task.dy = dy.data();
  task.kept = kept.data();
  task.means = means.data();
  const double product = 2.0 * static_cast<double>(statistics) * positions * features;
  const auto report = [&](const char* way, double products, auto&& run) {
    const std::string part = concat(name, "/", way);
    if (!wanted(part)) return;
    const auto times = milliseconds(space, 20, run);
    std::printf("{\"name\": \"%s\", \"ms\": %.4f, \"TFLOP_per_sec\": %.1f}\n", part.c_str(), median(times),
                products * product / median(times) * 1e-9);
    std::fflush(stdout);
  };
  report("forward", 2, [&] { exec::cuda::attention_forward<T>(space.stream(), task); });
  report("backward", 5, [&] { exec::cuda::attention_backward<T>(space.stream(), task); });
}

}  // namespace gpu_bench

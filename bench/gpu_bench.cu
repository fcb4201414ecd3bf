// gpu_bench --properties: prints what cuDNN asks of this GPU, in its own JSON.
// gpu_bench [--list] [--but FILE] [PART]: measures exec::Cuda on this GPU: training steps of ResNets and
// Transformers in each precision, epochs of MNIST, optimizers and codecs compared to a copy, and attention.
// Prints one JSON object per line, the most important cases first. PART selects the cases whose names contain
// it; --but leaves out those of which FILE, an earlier output, has the result; --list prints their names, and
// nothing is measured. A case that fails is reported, and the others follow; the program then ends with 1.
//
// Only `gpu_bench all_reduce` measures an exchange between two ranks on this GPU: ranks that share a GPU need
// all kernels loaded before the first one runs, which would cost every other case seconds and memory. Its
// GB_per_sec is the traffic of both ranks in the GPU's memory. algbw and busbw are GB/s by the formulae of
// nccl-tests: the bytes of the array per time, and 2 (n - 1) / n of them, which each of n ranks must send.
//
// For a step, step_ms is the mean, and samples_per_sec is computed from it. Where each step is launched by
// itself, host_us is the host's time to launch a step after graph capture, without waiting for the GPU;
// kernels_ms is the GPU's time for a step that was launched before it begins; of_kernels is kernels_ms /
// step_ms.
//
// A profiler that begins off (ncu --profile-from-start off) sees the timed steps alone.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <limits>
#include <semaphore>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <cuda_profiler_api.h>

#include "../examples/common/printed.hpp"
#include <convoy/comm/codec/half.cuh>
#include <convoy/comm/codec/int8.cuh>
#include <convoy/comm/codec/top_k.cuh>
#include <convoy/comm/policy/cuda_peer.cuh>
#include <convoy/comm/policy/none.hpp>
#include <convoy/data/data.hpp>
#include <convoy/data/resident.cuh>
#include <convoy/exec/cuda/cuda.cuh>
#include <convoy/models/bert.hpp>
#include <convoy/models/gpt.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/models/transformer.hpp>
#include <convoy/optim/adam.hpp>
#include <convoy/optim/adamw.hpp>
#include <convoy/optim/device.cuh>
#include <convoy/optim/muon.hpp>
#include <convoy/optim/sgd.hpp>
#include <convoy/train/trainer.hpp>

using namespace convoy;

namespace {

std::string_view chosen;
bool lists = false;
std::set<std::string, std::less<>> measured;  // before

/// Whether a case is to be measured now.
bool wanted(const std::string& name) {
  if (name.find(chosen) == std::string::npos || measured.contains(name)) return false;
  if (lists) std::printf("%s\n", name.c_str());
  return !lists;
}
/// The same for at least one of the parts of a case.
bool wanted(const std::string& name, std::initializer_list<std::string_view> parts) {
  bool any = false;
  for (const std::string_view part : parts) any = wanted(concat(name, "/", part)) || any;
  return any;
}

/// Reads the names of an earlier output.
void read_measured(const char* path) {
  std::ifstream file(path);
  if (!file) fail<Error>("gpu_bench: could not read ", path);
  constexpr std::string_view before = "{\"name\": \"";
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(before) && line.ends_with('}'))
      measured.insert(line.substr(before.size(), line.find('"', before.size()) - before.size()));
}

bool failed = false;

/// Runs cases, and says so if one of them fails.
template <class Run>
void attempt(Run&& run) {
  try {
    run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    failed = true;
  }
}

/// Holds a stream back until it is opened.
class Gate {
 public:
  void close(cudaStream_t stream) {
    const auto wait = [](void* gate) {
      // The timeout is for a step behind the gate that fails, after which nobody opens the gate.
      static_cast<void>(static_cast<Gate*>(gate)->opened_.try_acquire_for(std::chrono::seconds(5)));
    };
    device::check(cudaLaunchHostFunc(stream, wait, this), "hold a stream back");
  }
  void open() { opened_.release(); }

 private:
  std::binary_semaphore opened_{0};
};

/// The milliseconds that the GPU takes for the work of each of `runs` calls, sorted, after some warm-up
/// calls. The GPU begins once all work of a call is enqueued, so that the host's time for launches does not
/// count.
template <class Run>
std::vector<float> milliseconds(memory::Device& space, int runs, Run&& run) {
  Gate gate;
  cudaEvent_t from{}, to{};
  device::check(cudaEventCreate(&from), "make an event");
  device::check(cudaEventCreate(&to), "make an event");
  const device::Event begin(from), end(to);
  std::vector<float> times;
  run();  // loads kernels, which may wait for the GPU
  space.synchronize();
  for (int i = -2; i < runs; ++i) {
    gate.close(space.stream());
    try {
      device::check(cudaEventRecord(from, space.stream()), "record an event");
      run();
      device::check(cudaEventRecord(to, space.stream()), "record an event");
    } catch (...) {
      gate.open();
      space.synchronize();
      throw;
    }
    gate.open();
    space.synchronize();
    float time = 0;
    device::check(cudaEventElapsedTime(&time, from, to), "time a run");
    if (i >= 0) times.push_back(time);
  }
  std::sort(times.begin(), times.end());
  return times;
}

double median(const std::vector<float>& sorted) { return static_cast<double>(sorted[sorted.size() / 2]); }

/// Prints the median rate with the least and the greatest of its runs, and `more` fields.
void report_bandwidth(const std::string& name, double bytes, const std::vector<float>& times, double copy,
                      const std::string& more = "") {
  std::printf(
      "{\"name\": \"%s\", \"GB_per_sec\": %.1f, \"least\": %.1f, \"most\": %.1f, \"of_copy\": %.3f%s}\n",
      name.c_str(), bytes / median(times) * 1e-6, bytes / static_cast<double>(times.back()) * 1e-6,
      bytes / static_cast<double>(times.front()) * 1e-6, copy > 0 ? bytes / median(times) * 1e-6 / copy : 1.0,
      more.c_str());
  std::fflush(stdout);
}

/// The rates of an all-reduce of `bytes` by `ranks` ranks, as fields.
std::string rates_of_all_reduce(double bytes, int ranks, const std::vector<float>& times) {
  const double algorithm = bytes / median(times) * 1e-6;
  char text[80];
  std::snprintf(text, sizeof text, ", \"algbw\": %.1f, \"busbw\": %.1f", algorithm,
                algorithm * 2 * (ranks - 1) / ranks);
  return text;
}

/// Bytes read and written by a copy within the GPU, in GB/s; 0 if nothing is measured.
double copy_bandwidth(memory::Device& space) {
  const bool reports = wanted("copy/1GiB");
  if (lists) return 0;
  const std::size_t bytes = std::size_t{1} << 30;
  const memory::Array<std::byte, memory::Device> from(space, bytes), to(space, bytes);
  const auto times = milliseconds(space, 20, [&] { space.copy(to.data(), from.data(), bytes); });
  if (reports) report_bandwidth("copy/1GiB", 2.0 * static_cast<double>(bytes), times, 0);
  return 2.0 * static_cast<double>(bytes) / median(times) * 1e-6;
}

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
void muon(memory::Device& space, std::int64_t rows, std::int64_t columns) {
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

/// The bootstrap of two ranks, which are threads that share this GPU.
class Pair {
 public:
  struct Place {
    std::vector<std::byte> bytes[2];
    std::barrier<> sync{2};
  };
  Pair(Place& place, int rank) : place_(&place), rank_(rank) {}
  int rank() const { return rank_; }
  int size() const { return 2; }
  void broadcast(std::span<std::byte> data) {
    std::vector<std::byte> all(2 * data.size());
    all_gather(data, all);
    std::copy_n(all.begin(), data.size(), data.begin());
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    place_->bytes[rank_].assign(mine.begin(), mine.end());
    place_->sync.arrive_and_wait();
    std::copy(place_->bytes[1].begin(), place_->bytes[1].end(),
              std::copy(place_->bytes[0].begin(), place_->bytes[0].end(), all.begin()));
    place_->sync.arrive_and_wait();
  }

 private:
  Place* place_;
  int rank_;
};

/// All-reduces of `count` floats by two ranks on this GPU, whose memory takes the place of links between
/// GPUs. In the one-shot algorithm each rank writes its values and reads those of both; in the two-shot
/// algorithm it reads half of both, then the other's half.
void all_reduce(std::int64_t count, double copy, int blocks = comm::PeerOptions().blocks) {
  std::string name = concat("all_reduce/cuda-peer/2 ranks on this GPU/", count);
  if (blocks != comm::PeerOptions().blocks) name += concat("/blocks:", blocks);
  if (!wanted(name)) return;
  Pair::Place place;
  std::vector<float> times;
  bool at_once = false;
  std::exception_ptr failures[2];
  const auto body = [&](int rank) {
    comm::AnyBootstrap bootstrap(Pair(place, rank));
    memory::Device space;
    const memory::Array<float, memory::Device> gradients(space, static_cast<std::size_t>(count));
    space.synchronize();
    {
      comm::peer::Link link(bootstrap, {.deadline = Seconds(20), .blocks = blocks});
      const comm::peer::Window window(bootstrap, gradients.data());
      constexpr int runs = 20, exchanges = 10;
      device::Event marks[runs + 1];
      for (device::Event& mark : marks) {
        cudaEvent_t made{};
        device::check(cudaEventCreate(&made), "make an event");
        mark = device::Event(made);
      }
      for (int i = -1; i <= runs; ++i) {
        if (i >= 0) device::check(cudaEventRecord(marks[i].get(), link.stream()), "record an event");
        for (int k = 0; k < exchanges && i < runs; ++k) link.all_reduce<float>(window, 0, count);
      }
      link.synchronize();
      for (int i = 0; i < runs && rank == 0; ++i) {
        float time = 0;
        device::check(cudaEventElapsedTime(&time, marks[i].get(), marks[i + 1].get()), "time a run");
        times.push_back(time / exchanges);
      }
      if (rank == 0) at_once = count * 4 <= link.options().at_once;
      bootstrap.barrier();
    }
    bootstrap.barrier();
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        failures[rank] = std::current_exception();
        place.sync.arrive_and_drop();
      }
    });
  for (std::thread& rank : ranks) rank.join();
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
  std::sort(times.begin(), times.end());
  const double bytes = 4.0 * static_cast<double>(count);
  report_bandwidth(name, 2 * (at_once ? 5.0 : 2.5) * bytes, times, copy,
                   rates_of_all_reduce(bytes, 2, times));
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

/// Random samples of a model's inputs and labels: bytes, and integers within the bounds of the model. A few
/// distinct ones are in memory, like a data set read from files.
class Generated {
 public:
  Generated(const Plan& plan, std::size_t size) : size_(size) {
    std::vector<Range> bounds;
    for (int n = 0; n < plan.graph.count.nodes; ++n) {
      const graph::Node& node = plan.node(n);
      if (!node.given) continue;
      fields_.push_back({node.name.view(), node.dtype, node.shape});
      bounds.push_back(bounds_of(plan.graph, n));
    }
    samples_ = data::Samples(fields_, distinct);
    Philox random(1);
    for (std::size_t row = 0; row < distinct; ++row)
      for (std::size_t f = 0; f < fields_.size(); ++f) {
        const auto number = [&] {
          return bounds[f].begin + static_cast<std::int64_t>(random.below(bounds[f].size()));
        };
        if (fields_[f].dtype == DType::u8)
          for (u8& pixel : samples_.row(row).as<u8>(f)) pixel = static_cast<u8>(number());
        else
          for (i32& index : samples_.row(row).as<i32>(f)) index = static_cast<i32>(number());
      }
  }
  std::size_t size() const { return size_; }
  std::span<const data::Field> fields() const { return fields_; }
  void read(std::size_t index, data::Sample out) const {
    const data::Sample from = samples_.row(index % distinct);
    for (std::size_t f = 0; f < fields_.size(); ++f)
      std::copy_n(from.bytes(f).data(), from.bytes(f).size(), out.bytes(f).data());
  }

 private:
  static constexpr std::size_t distinct = 64;

  /// The valid values of node `given`: classes of a label, valid indices of operations.
  static Range bounds_of(const graph::Graph& g, int given) {
    if (g.nodes[given].dtype == DType::u8) return {0, 256};
    if (graph::is<graph::LabelInput>(g.nodes[given]))
      return {0, g.attributes<graph::LabelInput>(given).classes};
    Range both{0, std::numeric_limits<i32>::max()};
    for (int n = 0; n < g.count.nodes; ++n) {
      const auto by = graph::operation_indices[static_cast<std::size_t>(g.nodes[n].op)](g, n);
      if (by.input >= 0 && g.input(n, by.input) == given)
        both = {std::max<std::int64_t>(both.begin, by.begin), std::min<std::int64_t>(both.end, by.end)};
    }
    return both;
  }

  std::size_t size_;
  std::vector<data::Field> fields_;
  data::Samples samples_;
};

/// The times of a fit's steps, from their reports, which come `late` steps late. The first steps, which
/// choose plans and capture graphs, are not timed; the next `count` are. Then, if each step is launched by
/// itself, some steps follow in turns. At the first report of a turn, the GPU finishes its work and a gate is
/// closed. Behind the gate the host launches `late` steps without waiting, because the reports that are due
/// belong to steps before the gate. At the last report of the turn the gate is opened, and the GPU executes
/// these steps without a pause. Nothing here asks the space for its stream, which would change the steps.
class StepTimes {
 public:
  StepTimes(memory::Device& space, int count, bool one_by_one)
      : stream_(space.stream()), count_(count), turns_(one_by_one ? 5 : 0) {
    for (device::Event* event : {&begin_, &end_}) {
      cudaEvent_t made{};
      device::check(cudaEventCreate(&made), "make an event");
      *event = device::Event(made);
    }
  }

  /// The number of steps that the fit must have; the last reports come after the last launch.
  int steps() const { return untimed + count_ + turns_ * turn + most_late; }

  void see(const train::StepReport& report) {
    const auto now = Clock::now();
    const int step = seen_++, behind = step - untimed - count_;
    if (step == untimed - 1) {
      from_ = now;
      device::check(cudaProfilerStart(), "start a profiler");
    }
    if (step >= untimed && behind < 0) each_.push_back(report.seconds);
    if (behind == -1) {
      mean_ = Seconds(now - from_).count() / count_;
      device::check(cudaProfilerStop(), "stop a profiler");
    }
    if (behind < 0 || turns_ == 0 || behind > turns_ * turn) return;
    if (behind % turn != 0) host_.push_back(Seconds(now - handing_).count());
    if (behind % turn == late) {
      device::check(cudaEventRecord(end_.get(), stream_), "record an event");
      gate_.open();
    } else if (behind % turn == 0) {
      device::check(cudaStreamSynchronize(stream_), "finish the work of a stream");
      float time = 0;
      if (behind > 0) {
        device::check(cudaEventElapsedTime(&time, begin_.get(), end_.get()), "time steps");
        kernels_.push_back(static_cast<double>(time) * 1e-3 / late);
      }
      if (behind < turns_ * turn) {
        gate_.close(stream_);
        device::check(cudaEventRecord(begin_.get(), stream_), "record an event");
      }
    }
    handing_ = Clock::now();
  }

  /// Prints the fields of a JSON object.
  void print(int batch, double flops) const {
    std::printf("\"samples_per_sec\": %.0f, \"step_ms\": %.4f, \"median_ms\": %.4f, \"most_ms\": %.4f, ",
                batch / mean_, mean_ * 1e3, train::median(each_) * 1e3,
                *std::max_element(each_.begin(), each_.end()) * 1e3);
    if (turns_ > 0) {
      const double kernels = train::median(kernels_);
      std::printf("\"host_us\": %.1f, \"kernels_ms\": %.4f, \"of_kernels\": %.4f, ",
                  train::median(host_) * 1e6, kernels * 1e3, kernels / mean_);
    }
    std::printf("\"TFLOP_per_sec\": %.1f", flops * batch / mean_ * 1e-12);
  }

 private:
  static constexpr int untimed = 12;  // three graphs of four steps
  static constexpr int late = exec::Cuda<f32>::latency, turn = late + 1;
  static constexpr int most_late = 8;  // two graphs of four steps

  cudaStream_t stream_;
  int count_, turns_;
  device::Event begin_, end_;
  Gate gate_;
  int seen_ = 0;
  Clock::time_point from_{}, handing_{};
  double mean_ = 0;                            // seconds
  std::vector<double> each_, host_, kernels_;  // seconds of a step
};

template <class P>
using Trained = train::PlanTrainer<optim::AdamW, comm::None, exec::Cuda<P>>;

/// Where batches are made; gpu_singly launches each step by itself, and host_fused fuses batch norms.
enum class From { host, host_fused, gpu, gpu_singly };

template <class P>
void step(const std::string& model, const Plan& plan, const exec::Kernels<exec::Cuda<P>>& kernels, int batch,
          int count, From from) {
  const std::string name = concat("step/", model, "/", exec::cuda::Precision<P>::name, "/batch:", batch,
                                  from == From::host         ? ""
                                  : from == From::host_fused ? "/fuse_batch_norm:1"
                                  : from == From::gpu        ? "/resident"
                                                             : "/resident/steps_at_once:1");
  if (!wanted(name)) return;
  exec::CudaOptions options;
  options.fuse_batch_norm = from == From::host_fused;
  if (from == From::gpu_singly) options.steps_at_once = 1;
  Trained<P> trainer(plan, kernels, {.batch = batch, .exec = options});
  StepTimes times(trainer.exec().space(), count, from != From::gpu);
  const Generated samples(plan, static_cast<std::size_t>(batch) * static_cast<std::size_t>(times.steps()));
  trainer.fit(samples, {.on_step =
                            [&](const train::StepReport& report) {
                              times.see(report);
                              return train::Control::go_on;
                            },
                        .log = nullptr,
                        .resident = from == From::gpu || from == From::gpu_singly});
  std::printf("{\"name\": \"%s\", ", name.c_str());
  times.print(batch, static_cast<double>(plan.flops()));
  std::printf("}\n");
  std::fflush(stdout);
}

template <class Model, class P>
void steps(const std::string& model, int batch, int count, std::initializer_list<From> from) {
  for (const From each : from)
    attempt([&] {
      step<P>(model, plan_of<Model>, exec::kernels<exec::Cuda<P>, plan_of<Model>.used>, batch, count, each);
    });
}

/// Epochs of MNIST, if it lies in $CONVOY_DATA/mnist, else of as many generated digits. The first epoch also
/// chooses plans and captures graphs. Accuracies are those on the test images.
template <class Model>
void epoch(const std::string& model, int batch) {
  const char* const data = std::getenv("CONVOY_DATA");
  const std::string folder = concat(data != nullptr ? data : ".", "/mnist");
  const bool real = data::has_mnist(folder);
  const std::string name = concat("epoch/", real ? "mnist_" : "digits_", model);
  if (!wanted(name)) return;
  const data::ImageSplit images = real ? data::mnist(folder) : data::digits({.train = 60'000});
  Trained<bf16> trainer(plan_of<Model>, exec::kernels<exec::Cuda<bf16>, plan_of<Model>.used>,
                        {.batch = batch});
  const auto fit =
      trainer.fit(images.train, {.epochs = 3, .validate = &images.test, .log = nullptr, .resident = true});
  const train::EpochReport &first = fit.epochs.front(), &last = fit.epochs.back();
  std::printf("{\"name\": \"%s\", \"seconds\": %.4f, \"first_seconds\": %.4f, ", name.c_str(), last.seconds,
              first.seconds);
  std::printf("\"accuracy\": %.4f, \"first_accuracy\": %.4f}\n", last.test.accuracy.value_or(0),
              first.test.accuracy.value_or(0));
  std::fflush(stdout);
}

constexpr Image mnist{1, 28, 28}, imagenet{3, 224, 224};
using Mnist = models::ResNet18<mnist, 10, DType::u8>;
using Gpt2 = models::Gpt2<12, 768, 12, 1024, 50257, 1024, 0>;

template <class P>
void transformers() {
  steps<models::BertBase<>, P>("bert/128", 64, 60, {From::host});
  steps<Gpt2, P>("gpt2/1024", 8, 60, {From::host});
  steps<models::Transformer<6, 256, 4, 1024, 64, 16581, 5>, P>("sst5/64", 256, 200,
                                                               {From::host, From::gpu_singly, From::gpu});
}

/// Divides the numbers of timed steps by `share`.
template <class P>
void resnets(int share, std::initializer_list<From> from) {
  steps<models::ResNet50<imagenet, 1000, DType::u8>, P>("resnet50/224x224", 256, 60 / share, from);
  steps<Mnist, P>("resnet18/28x28", 128, 400 / share, from);
  steps<models::ResNet18<imagenet, 1000, DType::u8>, P>("resnet18/224x224", 256, 100 / share, from);
  steps<models::ResNet101<imagenet, 1000, DType::u8>, P>("resnet101/224x224", 128, 60 / share, from);
}

}  // namespace

int main(int argc, char** argv) try {
  bool tells_properties = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--list")
      lists = true;
    else if (argument == "--properties")
      tells_properties = true;
    else if (argument == "--but" && i + 1 < argc)
      read_measured(argv[++i]);
    else
      chosen = argument;
  }
  const bool shares = chosen.starts_with("all_reduce");
  if (shares) device::let_ranks_share_gpus();
  device::use(0);
  memory::Device space;
  if (tells_properties) {
    std::printf("%s\n", exec::cuda::Cudnn(space.stream()).properties().c_str());
    return 0;
  }
  const double copy = copy_bandwidth(space);
  if (shares) {
    attempt([&] { all_reduce(16'384, copy); });
    attempt([&] { all_reduce(25'557'032, copy); });
    for (const int blocks : {16, 32, 48}) attempt([&] { all_reduce(25'557'032, copy, blocks); });
    examples::expect_printed();
    return failed ? 1 : 0;
  }
  attempt([&] { optimizer<optim::Adam>(space, 25'557'032, copy); });
  attempt([&] { optimizer<optim::Adam>(space, 109'482'240, copy); });
  resnets<bf16>(1, {From::host, From::gpu});
  steps<Mnist, bf16>("resnet18/28x28", 128, 400, {From::gpu_singly});
  attempt([&] { epoch<models::ResNet18<mnist, 10>>("resnet18", 128); });
  transformers<bf16>();
  resnets<f16>(1, {From::host});
  steps<models::ResNet50<imagenet, 1000, DType::u8>, f16>("resnet50/224x224", 256, 60, {From::host_fused});
  transformers<f16>();
  attempt([&] { optimizer<optim::Sgd>(space, 25'557'032, copy); });
  attempt([&] { optimizer<optim::AdamW>(space, 109'482'240, copy); });
  attempt([&] { optimizer<optim::Lars>(space, 25'557'032, copy); });
  attempt([&] { optimizer<optim::Lamb>(space, 109'482'240, copy); });
  attempt([&] { muon(space, 768, 3072); });
  attempt([&] { muon(space, 3072, 768); });
  attempt([&] { codec(space, comm::codec::Bf16{}, 25'557'032, copy); });
  attempt([&] { codec(space, comm::codec::F16{}, 25'557'032, copy); });
  attempt([&] { codec(space, comm::codec::Int8{}, 25'557'032, copy); });
  attempt([&] { codec(space, comm::codec::TopK{}, 25'557'032, copy); });
  attempt([&] { attention<float>(space, 64, 12, 128, 64); });
  attempt([&] { attention<bf16>(space, 64, 12, 128, 64); });
  attempt([&] { attention<f16>(space, 64, 12, 128, 64); });
  resnets<tf32>(2, {From::host});
  resnets<f32>(4, {From::host});
  examples::expect_printed();
  return failed ? 1 : 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpu_bench: %s\n", error.what());
  return 1;
}

// Checkpoints: the input is a byte for one of a checkpoint's files, then that file; the others are sound. A
// checkpoint that can be restored is one that a fit goes on from and that is kept again.
#include <array>
#include <cstdio>

#include "../temporary_folder.hpp"
#include "fuzz.hpp"
#include <convoy/comm/policy/none.hpp>
#include <convoy/core/file.hpp>
#include <convoy/data/dataset.hpp>
#include <convoy/exec/reference/reference.hpp>
#include <convoy/train/checkpoint.hpp>
#include <convoy/train/trainer.hpp>

using namespace convoy;
namespace fs = std::filesystem;

namespace {

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.batch_norm(g.conv2d(g.input("image", Image{1, 2, 2}), {.channels = 2}));
    g.loss(g.cross_entropy(g.linear(g.flatten(x), {.features = 2}), g.label("label", 2)));
  }
};
using Trained = Trainer<Net, optim::Adam, comm::None, exec::Reference<f32>>;

struct Corners {
  std::size_t size() const { return 8; }
  std::span<const data::Field> fields() const { return fields_; }
  void read(std::size_t index, data::Sample out) const {
    out.as<float>(0)[index % 4] = 1;
    out.as<i32>(1)[0] = static_cast<i32>(index % 2);
  }
  std::array<data::Field, 2> fields_ = {data::Field{"image", DType::f32, Image{1, 2, 2}},
                                        data::Field{"label", DType::i32, {}}};
};

/// Trains from the checkpoint in `folder`, if there is one, to the end of epoch `epochs`.
void fit(const fs::path& folder, int epochs) {
  Trained trainer{{.batch = 4}};
  train::Checkpoints checkpoints(trainer, {.directory = folder, .resume = true});
  const Corners corners;
  trainer.fit(corners, {.epochs = epochs, .log = nullptr, .keeper = &checkpoints});
}

constexpr const char* names[] = {"model.safetensors", "training.safetensors", "rank-0.safetensors"};

void put(const fs::path& path, const char* bytes, std::size_t size) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  fuzz::expect(file != nullptr && std::fwrite(bytes, 1, size, file) == size, "no file");
  std::fclose(file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static const TemporaryFolder scratch;
  const fs::path& folder = scratch.path;
  static const std::array<std::string, 3> sound = [&] {
    fit(folder, 1);
    std::array<std::string, 3> files;
    for (std::size_t i = 0; i < 3; ++i) files[i] = read_file(folder / "step-2" / names[i]);
    return files;
  }();
  if (size < 1) return 0;
  fs::remove_all(folder);
  fs::create_directories(folder / "step-2");
  for (std::size_t i = 0; i < 3; ++i) {
    const bool fuzzed = i == bytes[0] % 3;
    const std::string_view file = fuzzed ? fuzz::text_of(bytes + 1, size - 1) : std::string_view(sound[i]);
    put(folder / "step-2" / names[i], file.data(), file.size());
  }
  fuzz::attempt([&] { fit(folder, 2); }, "");
  return 0;
}

// Snapshot: what one rank writes of a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/range.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/io/safetensors.hpp>
#include <convoy/train/state_copy.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <bit>
#include <charconv>
#include <system_error>

#include <convoy/core/error.hpp>
#endif

namespace convoy::train {

/// The PyTorch name of a parameter or a running statistic; empty for other state.
constexpr std::string_view name_of_weights(std::string_view name) {
  for (const std::string_view prefix : {std::string_view("parameters."), std::string_view("statistics.")})
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  return {};
}

/// Ranks' parts of the optimizer's state, in files: a tensor `<slot>.<first element>` for each range of
/// elements, which are in the order of the parameters. Only one file is open at a time, because there may be
/// more ranks than a process may open files.
class Shards {
 public:
  static std::string name_of(std::string_view slot, Range elements) {
    return concat(slot, '.', elements.begin);
  }
  void clear() {
    parts_.clear();
    files_.clear();
    open_.reset();
  }
  /// Throws CheckpointError if the file cannot be read or is none of these.
  void add(const std::filesystem::path& path);
  /// Copies what the files have of these elements.
  void read(std::string_view slot, Range elements, std::span<float> values);

 private:
  struct Part {
    std::size_t file;
    std::string name, slot;
    Range elements;
  };
  const io::Safetensors& opened(std::size_t file);

  std::vector<std::filesystem::path> files_;
  std::vector<Part> parts_;
  std::optional<io::Safetensors> open_;
  std::size_t which_ = 0;  // of the files is open
};

/// The files that one rank writes of a checkpoint. Tensors that a StateCopy provides later are computed when
/// they are written.
class Snapshot final : public StateSink {
 public:
  std::int64_t step = 0;
  bool all = true;       ///< whether this is rank 0, which also writes the state that all ranks see
  bool divided = false;  ///< whether rank 0 writes what the other ranks' shards have
  io::SafetensorsWriter model = {};     ///< parameters and running statistics; on rank 0 only
  io::SafetensorsWriter training = {};  ///< options, the optimizer's state and counters; on rank 0 only
  io::SafetensorsWriter own = {};       ///< the state of this rank alone
  io::SafetensorsWriter own_shard = {};
  Shards shards = {};  ///< of the other ranks; on rank 0 only

  void clear();

  void tensor(std::string_view name, const Shape& shape, std::span<float> values) override;
  void later(std::string_view name, const Shape& shape, Compute compute) override;
  void shard(std::string_view slot, Range elements, Compute compute) override;
  void read_shards(std::string_view slot, Range elements, std::span<float> values) override;
  void counter(std::string_view name, std::int64_t& number) override;
  void real(std::string_view name, double& number) override;  ///< is stored as its bits

 private:
  // The file of a tensor or number, and its name there; null if this rank does not write it.
  std::pair<io::SafetensorsWriter*, std::string> place(std::string_view name);
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION const io::Safetensors& Shards::opened(std::size_t file) {
  if (!open_ || which_ != file) open_.emplace(files_[file]);
  which_ = file;
  return *open_;
}

CONVOY_FUNCTION void Shards::add(const std::filesystem::path& path) {
  files_.push_back(path);
  for (const auto& [name, tensor] : opened(files_.size() - 1).tensors()) {
    const std::size_t dot = std::min(name.rfind('.'), name.size());
    const char* const end = name.data() + name.size();
    std::int64_t first = -1;
    const auto [rest, bad] = std::from_chars(std::min(name.data() + dot + 1, end), end, first);
    if (bad != std::errc() || rest != end || first < 0)
      fail<CheckpointError>(path.string(), ": the tensor ", io::cited(name),
                            " is not named by a slot and an element");
    parts_.push_back({files_.size() - 1, name, name.substr(0, dot), {first, first + tensor.elements}});
  }
}

CONVOY_FUNCTION void Shards::read(std::string_view slot, Range elements, std::span<float> values) {
  for (const Part& part : parts_) {
    const std::int64_t begin = std::max(part.elements.begin, elements.begin),
                       end = std::min(part.elements.end, elements.end);
    if (part.slot == slot && begin < end)
      opened(part.file).read_part(part.name, begin - part.elements.begin,
                                  values.subspan(static_cast<std::size_t>(begin - elements.begin),
                                                 static_cast<std::size_t>(end - begin)));
  }
}

CONVOY_FUNCTION void Snapshot::clear() {
  for (io::SafetensorsWriter* file : {&model, &training, &own, &own_shard}) file->clear();
  shards.clear();
}

CONVOY_FUNCTION std::pair<io::SafetensorsWriter*, std::string> Snapshot::place(std::string_view name) {
  if (name.starts_with("ranks.")) return {&own, std::string(name)};
  if (!all) return {nullptr, ""};
  const std::string_view weights = name_of_weights(name);
  if (weights.empty()) return {&training, std::string(name)};
  return {&model, std::string(weights)};
}

CONVOY_FUNCTION void Snapshot::tensor(std::string_view name, const Shape& shape, std::span<float> values) {
  auto [file, there] = place(name);
  if (file != nullptr) file->add(std::move(there), shape, values);
}

CONVOY_FUNCTION void Snapshot::later(std::string_view name, const Shape& shape, Compute compute) {
  auto [file, there] = place(name);
  if (file != nullptr) file->add_later(std::move(there), shape, std::move(compute));
}

CONVOY_FUNCTION void Snapshot::shard(std::string_view slot, Range elements, Compute compute) {
  own_shard.add_later(Shards::name_of(slot, elements), Shape{static_cast<int>(elements.size())},
                      std::move(compute));
}

CONVOY_FUNCTION void Snapshot::read_shards(std::string_view slot, Range elements, std::span<float> values) {
  shards.read(slot, elements, values);
}

CONVOY_FUNCTION void Snapshot::counter(std::string_view name, std::int64_t& number) {
  auto [file, there] = place(name);
  if (file != nullptr) file->add_number(std::move(there), number);
}

CONVOY_FUNCTION void Snapshot::real(std::string_view name, double& number) {
  auto bits = std::bit_cast<std::int64_t>(number);
  counter(name, bits);
}
#endif

}  // namespace convoy::train

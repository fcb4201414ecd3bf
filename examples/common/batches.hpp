// The rows of a training as a file, so that other programs can train on the same rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "options.hpp"
#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/data/dataset_ref.hpp>
#include <convoy/data/loader.hpp>
#include <convoy/io/safetensors.hpp>

namespace examples {

/// Writes the rows of `steps` steps of all `workers` ranks to the safetensors file of --batches: a tensor of
/// floats for each field, with the rows in the order of the steps.
inline void write_batches(const Options& o, const convoy::data::DatasetRef& set, int workers,
                          std::int64_t steps) {
  using namespace convoy;
  data::Loader<data::DatasetRef> loader(set, {.batch = std::int64_t{o.batch} * workers, .seed = o.seed});
  const std::int64_t micros = loader.steps_per_epoch(),
                     steps_per_epoch = (micros + o.accumulate - 1) / o.accumulate;
  const auto fields = set.fields();
  std::vector<std::vector<float>> columns(fields.size());
  const auto append = [&]<class T>(const data::Batch& batch, std::size_t f, T) {
    const auto values = batch.as<T>(f);
    columns[f].insert(columns[f].end(), values.begin(), values.end());
  };
  std::int64_t rows = 0;
  for (std::int64_t epoch = 0, left = steps; left > 0; ++epoch, left -= steps_per_epoch) {
    loader.start(epoch);
    for (std::int64_t m = 0; m < std::min(micros, left * o.accumulate); ++m) {
      const data::Batch& batch = *loader.next();
      rows += batch.rows;
      for (std::size_t f = 0; f < fields.size(); ++f)
        if (fields[f].dtype == DType::f32)
          append(batch, f, f32{});
        else if (fields[f].dtype == DType::u8)
          append(batch, f, u8{});
        else
          append(batch, f, i32{});
    }
  }
  io::SafetensorsWriter file;
  for (std::size_t f = 0; f < fields.size(); ++f) {
    Shape shape(static_cast<int>(rows));
    for (int i = 0; i < fields[f].shape.rank; ++i) shape.extent[shape.rank++] = fields[f].shape[i];
    file.add(std::string(fields[f].name.view()), shape, columns[f]);
  }
  file.write(o.batches);
}

}  // namespace examples

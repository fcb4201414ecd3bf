// Safetensors: the tensors of a file can be read, and are the same after they were written and read back.
#include <cstring>
#include <string>
#include <vector>

#include "fuzz.hpp"
#include <convoy/io/safetensors.hpp>

using namespace convoy;

namespace {

// Whether a tensor is of floats and its shape fits one of convoy's.
bool readable(const io::Safetensors::Tensor& tensor) {
  const std::string& type = tensor.dtype;
  return (type == "F64" || type == "F32" || type == "F16" || type == "BF16") &&
         tensor.shape.size() <= std::size(Shape{}.extent);
}

Shape shape_of(const io::Safetensors::Tensor& tensor) {
  Shape shape;
  for (const std::int64_t extent : tensor.shape) shape.extent[shape.rank++] = static_cast<int>(extent);
  return shape;
}

std::vector<float> values_of(const io::Safetensors& file, const std::string& name) {
  const auto& tensor = *file.find(name);
  std::vector<float> values(static_cast<std::size_t>(tensor.elements));
  file.read(name, shape_of(tensor), values);
  return values;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const fuzz::File input(bytes, size);
  const auto refusals = "/proc/self/fd/";
  fuzz::attempt(
      [&] {
        const io::Safetensors file(input.path());
        for (const auto& [name, tensor] : file.tensors())  // a read is refused unless type and shape fit
          fuzz::attempt(
              [&, &name = name] {
                float one = 0;
                file.read(name, Shape{1}, {&one, 1});
                file.read_number(name);
              },
              refusals);
        io::SafetensorsWriter writer;
        for (const auto& [key, value] : file.metadata()) writer.describe(key, value);
        for (const auto& [name, tensor] : file.tensors())
          if (readable(tensor)) writer.add(name, shape_of(tensor), values_of(file, name));
        const std::string path =
            (std::filesystem::temp_directory_path() / ("fuzz-" + std::to_string(getpid()) + ".safetensors"))
                .string();
        writer.write(path);
        const io::Safetensors again(path);
        std::filesystem::remove(path);
        fuzz::expect(again.metadata() == file.metadata(), "descriptions that do not come back");
        for (const auto& [name, tensor] : file.tensors()) {
          if (!readable(tensor)) continue;
          fuzz::expect(again.find(name) != nullptr, "a name that does not come back");
          const auto before = values_of(file, name), after = values_of(again, name);
          fuzz::expect(before.size() == after.size() &&
                           (before.empty() ||
                            std::memcmp(before.data(), after.data(), before.size() * sizeof(float)) == 0),
                       "numbers that do not come back");
        }
      },
      refusals);
  return 0;
}

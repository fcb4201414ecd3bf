// CIFAR-10's files: the input is a byte for how many files there are and whether they are called .gz, then
// the contents of each. The images that are read are those of the files.
#include <algorithm>
#include <span>
#include <vector>

#include "fuzz.hpp"
#include <convoy/data/cifar10.hpp>

using namespace convoy;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size < 1) return 0;
  constexpr std::size_t image = 3 * 32 * 32, record = 1 + image;
  const std::span contents(bytes + 1, size - 1);
  const fuzz::File file(contents.data(), contents.size(), bytes[0] & 2 ? ".gz" : "");
  const std::vector<std::filesystem::path> files(1 + bytes[0] % 2, file.path());
  fuzz::attempt([&] {
    const data::ImageSet set = data::cifar10_images(files);
    fuzz::expect(set.size() * record == files.size() * contents.size(), "another number of images");
    const data::Samples out(set.fields(), 1);
    for (std::size_t i = 0; i < set.size(); ++i) {
      const auto given = contents.subspan(i * record % contents.size(), record);
      fuzz::expect(set.label(i) == given[0] && set.label(i) < set.classes(), "a label that is none");
      fuzz::expect(std::ranges::equal(set.pixels(i), given.subspan(1)),
                   "an image that is none of the file's");
      set.read(i, out.row(0));
    }
  });
  return 0;
}

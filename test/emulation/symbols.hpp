// The names of this program's functions and of their static variables, read from the symbol table of its
// executable. They name kernels in messages and locate static shared memory. A stripped program has no symbol
// table; kernels then have no names, and static shared memory is not filled.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <cxxabi.h>
#include <elf.h>
#include <link.h>

namespace emulation {

class Symbols {
 public:
  struct Variable {
    std::string name;
    std::byte* at;
    std::size_t bytes;
  };

  static const Symbols& of_program() {
    static const Symbols symbols;
    return symbols;
  }

  /// The demangled name of the function that begins at `address`, or "a kernel" if there is none.
  std::string function(const void* address) const {
    const auto place = reinterpret_cast<std::uintptr_t>(address);
    const auto found = std::lower_bound(functions_.begin(), functions_.end(), place,
                                        [](const Function& f, std::uintptr_t p) { return f.at < p; });
    if (found == functions_.end() || found->at != place) return "a kernel";
    int status = 0;
    char* plain = abi::__cxa_demangle(found->name.c_str(), nullptr, nullptr, &status);
    std::string name = status == 0 ? plain : found->name;
    std::free(plain);
    return name;
  }

  /// The writable variables whose mangled names begin with `prefix`.
  std::vector<Variable> variables(std::string_view prefix) const {
    std::vector<Variable> found;
    for (const Variable& v : variables_)
      if (std::string_view(v.name).substr(0, prefix.size()) == prefix) found.push_back(v);
    return found;
  }

 private:
  struct Function {
    std::uintptr_t at;
    std::string name;
  };

  Symbols() {
    std::ifstream file("/proc/self/exe", std::ios::binary);
    std::vector<char> bytes(std::filesystem::file_size("/proc/self/exe"));
    if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) return;
    ElfW(Ehdr) header;
    if (bytes.size() < sizeof header) return;
    std::memcpy(&header, bytes.data(), sizeof header);
    const auto at = [&](std::size_t offset, auto& into) {
      if (offset + sizeof into > bytes.size()) return false;
      std::memcpy(&into, bytes.data() + offset, sizeof into);
      return true;
    };
    std::vector<ElfW(Shdr)> sections(header.e_shnum);
    for (std::size_t s = 0; s < sections.size(); ++s)
      if (!at(header.e_shoff + s * header.e_shentsize, sections[s])) return;
    std::uintptr_t moved = 0;  // load address minus link address
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* into) {
          *static_cast<std::uintptr_t*>(into) = info->dlpi_addr;
          return 1;  // the program itself comes first
        },
        &moved);
    for (const auto& table : sections) {
      if (table.sh_type != SHT_SYMTAB || table.sh_link >= sections.size()) continue;
      const auto& names = sections[table.sh_link];
      for (std::size_t k = 0; k < table.sh_size / sizeof(ElfW(Sym)); ++k) {
        ElfW(Sym) symbol;
        if (!at(table.sh_offset + k * sizeof symbol, symbol)) return;
        if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx >= sections.size()) continue;
        if (names.sh_offset + symbol.st_name >= bytes.size()) return;
        const char* name = bytes.data() + names.sh_offset + symbol.st_name;
        const std::uintptr_t place = moved + symbol.st_value;
        const int type = symbol.st_info & 0xf;
        if (type == STT_FUNC)
          functions_.push_back({place, name});
        else if (type == STT_OBJECT && std::strncmp(name, "_ZZ", 3) == 0 &&
                 (sections[symbol.st_shndx].sh_flags & SHF_WRITE))
          variables_.push_back({name, reinterpret_cast<std::byte*>(place), symbol.st_size});
      }
    }
    std::sort(functions_.begin(), functions_.end(),
              [](const Function& a, const Function& b) { return a.at < b.at; });
  }

  std::vector<Function> functions_;
  std::vector<Variable> variables_;
};

}  // namespace emulation

// The registry of exchanges of GPU memory: every policy and transport that can be chosen by name, one line
// each. Exchanges of host memory are in comm/registry.hpp; comm::Staged adapts them to GPUs.
#pragma once

#include <array>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <vector>

#include <convoy/comm/bootstrap/bootstrap.hpp>
#include <convoy/comm/policy/any.hpp>
#include <convoy/comm/policy/cuda_peer.cuh>
#include <convoy/comm/policy/weighted.hpp>
#include <convoy/comm/registry.hpp>
#include <convoy/core/error.hpp>
#include <convoy/memory/space.hpp>

#ifdef CONVOY_HAS_NCCL
#include <optional>
#include <type_traits>
#include <utility>

#include <convoy/comm/policy/nccl.cuh>
#include <convoy/comm/policy/nccl_compressed.cuh>
#include <convoy/comm/policy/nccl_hierarchical.cuh>
#endif

namespace convoy::comm {

namespace registry {

/// A policy over a GPU transport, which `Entry::over` names.
template <memory::Space S>
struct GpuLine {
  Entry entry;
  AnyIn<S> (*make)(const AnyBootstrap& bootstrap, const Options& options, const Choice& choice);
};

template <class O>
O with_deadline(const Options& options) {
  O made;
  made.deadline = options.deadline;
  return made;
}

template <class C, memory::Space S>
AnyIn<S> make_between_gpus(const AnyBootstrap& bootstrap, const Options& options, const Choice&) {
  return C(bootstrap, with_deadline<typename C::Options>(options));
}

/// `Inside` among the GPUs of a node, `Across` between nodes.
template <class Inside, class Across, memory::Space S>
AnyIn<S> make_in_levels(const AnyBootstrap& bootstrap, const Options& options, const Choice&) {
  return comm::Hierarchical<Inside, Across>(bootstrap, with_deadline<typename Inside::Options>(options),
                                            with_deadline<typename Across::Options>(options));
}

#ifdef CONVOY_HAS_NCCL
/// NCCL's all-reduce, or a compressed exchange over NCCL with a codec that has GPU kernels.
template <memory::Space S>
AnyIn<S> make_nccl(const AnyBootstrap& bootstrap, const Options& options, const Choice& choice) {
  const auto nccl = with_deadline<NcclOptions>(options);
  if (choice.codec == "none") return Nccl<S>(bootstrap, nccl);
  std::optional<AnyIn<S>> any;
  std::vector<std::string_view> names{"none"};
  const auto is = [&]<class One>(std::type_identity<One>) {
    if constexpr (codec::OnGpu<One>) {
      names.push_back(One::name);
      if (choice.codec == One::name)
        any.emplace(std::in_place_type<Compressed<Nccl<S>, One>>, bootstrap, nccl, choice.of<One>());
    }
  };
  [&]<class... C>(CodecList<C...>) { (is(std::type_identity<C>{}), ...); }(Codecs{});
  if (!any)
    fail<ConfigError>("GPUs have no codec \"", choice.codec, "\"; choose ", comm::detail::listing(names));
  return std::move(*any);
}
#endif

/// The first line of a transport is the transport's default policy; the first line of a policy is the
/// policy's default transport.
template <memory::Space S>
inline constexpr GpuLine<S> gpu_lines[] = {
#ifdef CONVOY_HAS_NCCL
    {{"nccl", "all-reduce by NVIDIA's NCCL", "nccl", "codec"}, make_nccl<S>},
    {{Sharded::entry.name, Sharded::entry.about, "nccl", ""}, make_between_gpus<comm::Sharded<Nccl<S>>, S>},
    {{Hierarchical::entry.name, "NCCL inside nodes, and NCCL between them", "nccl", ""},
     make_in_levels<Nccl<S>, Nccl<S>, S>},
#endif
    {{"cuda-peer", "all-reduce by convoy's own kernels over peer memory", "cuda-peer", ""},
     make_between_gpus<CudaPeer<S>, S>},
    {{Sharded::entry.name, Sharded::entry.about, "cuda-peer", ""},
     make_between_gpus<comm::Sharded<CudaPeer<S>>, S>},
#ifdef CONVOY_HAS_NCCL
    {{Hierarchical::entry.name, "peer memory inside nodes, NCCL between them", "cuda-peer", ""},
     make_in_levels<CudaPeer<S>, Nccl<S>, S>},
#endif
};

}  // namespace registry

namespace detail {

template <memory::Space S>
constexpr auto entries_of_gpu_lines() {
  std::array<Entry, std::size(registry::gpu_lines<S>)> entries{};
  for (std::size_t i = 0; i < entries.size(); ++i) entries[i] = registry::gpu_lines<S>[i].entry;
  return entries;
}

}  // namespace detail

/// The exchanges of GPU memory that `make` accepts; each entry is for the one transport that it names.
template <memory::Space S>
inline constexpr auto gpu_policies = detail::entries_of_gpu_lines<S>();
inline constexpr Entry gpu_transports[] = {
#ifdef CONVOY_HAS_NCCL
    {"nccl", "GPUs on any nodes, over NVIDIA's NCCL", "", ""},
#endif
    {"cuda-peer", "GPUs of one node that read one another's memory", "", ""},
};

/// Makes the Comm called `policy` over the GPU transport `transport`, wrapped in Weighted if the choice asks
/// for it. The thread's current GPU becomes this rank's. Throws ConfigError for an option that the Comm would
/// ignore, for unknown names, and for a policy that the transport does not have.
template <memory::Space S>
AnyIn<S> make(std::string_view policy, std::string_view transport, const AnyBootstrap& bootstrap,
              const Options& options = {}, const Choice& choice = {}) {
  const bool weighs = detail::weighs(choice);
  if (choice.background)
    fail<ConfigError>(
        "background is for exchanges of host memory; GPUs advance their exchanges without the host");
  if (weighs)
    return Weighted<AnyIn<S>>({choice.weights},
                              make<S>(policy, transport, bootstrap, options, detail::unweighted(choice)));
  std::vector<std::string_view> here;  // the available names, for the error sentences
  for (const registry::GpuLine<S>& line : registry::gpu_lines<S>) {
    if (line.entry.over != transport) continue;
    here.push_back(line.entry.name);
    if (line.entry.name != policy) continue;
    detail::refuse_unused(gpu_policies<S>, line.entry, options, choice);
    return line.make(bootstrap, options, choice);
  }
  if (!here.empty())
    fail<ConfigError>("there is no comm \"", policy, "\" over ", transport, "; choose ",
                      detail::listing(here));
  here.clear();
  for (const Entry& entry : gpu_transports) here.push_back(entry.name);
  fail<ConfigError>("GPUs have no transport \"", transport, "\"; choose ", detail::listing(here));
}

}  // namespace convoy::comm

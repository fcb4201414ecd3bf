// How a file stores the weights of GPT-2.
#pragma once

#include <string>

#include <convoy/io/safetensors.hpp>
#include <convoy/models/gpt.hpp>
#include <convoy/train/weights_options.hpp>

namespace examples {

/// As Hugging Face's GPT2LMHeadModel, with the weights of linear layers as [in, out].
inline constexpr convoy::train::WeightsOptions gpt2_of_hugging_face{.transposed =
                                                                        convoy::models::gpt2_is_transposed};

/// Hugging Face's files store the weights of linear layers as [in, out], and those of a model without a head
/// lack the prefix "transformer.". convoy's files do neither. An empty path: as convoy's files.
inline convoy::train::WeightsOptions gpt2_form_of(const std::string& path) {
  convoy::train::WeightsOptions form;
  if (path.empty()) return form;
  const convoy::io::Safetensors file(path);
  if (file.find("wte.weight") != nullptr) form.prefix = "transformer.";
  const auto* weight =
      file.find(convoy::concat(form.prefix.empty() ? "transformer." : "", "h.0.attn.c_attn.weight"));
  if (weight != nullptr && weight->shape.size() == 2 && weight->shape[0] < weight->shape[1])
    form.transposed = gpt2_of_hugging_face.transposed;
  return form;
}

}  // namespace examples

#!/bin/sh
# check_nvcc.sh NVCC FLAGS_FILE HEADER [ARCHITECTURE]: the header compiles alone as CUDA, by default for sm_80.
nvcc=$1 flags=$2 header=$3 architecture=${4:-sm_80}
source=$(mktemp -d) || exit 1
trap 'rm -rf "$source"' EXIT
echo "#include <$header>" >"$source/alone.cu"
# shellcheck disable=SC2046
"$nvcc" $(sed 's/^-isystem/-isystem=/' "$flags") --expt-relaxed-constexpr -Wno-deprecated-gpu-targets "-arch=$architecture" -cuda \
  -o "$source/alone.cpp" "$source/alone.cu" || { echo "<$header> does not compile alone with nvcc" >&2; exit 1; }

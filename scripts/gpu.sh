#!/usr/bin/env bash
# gpu.sh [PART...]: builds the GPU programs, runs the GPU tests and benchmarks, and writes bench/results/<device>-<date>.md and
# .json. Without arguments, runs all parts that are not done yet; a named part runs again.
#
#   fetch      run beforehand on another machine: copies doctest and zlib from its packages to build/gpu/parts beside the sources, for
#              a GPU machine that has neither them nor a network
#   build      the programs, with nvcc alone: no CMake, MPI, oneDNN or NCCL. With GPU_ARCH=sm_90, for such a GPU on a machine that
#              has none: copied there, build/gpu need not be built again, and the GPU's machine needs no nvcc
#   tests      every test that needs a GPU; a program that takes longer than half of the remaining time is ended
#   bench      gpu_bench, in half of the remaining time if peers follow
#   peers      the same steps in PyTorch, if it is installed
#   sanitizer  the tests of single operations under compute-sanitizer (memcheck, racecheck), if it is installed
#   report     the results of all parts as a page, and which goals they reach
#
# CUDA's libraries are taken from the toolkit, the system's packages or Python wheels. GPU_SECONDS (480) limits the total time;
# a part that is cut off keeps what it has measured so far, the most important cases first. Plans that gpu_bench finds are kept
# in build/gpu/plans, or $CONVOY_PLAN_CACHE, for the next run; tests search for theirs again, some without timing them.
set -euo pipefail
cd "$(dirname "$0")/.."
work=build/gpu
tests=(test_core_device test_optim_gpu test_comm_peer_gpu test_exec_cuda_gpu test_train_cuda_gpu)
parts=$work/parts
mkdir -p $work
export CONVOY_PLAN_CACHE=${CONVOY_PLAN_CACHE:-$PWD/$work/plans}
limit=${GPU_SECONDS:-480}
say() { echo "gpu.sh: $*"; }
left() { echo $((limit - SECONDS > 5 ? limit - SECONDS : 5)); }

if [ "${1:-}" = fetch ]; then
  mkdir -p $parts/doctest
  cp "$(find /usr/include /usr/local/include -path '*doctest/doctest.h' | head -1)" $parts/doctest/
  cp /usr/include/zlib.h /usr/include/zconf.h $parts/
  cp "$(find /usr/lib /usr/lib64 -name libz.a 2>/dev/null | head -1)" $parts/
  say "fetched $(ls $parts | tr '\n' ' ')"
  exit
fi

wheels=$(python3 -c 'import nvidia; print("\n".join(nvidia.__path__))' 2>/dev/null || true)
nvcc=$(command -v nvcc || find /usr/local/cuda/bin ${wheels:+$(printf '%s/cu13/bin ' $wheels)} -name nvcc 2>/dev/null | sed -n 1p || true)
toolkit=/usr/local/cuda
if [ -x "$nvcc" ]; then toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")"); fi
# first NAME-PATTERN FOLDER...: prints the first file whose name matches.
first() {
  local pattern=$1
  shift
  for folder in "$@"; do
    [ -d "$folder" ] || continue
    local found
    found=$(find -L "$folder" -maxdepth 3 -name "$pattern" 2>/dev/null | sort | sed -n 1p)
    [ -n "$found" ] && { echo "$found"; return; }
  done
  say "$pattern was not found in the toolkit, the system's folders or Python's wheels" >&2
  return 1
}
folders=("${CUDNN_PATH:-/nowhere}" "$toolkit/include" "$toolkit/lib64" "$toolkit/lib" "$toolkit/targets" /usr/local/include
  /usr/local/lib /usr/include /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu)
for wheel in $wheels; do folders+=("$wheel/cudnn" "$wheel"/cu13 "$wheel"/cublas "$wheel"/nccl); done

cudnn=$(first 'libcudnn.so*' "${folders[@]}")
cublas=$(first 'libcublasLt.so*' "${folders[@]}")
users_path=${LD_LIBRARY_PATH:-}
LD_LIBRARY_PATH=$(dirname "$cudnn"):$(dirname "$cublas")${users_path:+:$users_path}
export LD_LIBRARY_PATH

ask() { nvidia-smi --query-gpu="$1" --format=csv,noheader | sed -n 1p; }
if device=$(ask name,driver_version 2>/dev/null); then
  arch=sm_$(ask compute_cap | tr -d .)
elif [ -n "${GPU_ARCH:-}" ] && [ "$*" = build ]; then
  arch=$GPU_ARCH
else
  say "there is no GPU here; GPU_ARCH=sm_90 scripts/gpu.sh build would build for one elsewhere" >&2
  exit 1
fi

part_build() {
  [ -x "$nvcc" ] || { say "nvcc was not found in PATH, /usr/local/cuda or Python's wheels" >&2; return 1; }
  local cudnn_h
  cudnn_h=$(first cudnn.h "${folders[@]}")
  local flags=(-std=c++20 -O2 --expt-relaxed-constexpr "-arch=$arch" --split-compile=0 -Wno-deprecated-gpu-targets -Iinclude -Itest
    "-I$(dirname "$cudnn_h")" "-I$(dirname "$(first cublasLt.h "${folders[@]}")")" -Xcompiler -fopenmp)
  [ -d $parts ] && flags+=(-I$parts)
  # nvcc rejects file names that end in a version, as those of all libraries in wheels do.
  local libraries=("-L$(dirname "$cudnn")" "-l:$(basename "$cudnn")" "-L$(dirname "$cublas")" "-l:$(basename "$cublas")"
    -Xlinker "-rpath=$(dirname "$cudnn"):$(dirname "$cublas")" -Xlinker -s -lgomp -lpthread)
  if [ -f $parts/libz.a ]; then libraries+=($parts/libz.a); else libraries+=(-lz); fi
  # exec::Cuda is compiled once, and the sources that take longest come first.
  flags+=(-DCONVOY_COMPILED_CUDA)
  local compiled=()
  for element in f32 bf16 f16; do compiled+=($work/compiled_cuda_$element.o); done
  {
    echo "test_train_cuda_gpu test/test_train_cuda_gpu.cu"
    echo "test_exec_cuda_gpu test/test_exec_cuda_gpu.cu"
    echo "gpu_bench bench/gpu_bench.cu"
    for element in f32 bf16 f16; do echo "compiled_cuda_$element cmake/compiled_cuda_$element.cu"; done
    echo "test_core_device test/test_core_device.cu"
    echo "test_comm_peer_gpu test/test_comm_peer_gpu.cu"
    echo "test_optim_gpu test/test_optim_gpu.cu"
    echo "test_main -x cu test/main.cpp"
  } >$work/sources
  xargs -P "$(nproc)" -L 1 sh -c 'name=$0; exec "$@" -c -o '$work'/$name.o' <<<"$(
    while read -r name source; do echo "$name $nvcc ${flags[*]} $source"; done <$work/sources
  )"
  ar rcs $work/compiled_cuda.a "${compiled[@]}"
  for test in "${tests[@]}"; do
    "$nvcc" -o $work/$test $work/$test.o $work/test_main.o $work/compiled_cuda.a "${libraries[@]}"
  done
  "$nvcc" -o $work/gpu_bench $work/gpu_bench.o $work/compiled_cuda.a "${libraries[@]}"
  rm $work/*.[ao]
  "$nvcc" --version | sed -n 's/.*release \([^,]*\).*/\1/p' >$work/cuda
}
# Whether the programs in build/gpu are for this GPU and start here; they may have been built elsewhere.
is_built() { [ "$(cat $work/done.build 2>/dev/null)" = "$arch" ] && $work/test_exec_cuda_gpu --count >/dev/null 2>&1; }

part_tests() {
  local failed=0
  : >$work/tests.txt
  for test in "${tests[@]}"; do
    # Programs that hang must leave time for the other parts.
    { echo "== $test" && timeout -k 5 $(($(left) / 2)) $work/$test; } 2>&1 | tee -a $work/tests.txt || failed=1
  done
  return $failed
}

part_sanitizer() {
  command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not here" | tee $work/sanitizer.txt; return; }
  local failed=0
  : >$work/sanitizer.txt
  for tool in memcheck racecheck; do
    echo "== $tool" | tee -a $work/sanitizer.txt
    timeout -k 5 "$(left)" compute-sanitizer --tool $tool --error-exitcode 9 $work/test_exec_cuda_gpu -tc="*each operation*" 2>&1 |
      tail -15 | tee -a $work/sanitizer.txt || failed=1
  done
  return $failed
}

part_bench() {
  local mine failed=0
  mine=$(left)
  if [[ " ${chosen[*]} " == *" peers "* ]]; then mine=$((mine / 2)); fi
  local end=$((SECONDS + mine))
  # Ranks that share the GPU need a separate run: see gpu_bench.cu.
  timeout -k 5 $((mine / 5 + 1)) $work/gpu_bench all_reduce | tee $work/bench.jsonl || failed=1
  timeout -k 5 $((end > SECONDS ? end - SECONDS : 1)) $work/gpu_bench | tee -a $work/bench.jsonl || failed=1
  return $failed
}

part_peers() {
  LD_LIBRARY_PATH=$users_path python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || { say "PyTorch with a GPU is not here"; return; }
  LD_LIBRARY_PATH=$users_path timeout -k 5 "$(left)" python3 bench/peers/torch_step_gpu.py | tee $work/peers.jsonl
}

part_report() { python3 bench/gpu_report.py $work "$device" "$(cat $work/cuda)"; }

all=(build tests bench peers sanitizer report)
chosen=("$@")
if [ $# -eq 0 ]; then
  for part in "${all[@]}"; do
    if [ "$part" = build ] && ! is_built; then rm -f $work/done.*; fi
    if [ "$part" != report ] && [ -f $work/done.$part ]; then say "$part is done"; else chosen+=("$part"); fi
  done
fi
for part in "${chosen[@]}"; do
  [[ " ${all[*]} " == *" $part "* ]] || { say "there is no part '$part'; there are fetch ${all[*]}" >&2; exit 2; }
  say "$part, $(left) s left"
  rm -f $work/done.$part
  # Not as a condition, because bash ignores set -e within one.
  set +e
  (set -e && part_$part)
  code=$?
  set -e
  if [ $code -eq 0 ]; then echo "$arch" >$work/done.$part; else say "$part failed" && status=1; fi
  if [ "${status:-0}" -ne 0 ] && [ "$part" = build ]; then exit 1; fi
done
exit "${status:-0}"

#!/usr/bin/env bash
# gpu.sh [PART...]: builds the GPU programs, runs the GPU tests and benchmarks, and writes bench/results/<device>-<date>.md and
# .json. Without arguments, runs what is not done yet; a named part measures everything again.
#
#   fetch      run beforehand on another machine: copies doctest and zlib from its packages, and MNIST from $CONVOY_DATA/mnist if it
#              is there, to build/gpu/parts beside the sources, for a GPU machine that has neither them nor a network
#   build      the programs, with nvcc alone: no CMake, MPI or oneDNN, and the test of NCCL only if NCCL is installed. With
#              GPU_ARCH=sm_90, for such a GPU on a machine that has none: copied there, build/gpu need not be built again, and the
#              GPU's machine needs no nvcc
#   tests      every test that needs a GPU, several test cases at a time
#   bench      gpu_bench
#   sanitizer  tests of single operations, optimizers and codecs under compute-sanitizer (memcheck, racecheck), if it is installed
#   peers      the same steps in PyTorch, if it is installed
#   report     the results of all parts as a page, and which goals they reach; and what cuDNN asks of the GPU, as .properties.json
#
# CUDA's libraries are taken from the toolkit, the system's packages or Python wheels. GPU_SECONDS (480) limits the total time, of
# which each part gets a share. A part that is cut off keeps what it has measured so far, the most important cases first. The next
# run goes on with what is missing: first the parts that have not begun, then those that were cut off. It ends with 1 while
# something is missing or has failed. Results are of one GPU and one build: another GPU or a new build begins anew. Plans that
# gpu_bench finds are kept in build/gpu/plans, or $CONVOY_PLAN_CACHE, for the next run; tests search for theirs again.
set -euo pipefail
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.."
work=build/gpu
tests=(test_core_device test_optim_gpu test_comm_peer_gpu test_comm_nccl_gpu test_exec_cuda_gpu test_train_cuda_gpu)
parts=$work/parts
mkdir -p $work
export CONVOY_PLAN_CACHE=${CONVOY_PLAN_CACHE:-$PWD/$work/plans} CONVOY_DATA=${CONVOY_DATA:-$PWD/$parts}
limit=${GPU_SECONDS:-480}
say() { echo "gpu.sh: $*"; }
# The seconds that are left for the part under way, which ends at `until`; of those for all, some are the report's.
until=$limit
left() { echo $((until > SECONDS ? until - SECONDS : 1)); }
# limited SECONDS COMMAND...: runs a command; 124 if its time did not suffice.
limited() {
  local code=0
  timeout -k 5 "$@" || code=$?
  [ $code -ne 137 ] || code=124
  return $code
}
# worse CODE CODE: the worse of two ends: a failure, then a time that did not suffice, then success.
worse() { if [ "$1" -eq 0 ] || { [ "$1" -eq 124 ] && [ "$2" -ne 0 ]; }; then echo "$2"; else echo "$1"; fi; }

if [ "${1:-}" = fetch ]; then
  mkdir -p $parts/doctest
  cp "$(find /usr/include /usr/local/include -path '*doctest/doctest.h' | head -1)" $parts/doctest/
  cp /usr/include/zlib.h /usr/include/zconf.h $parts/
  cp "$(find /usr/lib /usr/lib64 -name libz.a 2>/dev/null | head -1)" $parts/
  if [ "$CONVOY_DATA" != "$PWD/$parts" ] && [ -d "$CONVOY_DATA/mnist" ]; then
    mkdir -p $parts/mnist
    cp --no-preserve=mode "$CONVOY_DATA"/mnist/* $parts/mnist/
  fi
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
nccl=$(first 'libnccl.so*' "${folders[@]}" 2>/dev/null || true)
users_path=${LD_LIBRARY_PATH:-}
LD_LIBRARY_PATH=$(dirname "$cudnn"):$(dirname "$cublas")${nccl:+:$(dirname "$nccl")}${users_path:+:$users_path}
export LD_LIBRARY_PATH

# Forgets the results of the programs; new ones make them void.
forget() { rm -rf $work/tests $work/tests.names $work/sanitizer $work/cases $work/bench.jsonl $work/{done,partial}.{tests,bench,sanitizer}; }

ask() { nvidia-smi --query-gpu="$1" --format=csv,noheader | sed -n 1p; }
if device=$(ask name,driver_version 2>/dev/null); then
  arch=sm_$(ask compute_cap | tr -d .)
  if [ "$(cat $work/device 2>/dev/null)" != "$device" ]; then
    forget
    rm -f $work/peers.jsonl $work/{done,partial}.peers
    echo "$device" >$work/device
  fi
elif [ -n "${GPU_ARCH:-}" ] && [ "$*" = build ]; then
  arch=$GPU_ARCH
else
  say "there is no GPU here; GPU_ARCH=sm_90 scripts/gpu.sh build would build for one elsewhere" >&2
  exit 1
fi

part_build() {
  forget
  [ -x "$nvcc" ] || { say "nvcc was not found in PATH, /usr/local/cuda or Python's wheels" >&2; return 1; }
  local cudnn_h nccl_h
  cudnn_h=$(first cudnn.h "${folders[@]}")
  nccl_h=$(first nccl.h "${folders[@]}" 2>/dev/null || true)
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
    if [ -n "$nccl" ] && [ -n "$nccl_h" ]; then echo "test_comm_nccl_gpu -I$(dirname "$nccl_h") test/test_comm_nccl_gpu.cu"; fi
    echo "test_main -x cu test/main.cpp"
  } >$work/sources
  limited "$(left)" xargs -P "$(nproc)" -L 1 sh -c 'name=$0; exec "$@" -c -o '$work'/$name.o' <<<"$(
    while read -r name source; do echo "$name $nvcc ${flags[*]} $source"; done <$work/sources
  )"
  ar rcs $work/compiled_cuda.a "${compiled[@]}"
  for test in "${tests[@]}"; do
    local more=()
    if [ $test = test_comm_nccl_gpu ]; then
      [ -f $work/$test.o ] || { rm -f $work/$test; continue; }
      more=("-L$(dirname "$nccl")" "-l:$(basename "$nccl")" -Xlinker "-rpath=$(dirname "$nccl")")
    fi
    "$nvcc" -o $work/$test $work/$test.o $work/test_main.o $work/compiled_cuda.a "${libraries[@]}" "${more[@]}"
  done
  "$nvcc" -o $work/gpu_bench $work/gpu_bench.o $work/compiled_cuda.a "${libraries[@]}"
  rm $work/*.[ao]
  "$nvcc" --version | sed -n 's/.*release \([^,]*\).*/\1/p' >$work/cuda
}
# Whether the programs in build/gpu are for this GPU and start here; they may have been built elsewhere.
is_built() { [ "$(cat $work/done.build 2>/dev/null)" = "$arch" ] && $work/test_exec_cuda_gpu --count >/dev/null 2>&1; }

# each PART SHARES NAME COMMAND...: runs a command of a part, in one of SHARES equal shares of the part's time, unless it ended well
# in an earlier run. Its output is in PART/NAME.
each() {
  local shares=$2 name=$3 log=$work/$1/$3 code=0
  shift 3
  mkdir -p "$(dirname "$log")"
  if [ -f "$log.done" ]; then say "$name is done"; return; fi
  { echo "== $name" && limited $(($(left) / shares + 1)) "$@"; } 2>&1 | tee "$log" || code=$?
  case $code in
    0) touch "$log.done" ;;
    124) echo "$name was cut off" | tee -a "$log" ;;
  esac
  return $code
}

# case_of PROGRAM NAME: runs a test case in a process of its own, so that a failure spoils no other, for a third of the time at most.
case_of() {
  local code=0
  # In a filter, a comma separates names. Plans that were timed beside other tests must not be kept.
  CONVOY_PLAN_CACHE='' each tests 3 "$1 ${2//[^A-Za-z0-9]/_}" $work/$1 "-tc=${2//,/?}" >/dev/null || code=$?
  [ $code -eq 0 ] || { say "$1, $2: ended with $code"; echo $code >>$work/tests.codes; }
}

# Test cases run side by side, but those of exchanges, whose ranks wait for each other, one after the other.
part_tests() {
  local worst=0 running=0 program name
  rm -f $work/tests.codes
  for program in "${tests[@]}"; do
    if [ $program = test_comm_nccl_gpu ] && ! { [ -n "$nccl" ] && [ -x $work/$program ]; }; then
      say "NCCL is not here" >&2
      continue
    fi
    $work/$program --list-test-cases | sed "/^\[doctest\]\|^===/d; s/^/$program /"
  done >$work/tests.names
  grep ^test_comm $work/tests.names | while read -r program name; do case_of "$program" "$name"; done &
  while read -r program name; do
    case_of "$program" "$name" &
    # The processes of a test also compute the reference.
    if [ $((++running)) -ge $((($(nproc) + 1) / 2)) ]; then wait -n; fi
  done < <(grep -v ^test_comm $work/tests.names)
  wait
  say "$(find $work/tests -name '*.done' | wc -l) of $(wc -l <$work/tests.names) test cases passed"
  if [ -f $work/tests.codes ]; then
    while read -r code; do worst=$(worse $worst $code); done <$work/tests.codes
  fi
  return $worst
}

part_bench() {
  local worst=0 but=()
  { limited 30 $work/gpu_bench --list all_reduce && limited 30 $work/gpu_bench --list; } >$work/cases ||
    say "the cases of gpu_bench are unknown"
  limited 30 $work/gpu_bench --properties >$work/properties.json || say "the properties of the GPU are unknown"
  if [ -z "$again" ] && [ -f $work/bench.jsonl ]; then but=(--but $work/bench.jsonl); fi
  # Ranks that share the GPU need a separate run: see gpu_bench.cu.
  limited $(($(left) / 5 + 1)) $work/gpu_bench "${but[@]}" all_reduce | tee -a $work/bench.jsonl || worst=$?
  limited "$(left)" $work/gpu_bench "${but[@]}" | tee -a $work/bench.jsonl || worst=$(worse $worst $?)
  return $worst
}

# Exchanges over peer memory are left out: the tools run one kernel at a time, and these wait for each other.
part_sanitizer() {
  mkdir -p $work/sanitizer
  command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not here" | tee $work/sanitizer/none; return; }
  rm -f $work/sanitizer/none
  local worst=0 shares=8
  for tool in memcheck racecheck; do
    sanitized() {
      each sanitizer $((shares--)) "$tool of $1" compute-sanitizer --tool $tool --error-exitcode 9 "${@:2}" || worst=$(worse $worst $?)
    }
    sanitized operations $work/test_exec_cuda_gpu -tc="*each operation agrees*"
    sanitized optimizers $work/test_optim_gpu -tc="rules compute*,Muon computes*"
    sanitized codecs $work/gpu_bench codec/
    sanitized "operations in 16 bits" $work/test_exec_cuda_gpu -tc="*in 16 bits gradients*"
  done
  return $worst
}

part_peers() {
  if ! LD_LIBRARY_PATH=$users_path python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    say "PyTorch with a GPU is not here"
    return
  fi
  local but=()
  if [ -z "$again" ] && [ -f $work/peers.jsonl ]; then but=(--but $work/peers.jsonl); fi
  LD_LIBRARY_PATH=$users_path limited "$(left)" python3 bench/peers/torch_step_gpu.py "${but[@]}" | tee -a $work/peers.jsonl
}

part_report() { python3 bench/gpu_report.py $work "$device" "$(cat $work/cuda)"; }

# The parts, each with its share of the time that is left to it and the parts that follow.
declare -A weight=([build]=100 [tests]=3 [bench]=4 [sanitizer]=2 [peers]=4 [report]=0)
all=(build tests bench sanitizer peers report)
chosen=("$@")
again=${1:-}
if [ $# -eq 0 ]; then
  if ! is_built; then
    forget
    rm -f $work/done.build
  fi
  unbegun=() cut_off=()
  for part in "${all[@]}"; do
    if [ -f $work/done.$part ]; then say "$part is done";
    elif [ -f $work/partial.$part ]; then cut_off+=("$part");
    elif [ "$part" != report ]; then unbegun+=("$part"); fi
  done
  chosen=("${unbegun[@]}" "${cut_off[@]}" report)
fi
for part in "${chosen[@]}"; do
  [[ " ${all[*]} " == *" $part "* ]] || { say "there is no part '$part'; there are fetch ${all[*]}" >&2; exit 2; }
done
status=0
for ((i = 0; i < ${#chosen[@]}; ++i)); do
  part=${chosen[i]}
  until=$limit
  of=0
  for later in "${chosen[@]:i}"; do of=$((of + weight[$later])); done
  if [ $of -gt 0 ]; then until=$((SECONDS + $(left) * weight[$part] / of)); fi
  say "$part, $(left) s of $((limit - SECONDS))"
  rm -f $work/{done,partial}.$part
  if [ -n "$again" ]; then rm -f $work/$part/*.done; fi
  # Not as a condition, because bash ignores set -e within one.
  set +e
  (set -e && part_$part)
  code=$?
  set -e
  case $code in
    0) if [ "$part" != report ]; then echo "$arch" >$work/done.$part; fi ;;
    124) say "$part was cut off" && touch $work/partial.$part ;;
    *) say "$part failed" ;;
  esac
  if [ $code -ne 0 ]; then status=1; fi
  if [ $code -ne 0 ] && [ "$part" = build ]; then exit 1; fi
done
exit $status

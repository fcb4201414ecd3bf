#!/usr/bin/env bash
# test.sh: installs what is missing, builds, and runs every test that this machine can run: the full suite, and its sanitizer
# tests, which look for memory errors and data races. The last line counts them all.
set -euo pipefail
. "$(dirname "$0")/usage.sh"
[ $# -eq 0 ] || usage
cd "$(dirname "$0")/.."

scripts/dependencies.sh test
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
jobs=$(nproc)
werror=OFF
if [ -n "${CI:-}" ]; then werror=ON; fi  # a newer compiler's new warnings must not keep a user from testing

mkdir -p build
total=0 failed=0
build() {
  cmake --preset "$1" -DCMAKE_UNITY_BUILD=ON -DCMAKE_COMPILE_WARNING_AS_ERROR=$werror "${@:2}"
  cmake --build --preset "$1" -j "$jobs"
}
check() {
  local log="build/test-$1.log" line
  ctest --preset "$1" -j "$jobs" </dev/null | tee "$log" || true
  line=$(grep -E '^[0-9]+% tests passed, [0-9]+ tests failed out of [0-9]+' "$log") || {
    echo "test.sh: ctest --preset $1 did not come to its end" >&2
    exit 1
  }
  total=$((total + $(sed -E 's/.* out of ([0-9]+).*/\1/' <<<"$line")))
  failed=$((failed + $(sed -E 's/.*passed, ([0-9]+) .*/\1/' <<<"$line")))
}

# Without a GPU the CUDA programs are only compiled, and optimization would be half of nvcc's time.
cuda=(-DCMAKE_CUDA_ARCHITECTURES=80-virtual "-DCMAKE_CUDA_FLAGS_RELEASE=-O0 -Xcicc -O0 -DNDEBUG")
if nvidia-smi -L >/dev/null 2>&1; then cuda=(); fi
build release -DCONVOY_TESTS=ON -DCONVOY_EXAMPLES=ON -DCONVOY_BENCH=ON -DCONVOY_HOST=ON -DCONVOY_MPI=ON \
  "${cuda[@]}"
# With this sanitizer clang takes half of g++'s time or less, and the tests are run with both compilers.
compiler=()
if echo 'int main() {}' | clang++ -fsanitize=address,undefined -x c++ - -o build/probe 2>/dev/null; then
  compiler=(-DCMAKE_CXX_COMPILER=clang++)
fi
# Tests that wait leave a quarter of the processors' time to the compilers of the sanitizer builds, which have the lowest
# priority.
(
  renice -n 19 "$BASHPID" >/dev/null
  build asan "${compiler[@]}"
  build tsan
) >build/sanitizers.log 2>&1 &
sanitizers=$!
check release
wait "$sanitizers" || {
  cat build/sanitizers.log
  exit 1
}
check asan
check tsan

echo "release, asan and tsan together, in $((SECONDS / 60)) min $((SECONDS % 60)) s:"
echo "$(((total - failed) * 100 / total))% tests passed, $failed tests failed out of $total"
[ "$failed" -eq 0 ]

#!/usr/bin/env bash
# comm_bench.sh PROGRAM [MPIRUN]: the benchmark runs every kind of case on threads and processes, and all ranks end. It checks the result
# of each case itself.
set -u
program=$1
mpirun=${2:-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
failures=0

failed() {
  echo "FAILED $*"
  sed 's/^/    /' "$scratch/out" | tail -20
  failures=$((failures + 1))
}
# runs CASES COMMAND...: the command succeeds and reports at least CASES cases
runs() {
  cases=$1
  shift
  timeout 120 "$@" --benchmark_min_time=0.0001 --benchmark_color=false > "$scratch/out" 2>&1 < /dev/null || failed "$*: ended with $?"
  [ "$(grep -c manual_time "$scratch/out")" -ge "$cases" ] || failed "$*: fewer than $cases cases"
}
runs 30 "$program" --ranks 3 --types f32,bf16 --benchmark_filter='/(1024|262144)/'
# more ranks than a short buffer has cache lines, and than bf16 can number and sum
runs 10 "$program" --ranks 24 --types f32,bf16 --benchmark_filter='(all_reduce|reduce_scatter|all_gather|broadcast)/(ring|direct)/.*/1024/'
runs 3 "$program" --ranks 1 --benchmark_filter='(all_reduce|reduce_scatter|all_gather)/ring/.*/1024/'
grep manual_time "$scratch/out" | grep -qv 'busbw_GBps=0$' && failed "one rank: a bandwidth between ranks"
runs 5 "$program" --ranks 2 --benchmark_filter='exchange/.*/resnet18'
timeout 60 "$program" --ranks none > "$scratch/out" 2>&1 && failed "a number of ranks that is none"
grep -q -- "--ranks must be" "$scratch/out" || failed "the option at fault is not named"
timeout 60 "$program" --benchmrk_filter=x > "$scratch/out" 2>&1 && failed "a flag that there is not"
grep -q -- "--benchmrk_filter" "$scratch/out" || failed "the flag that there is not is not named"
for filter in nothing '('; do
  timeout 60 "$program" --benchmark_filter="$filter" > "$scratch/out" 2>&1 && failed "a filter of '$filter', which selects no case"
  grep -q "comm_bench: --benchmark_filter selects no case" "$scratch/out" || failed "the filter of '$filter' is not named"
done
if [ -c /dev/full ]; then
  for what in --help "--ranks 1 --benchmark_filter=all_reduce/ring/threads/f32/1024 --benchmark_min_time=0.0001"; do
    # shellcheck disable=SC2086  # several words
    timeout 60 "$program" $what > /dev/full 2> "$scratch/out" && failed "a full disk, $what: ended well"
    grep -q "comm_bench: the standard output cannot be written" "$scratch/out" || failed "a full disk, $what: it does not say so"
  done
fi
if [ -n "$mpirun" ]; then
  launch=$mpirun
  # shellcheck disable=SC2086  # several words
  runs 30 $launch -np 2 "$program" --benchmark_filter='/(1024|262144)/'
  for name in all_reduce/native/mpi all_reduce/hierarchical/mpi all_reduce/direct/shm reduce_scatter/native/mpi bound/direct/shm; do
    grep -q "^$name/f32/1024/" "$scratch/out" || failed "there is no case $name"
  done
  # shellcheck disable=SC2086
  runs 8 $launch -np 3 "$program" --benchmark_filter='exchange/.*/resnet18'
fi
[ $failures -eq 0 ] && echo "comm_bench times what it should"
exit $((failures > 0))

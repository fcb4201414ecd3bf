#!/usr/bin/env bash
# doctor.sh PROGRAM [MPIRUN]: doctor succeeds and measures each transport that is available, alone and under mpirun.
set -u
program=$1
mpirun=${2:-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
failures=0

# says PATTERN COMMAND...: the command succeeds, and its output without blanks and line ends has the pattern
says() {
  pattern=$1
  shift
  if ! timeout 60 "$@" > "$scratch/out" 2>&1 < /dev/null || ! tr -d ' \n' < "$scratch/out" | grep -Eq -e "$pattern"; then
    echo "FAILED $*: ended badly, or nothing in it is like '$pattern'"
    sed 's/^/    /' "$scratch/out" | head -20
    failures=$((failures + 1))
  fi
}
measured='"alpha_seconds":[0-9.e-]+,"beta_seconds_per_byte":[1-9][0-9.e-]+'
says 'threadsranksofaprocess.*256MiBdirect' "$program"
says "\"ranks_of_node\":\[1\].*\"transport\":\"threads\",\"between\":\"ranksofaprocess\",$measured.*\"bytes\":1024,\"algorithm\":\"[a-z]" "$program" --json
if [ -n "$mpirun" ]; then
  launch="$mpirun -np 3"
  # shellcheck disable=SC2086  # several words
  says "\"ranks_of_node\":\[3\].*\"shm\",\"between\":\"ranksofanode\",$measured.*\"mpi\",\"between\":\"ranksofanode\",$measured.*\"ranks\":3.*\"algorithm\":\"(ring|halving-doubling|tree)\"" $launch "$program" --json
  if [ "$(nproc)" -gt 1 ]; then
    # shellcheck disable=SC2086
    says 'warning:arankisboundtooneprocessor.*--bind-tonone' $mpirun -np 1 --bind-to core "$program"
  fi
fi
if [ -c /dev/full ] && "$program" --json > /dev/full 2> "$scratch/out"; then
  echo "FAILED a full disk: it ended well"
  failures=$((failures + 1))
fi
[ $failures -eq 0 ] && echo "doctor says what there is"
exit $((failures > 0))

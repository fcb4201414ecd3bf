#!/usr/bin/env bash
# distributed_gradients.sh PROGRAM MPIRUN: ranks, as threads and as processes, end with the same parameters as each other, bit for
# bit, and as one rank with the whole batch, up to the order of additions.
set -eu
program=$1
mpirun=$2
fail() { echo "FAILED: $*"; exit 1; }
value() { sed -n "s/^$2: //p" <<<"$1"; }

one=$(timeout 60 "$program" --threads 1)
echo "$one"
awk -v loss="$(value "$one" loss)" 'BEGIN { exit !(loss > 0 && loss < 0.05) }' || fail "one rank has not learned"

check() {
  echo "$2"
  [ "$(value "$2" ranks)" = "$3" ] || fail "$1: not $3 ranks"
  [ "$(value "$2" "ranks agree")" = yes ] || fail "$1: the ranks differ"
  for key in loss checksum; do
    awk -v a="$(value "$one" $key)" -v b="$(value "$2" $key)" \
      'BEGIN { d = a - b; if (d < 0) d = -d; if (a < 0) a = -a; exit !(a > 0 && d <= 1e-3 * a) }' ||
      fail "$1: $key is $(value "$2" $key), and $(value "$one" $key) on one rank"
  done
}
check "two threads" "$(timeout 60 "$program" --threads 2)" 2
check "four threads" "$(timeout 60 "$program" --threads 4)" 4
check "two processes" "$(timeout 60 "$mpirun" -np 2 "$program")" 2

if said=$("$program" --threads 3 2>&1); then fail "three ranks share 64 rows"; fi
[ "$said" = "distributed_gradients: a batch of 64 rows cannot be shared equally by 3 ranks" ] || fail "it says: $said"
if [ -c /dev/full ]; then
  if said=$(timeout 60 "$program" --threads 1 2>&1 > /dev/full); then fail "a full disk: it ended well"; fi
  [ "$said" = "distributed_gradients: the standard output cannot be written" ] || fail "on a full disk it says: $said"
fi

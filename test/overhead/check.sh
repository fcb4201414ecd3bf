#!/bin/sh
# check.sh PROGRAM LIMIT WHAT: instructions of one round of a program, counted by callgrind as the difference between
# two runs of different lengths.
set -eu
program=$1
limit=$2
what=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
count() {
  valgrind --tool=callgrind --callgrind-out-file="$scratch/out" "$program" "$1" > "$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
  sed -n 's/.*Collected : \([0-9]*\).*/\1/p' "$scratch/log"
}
few=$(count 10)
many=$(count 110)
per_round=$(((many - few) / 100))
echo "$what: $per_round instructions, at most $limit allowed"
[ "$per_round" -gt 0 ] && [ "$per_round" -le "$limit" ]

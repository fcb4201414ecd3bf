#!/bin/sh
# check.sh PROGRAM LIMIT: instructions that Trainer executes a step, counted by callgrind as the difference between two
# runs of different lengths.
set -eu
program=$1
limit=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
count() {
  valgrind --tool=callgrind --callgrind-out-file="$scratch/out" "$program" "$1" > "$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
  sed -n 's/.*Collected : \([0-9]*\).*/\1/p' "$scratch/log"
}
few=$(count 10)
many=$(count 110)
per_step=$(((many - few) / 100))
echo "Trainer with a null exec: $per_step instructions a step, at most $limit allowed"
[ "$per_step" -gt 0 ] && [ "$per_step" -le "$limit" ]

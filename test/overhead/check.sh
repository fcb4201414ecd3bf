#!/bin/sh
# check.sh PROGRAM LIMIT WHAT: instructions of one round of a program, counted by callgrind.
set -eu
program=$1
limit=$2
what=$3
rounds=100
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
valgrind --tool=callgrind --instr-atstart=no --callgrind-out-file="$scratch/out" "$program" "$rounds" >"$scratch/log" 2>&1 || {
  cat "$scratch/log"
  exit 1
}
all=$(sed -n 's/.*Collected : \([0-9]*\).*/\1/p' "$scratch/log")
per_round=$((all / rounds))
echo "$what: $per_round instructions, at most $limit allowed"
[ "$per_round" -gt 0 ] && [ "$per_round" -le "$limit" ]

#!/usr/bin/env bash
# own_exchange.sh PROGRAM: the example's schedule and policy both train.
set -eu
out=$(timeout 100 "$1")
echo "$out"
for name in star "local sgd"; do
  echo "$out" | grep -Eq "^$name: test accuracy (0\.9[0-9]*|1)$" || { echo "FAILED: no accuracy above 0.9 with $name"; exit 1; }
done
if said=$(timeout 100 "$1" --epochs 2>&1) || [ "$said" != "own_exchange: there are no options, but '--epochs' was given" ]; then
  echo "FAILED: with an argument it says: $said"
  exit 1
fi
if [ -c /dev/full ]; then
  if said=$(timeout 100 "$1" 2>&1 > /dev/full) || [ "$said" != "own_exchange: the standard output cannot be written" ]; then
    echo "FAILED: on a full disk it says: $said"
    exit 1
  fi
fi

#!/usr/bin/env bash
# own_optimizer.sh PROGRAM: the example's optimizer trains, and to the same accuracy when it is chosen at run time.
set -eu
out=$(timeout 100 "$1")
echo "$out"
for name in lion "any optimizer"; do
  echo "$out" | grep -Eq "^$name: test accuracy (0\.9[0-9]*|1)$" || { echo "FAILED: no accuracy above 0.9 with $name"; exit 1; }
done
[ "$(echo "$out" | sed 's/.* //' | sort -u | wc -l)" -eq 1 ] || { echo "FAILED: the accuracies differ"; exit 1; }
if said=$(timeout 100 "$1" --epochs 2>&1) || [ "$said" != "own_optimizer: there are no options, but '--epochs' was given" ]; then
  echo "FAILED: with an argument it says: $said"
  exit 1
fi
if [ -c /dev/full ]; then
  if said=$(timeout 100 "$1" 2>&1 > /dev/full) || [ "$said" != "own_optimizer: the standard output cannot be written" ]; then
    echo "FAILED: on a full disk it says: $said"
    exit 1
  fi
fi

#!/usr/bin/env bash
# own_operation.sh PROGRAM: the example's operation, loss and metric train, and its parameter is trained, too.
set -eu
out=$(timeout 100 "$1")
echo "$out"
echo "$out" | grep -Eq "^test loss: 0\.[0-9]+$" || { echo "FAILED: the loss is not that of a trained model"; exit 1; }
echo "$out" | grep -Eq "^among the first three: (0\.9[0-9]*|1)$" || { echo "FAILED: the metric is not that of a trained model"; exit 1; }
echo "$out" | grep -Eq "^beta: [0-9.]+$" && ! echo "$out" | grep -qx "beta: 1" || { echo "FAILED: beta was not trained"; exit 1; }
if said=$(timeout 100 "$1" --epochs 2>&1) || [ "$said" != "own_operation: there are no options, but '--epochs' was given" ]; then
  echo "FAILED: with an argument it says: $said"
  exit 1
fi
if [ -c /dev/full ]; then
  if said=$(timeout 100 "$1" 2>&1 > /dev/full) || [ "$said" != "own_operation: the standard output cannot be written" ]; then
    echo "FAILED: on a full disk it says: $said"
    exit 1
  fi
fi

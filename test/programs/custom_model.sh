#!/usr/bin/env bash
# custom_model.sh PROGRAM: the example's model trains, and takes no arguments.
set -eu
out=$(timeout 200 "$1")
echo "$out"
echo "$out" | grep -Eq "^Epoch 0 .* test accuracy:(0\.9[0-9]*|1\.0+)," || { echo "FAILED: no accuracy above 0.9"; exit 1; }
if said=$(timeout 200 "$1" --epochs 2>&1) || [ "$said" != "custom_model: there are no options, but '--epochs' was given" ]; then
  echo "FAILED: with an argument it says: $said"
  exit 1
fi

#!/usr/bin/env bash
# predict.sh PROGRAM: predict reads every cluster that is shipped, ranks policies, and writes the files that it is asked for.
set -u
program=$1
clusters=$(cd "$(dirname "$0")/../../bench/clusters" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

failed() {
  echo "FAILED $*"
  sed 's/^/    /' "$scratch/out" | tail -20
  failures=$((failures + 1))
}
# says PATTERN OPTIONS...: predict succeeds, and a line of its output matches the pattern
says() {
  pattern=$1
  shift
  timeout 120 "$program" "$@" > "$scratch/out" 2>&1 < /dev/null || failed "$*: ended with $?"
  grep -Eq -e "$pattern" "$scratch/out" || failed "$*: nothing is like '$pattern'"
}
# refuses SENTENCE OPTIONS...: predict fails, and its output has the sentence
refuses() {
  sentence=$1
  shift
  timeout 60 "$program" "$@" > "$scratch/out" 2>&1 < /dev/null && failed "$*: was not refused"
  grep -q -- "$sentence" "$scratch/out" || failed "$*: does not say '$sentence'"
}

for cluster in "$clusters"/*.json; do
  says '^ring +[0-9.]+ ' "$cluster" --model resnet18-mnist --batch 128 --samples-per-second 120 --comm ring
  says '^hierarchical +[0-9.]+ ' "$cluster" --nodes 2 --ranks-per-node 4 --model resnet50 --batch 32
done
pair=$clusters/2080ti_pair.json
for model in bert transformer convnet; do
  says '^ring ' "$pair" --model $model --batch 8 --comm ring,tree --no-overlap --bucket-mib tensor
done
says '"comm": "ring"' "$pair" --model convnet --batch 64 --comm ring --json -
# A name that is not UTF-8 loses no result.
printf '{"name": "zwei Knoten f\xfcr heute", "nodes": [{"count": 2}]}' > "$scratch/latin.json"
says '"cluster": "zwei Knoten f.*r heute"' "$scratch/latin.json" --model convnet --batch 64 --samples-per-second 100 --comm ring --json -
# Over a slow network, the network card limits an exchange that does not overlap.
says '^ring .* nic ' "$pair" --nodes 2 --ranks-per-node 1 --model bert --batch 8 --comm ring --no-overlap
says '^ring ' "$pair" --model bert --batch 8 --codec bf16 --background --weighted
# A background thread leaves out only the policy that cannot have one.
says '^ring ' "$pair" --model convnet --batch 8 --background
grep -q '^ps ' "$scratch/out" && failed "a parameter server has a background thread"
says '^ring ' "$pair" --nodes 2 --model resnet50 --batch 32 --codec powersgd --codec-rank 2
# If an optimizer's matrices stay whole, ranks have unequal shards, and the longest decides.
said() {
  awk -v comm="$1" '$1 == comm { print $2 }' "$scratch/out"
}
says '^sharded ' "$pair" --model resnet18 --batch 8 --comm sharded --flops 1e13 --bandwidth 6e11
even=$(said sharded)
says '^sharded ' "$pair" --model resnet18 --batch 8 --comm sharded --flops 1e13 --bandwidth 6e11 --optimizer muon
awk -v even="$even" -v uneven="$(said sharded)" 'BEGIN { exit !(uneven > 1.02 * even) }' || failed "the parts of Muon cost no more than equal ones, $even ms"
refuses 'optimizer' "$pair" --model convnet --batch 8 --optimizer none
says '^ps-stale ' "$pair" --model convnet --batch 64 --comm ps,ps-async,ps-stale --servers 2 --staleness 3

says '^ring ' "$pair" --model resnet18-mnist --batch 128 --comm ring --trace "$scratch/trace.json" --chakra "$scratch/step" --json "$scratch/out.json"
grep -q '"ph":"X","name":"bucket 0","pid":1' "$scratch/trace.json" || failed "the trace shows no bucket"
grep -q '"step_seconds"' "$scratch/out.json" || failed "the JSON has no step"
step=$(grep '^ring ' "$scratch/out" | awk '{print $2}')
[ -f "$scratch/step.7.et" ] || failed "there is no Chakra trace of rank 7"
says "^ring +${step%.*}\\." "$pair" --from-chakra "$scratch/step.0.et" --batch 128 --comm ring

# Settings that were not measured are predicted from those that were.
printf '%s\n' num_nodes,gpu_num_per_node,batch_size_per_device,sentences_per_sec 1,1,64,150 1,8,64,1140 2,8,64,2190 4,8,64,4310 > "$scratch/bert.csv"
says '^bert_base, batch 32, 2 x 4 V100 +[0-9.]+/s' calibrate "$scratch/bert.csv" --split 1 --json "$scratch/fit.json" --predict nodes=2,gpus=4,batch=32
grep -q '"parameters"' "$scratch/fit.json" || failed "the JSON has no parameters"
says '^bert_base' calibrate "$scratch/bert.csv" --predict nodes=2,gpus=4,batch=32 --cluster "$scratch/fitted.json"
says '^hierarchical ' "$scratch/fitted.json" --model bert --batch 32 --samples-per-second 150
grep -q 'samples/s of bert_base' "$scratch/fitted.json" || failed "the cluster does not say what its workers do alone"
says '^4 held out: median error 0[.]' calibrate "$scratch/bert.csv" --check "$scratch/bert.csv"
for written in json cluster; do
  refuses "--$written .* would overwrite the file of the measurements, " calibrate "$scratch/bert.csv" --predict nodes=2,gpus=4,batch=32 --$written "$scratch/bert.csv"
done
cp "$pair" "$scratch/pair.json"
for written in json trace; do
  refuses "--$written .* would overwrite the file of the cluster, " "$scratch/pair.json" --model convnet --batch 8 --$written "$scratch/../$(basename "$scratch")/pair.json"
done
cmp -s "$pair" "$scratch/pair.json" || failed "the cluster's file has changed"
echo 5,5 >> "$scratch/bert.csv"
refuses 'bert.csv, line 6 has 2 fields; expected 4' calibrate "$scratch/bert.csv"

for option in '--bucket-mib 1' --keep-dead-taps; do
  refuses "excludes" "$pair" --from-chakra "$scratch/step.0.et" --batch 128 --comm ring $option
done
refuses '^predict: --keep-dead-taps is for models with convolutions, and bert has none$' "$pair" --model bert --batch 8 --comm ring --keep-dead-taps
says '^ring ' "$pair" --model resnet18-mnist --batch 8 --comm ring --samples-per-second 100 --keep-dead-taps
refuses 'model' "$pair" --batch 8
says 'batches of 8 on' "$pair" --model convnet --batch 08 --comm ring
refuses '^--jitter: nan is not a number from 0 to 1$' "$pair" --model convnet --batch 8 --jitter nan
for rate in inf 1e300; do
  refuses "^--samples-per-second: $rate is above 1e+12\$" "$pair" --model convnet --batch 8 --samples-per-second $rate
done
for option in flops bandwidth; do
  refuses "^--$option: inf is above 1e+24\$" "$pair" --model convnet --batch 8 --$option inf
done
for option in json trace chakra; do
  refuses "^--$option: the path is empty$" "$pair" --model convnet --batch 8 --$option ''
done
for option in '--servers 2' --servers-beside '--staleness 2' '--codec-fraction 0.5' '--codec-rank 2'; do
  refuses "^predict: ${option% *} is for .*, which is not among what is predicted$" "$pair" --model convnet --batch 8 --comm ring $option
done
says '^predict: --ranks-per-node 100 is more than the 4 workers that .* describes in a node$' "$pair" --model convnet --batch 8 --comm ring --ranks-per-node 100
says 'roofline of the device in' --help
if [ -c /dev/full ]; then
  for what in '' '--json -'; do
    "$program" "$pair" --model convnet --batch 8 --comm ring $what > /dev/full 2> "$scratch/out" && failed "a full disk, $what: ended well"
    grep -q '^predict: the standard output cannot be written$' "$scratch/out" || failed "a full disk, $what: does not say so"
  done
fi
refuses '^--seed: 18446744073709551616 is beyond the numbers of 64 bits$' "$pair" --model convnet --batch 8 --seed 18446744073709551616
refuses 'there is no comm "rung" to simulate' "$pair" --model convnet --batch 8 --comm rung
refuses 'needs ranks that see each other' "$pair" --model convnet --batch 8 --comm direct
refuses "cannot grow to 3 nodes" "$pair" --nodes 3 --model convnet --batch 8
echo '{"name": "bad", "nodes": [{"ranks": 0}]}' > "$scratch/bad.json"
refuses 'nodes\[0\].ranks is 0; it must be 1 to 2^20' "$scratch/bad.json" --model convnet --batch 8
refuses 'takes MiB above 0 and below 2^20' "$pair" --model convnet --batch 8 --bucket-mib none
[ $failures -eq 0 ] && echo "predict ranks policies on every cluster"
exit $((failures > 0))

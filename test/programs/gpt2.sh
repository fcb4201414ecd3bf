#!/usr/bin/env bash
# gpt2.sh PROGRAM: learns a text by heart, goes on from its weights, and refuses files that are none of tokens.
program=$1
. "$(dirname "$0")/trains.bash"
for _ in $(seq 200); do echo "The quick brown fox jumps over the lazy dog, and that is all."; done > "$scratch/text"
small="--layers 2 --width 32 --heads 2 --length 32 --batch 8"
trains "a text by bytes" 1.5 --data "$scratch/text" $small --epochs 6 --steps 200 --lr 0.01 --quiet --checkpoint "$scratch/kept"
trains "two ranks that go on from its weights" 1.5 --data "$scratch/text" $small --steps 2 --lr 1e-5 --ranks 2 --quiet \
  --weights "$scratch/kept/step-200/model.safetensors" --csv "$scratch/steps.csv"
grep -q "^step,epoch,rows,loss,.*tokens_per_sec$" "$scratch/steps.csv" && [ "$(wc -l < "$scratch/steps.csv")" -eq 3 ] ||
  complain "a line for each step"
"$program" $small --threads 1 --data "$scratch/text" --checkpoint "$scratch/kept" --evaluate > "$scratch/out" 2>&1 &&
  grep -q "^test loss:.*200 steps of training" "$scratch/out" || complain "evaluation of a checkpoint"
refused "an id beyond the vocabulary" "has id [0-9]+ at byte [0-9]+, expected one below 64" --data "$scratch/text" $small --vocabulary 64
printf 12345 > "$scratch/odd"
refused "half an id" "odd is 5 bytes long, expected a multiple of 4" --data "$scratch/odd" --bits 32 $small
refused "heads that do not divide" "heads" --data "$scratch/text" --layers 1 --width 30 --heads 4 --length 16
refused "a missing text" "nowhere" --data "$scratch/nowhere"
refused "weights of another model" "is not of the shape|has no '" --data "$scratch/text" --layers 2 --width 64 --heads 2 --length 32 --weights "$scratch/kept/step-200/model.safetensors"
finish

#!/usr/bin/env bash
# sst5_transformer.sh PROGRAM: tells good sentences from bad ones, and refuses invalid trees.
program=$1
. "$(dirname "$0")/trains.bash"
mkdir "$scratch/sst"
for i in $(seq 40); do
  echo "(4 (2 film$i) (4 (2 is) (4 wonderful)))"
  echo "(0 (2 film$i) (0 (2 is) (0 dreadful)))"
done > "$scratch/sst/train.txt"
cp "$scratch/sst/train.txt" "$scratch/sst/dev.txt"
cp "$scratch/sst/train.txt" "$scratch/sst/test.txt"
small="--layers 1 --width 32 --heads 2 --ffn 64 --length 8 --batch 16 --quiet"
trains "sentences" 0.3 --data "$scratch/sst" $small --epochs 12 --lr 0.01
# Every sentence has three words, and five positions of padding.
awk -F'[:,]' '/"samples_per_sec"/ { rows = $2 } /"words_per_sec"/ { words = $2 } END { exit !(words > 2.99 * rows && words < 3.01 * rows) }' \
  "$scratch/result.json" || complain "a rate of words without padding"
trains "phrases, by two ranks" 1.5 --data "$scratch/sst" $small --epochs 2 --lr 0.01 --phrases --ranks 2 --comm sharded
refused "batch norms of all ranks" "^sst5_transformer: --sync-batch-norm is for models with batch norms, and transformer has none$" --data "$scratch/sst" $small --sync-batch-norm
refused "taps of filters" "^sst5_transformer: --keep-dead-taps is for models with convolutions, and transformer has none$" --data "$scratch/sst" $small --keep-dead-taps
echo "(4 (2 a" >> "$scratch/sst/dev.txt"
refused "a tree that does not end" "dev.txt has no '\)' after a token" --data "$scratch/sst" $small
refused "a missing folder" "^sst5_transformer: --data: $scratch/nowhere does not exist$" --data "$scratch/nowhere" $small
finish

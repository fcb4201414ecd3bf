#!/usr/bin/env bash
# bert_pretrain.sh PROGRAM: pre-trains on a text that it makes, and refuses invalid vocabularies and texts.
program=$1
. "$(dirname "$0")/trains.bash"
words="the a fox dog jumps sleeps over under lazy quick house river . ,"
printf '%s\n' "[PAD]" "[UNK]" "[CLS]" "[SEP]" "[MASK]" $words > "$scratch/vocab.txt"
for i in $(seq 30); do
  echo "the quick fox jumps over the lazy dog ."
  echo "the dog sleeps under a house , a river ."
  [ $((i % 5)) -eq 0 ] && echo
done > "$scratch/text"
small="--vocabulary $scratch/vocab.txt --layers 1 --width 32 --heads 2 --ffn 64 --length 24 --predictions 4 --batch 4 --quiet"
trains "a text" 3.0 --data "$scratch/text" $small --epochs 20 --lr 0.01
grep -q '"optimizer.epsilon": "1e-06"' "$scratch/result.json" || complain "the published epsilon"
grep -q '"positions_per_sec": [1-9]' "$scratch/result.json" || complain "a rate that counts padding"
trains "options of the rule" 4.5 --data "$scratch/text" $small --epochs 1 --beta1 0.8 --beta2 0.98 --epsilon 1e-7
grep -q '"optimizer.beta1": "0.8"' "$scratch/result.json" && grep -q '"optimizer.beta2": "0.98"' "$scratch/result.json" &&
  grep -q '"optimizer.epsilon": "1e-07"' "$scratch/result.json" || complain "the options of the rule"
trains "a rule without an epsilon" 9 --data "$scratch/text" $small --steps 1 --optimizer sgd
refused "an epsilon of no use" "^bert_pretrain: optimizer sgd has no option epsilon; it has " --data "$scratch/text" $small --optimizer sgd --epsilon 1e-6
refused "an epsilon of 0" "^--epsilon: 0 is not a number above 0$" --epsilon 0
trains "by two ranks, with a codec" 4.5 --data "$scratch/text" $small --epochs 1 --lr 0.01 --ranks 2 --codec bf16
trains "and is kept" 3.0 --data "$scratch/text" $small --epochs 20 --lr 0.01 --checkpoint "$scratch/kept"
if ! timeout 60 "$program" --threads 1 --data "$scratch/text" $small --evaluate --checkpoint "$scratch/kept" > "$scratch/out" 2>&1 ||
  ! grep -q "^training loss:[0-2][.].* rows, $scratch/kept/step-[0-9]*)$" "$scratch/out"; then
  complain "what was kept is evaluated on the text that it was trained on"
fi
refused "batch norms of all ranks" "^bert_pretrain: --sync-batch-norm is for models with batch norms, and bert has none$" --data "$scratch/text" $small --sync-batch-norm
refused "taps of filters" "^bert_pretrain: --keep-dead-taps is for models with convolutions, and bert has none$" --data "$scratch/text" $small --keep-dead-taps
refused "a table that is the vocabulary" "^bert_pretrain: --csv .* would overwrite the file of --vocabulary, " --data "$scratch/text" $small --csv "$scratch/vocab.txt"
echo "the fox ." > "$scratch/short"
refused "a missing text" "^bert_pretrain: --data: $scratch/nowhere does not exist$" $small --data "$scratch/nowhere"
refused "a text of one document" "document" --data "$scratch/short" $small
echo "[PAD]" >> "$scratch/vocab.txt"
refused "a token that is there twice" "vocab.txt.*\[PAD\]" --data "$scratch/text" $small
refused "a missing vocabulary" "^bert_pretrain: --vocabulary: $scratch/nowhere does not exist$" --data "$scratch/text" --vocabulary "$scratch/nowhere"
finish

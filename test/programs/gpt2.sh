#!/usr/bin/env bash
# gpt2.sh PROGRAM: learns a text by heart and generates it, goes on from its weights, and refuses invalid files of tokens.
program=$1
. "$(dirname "$0")/trains.bash"
for _ in $(seq 200); do echo "The quick brown fox jumps over the lazy dog, and that is all."; done > "$scratch/text"
small="--layers 2 --width 32 --heads 2 --length 32 --batch 8"
trains "a text by bytes" 1.5 --data "$scratch/text" $small --epochs 6 --steps 200 --lr 0.01 --quiet --checkpoint "$scratch/kept"
trains "two ranks that go on from its weights" 1.5 --data "$scratch/text" $small --steps 2 --lr 1e-5 --ranks 2 --quiet \
  --weights "$scratch/kept/step-200/model.safetensors" --csv "$scratch/steps.csv"
grep -q "^step,epoch,rows,loss,.*,seconds,samples_per_sec,tokens_per_sec,mean_samples_per_sec,first_row$" "$scratch/steps.csv" && [ "$(wc -l < "$scratch/steps.csv")" -eq 3 ] ||
  complain "a line for each step"
awk -F, 'NR > 1 && !($7 > 0) { exit 1 }' "$scratch/steps.csv" || complain "the norm of the gradient that is clipped"
awk -F, 'function near(a, b) { return a > 0.999 * b && a < 1.001 * b }
  NR > 1 { rows += $3; seconds += $8; if (!near($9, $3 / $8) || !near($10, 32 * $9) || !near($11, rows / seconds)) exit 1 }' "$scratch/steps.csv" ||
  complain "the rates of each step, and their mean"
for option in '"optimizer": "adamw"' '"optimizer.lr": "1e-05"' '"guard.max_norm": "1"' '"seed": "0"' '"schedule.decay": "linear"'; do
  grep -q "$option" "$scratch/result.json" || complain "the option $option in the result"
done
latin=$(printf 'fran\xe7ais')
cp "$scratch/text" "$scratch/$latin"
trains "a text whose name is not UTF-8" 9 --data "$scratch/$latin" $small --steps 1 --quiet
grep -q '"data": "fran.*ais, ' "$scratch/result.json" || complain "the text's name in the result"
trains "lines of a log" 9 --data "$scratch/text" $small --steps 4 --log-every 2
number='[0-9.e+-]+'
grep -Eq "^Step4: $number data/sec, $number tokens/sec, loss:$number, lr:$number, gradient norm:$number$" "$scratch/out" || complain "a line of steps"
grep -Eq "^Epoch 0 in $number sec, test time $number sec, test accuracy:$number, test loss:$number$" "$scratch/out" || complain "a line of an epoch"
for flag in "" --grad-norm; do
  trains "two steps without clipping $flag" 9 --data "$scratch/text" $small --clip 0 --steps 2 --quiet --csv "$scratch/steps.csv" $flag
  awk -F, -v known="$flag" 'NR > 1 && (known == "") != ($7 == "") { exit 1 }' "$scratch/steps.csv" ||
    complain "the norm of the gradient where it is measured, and there alone ($flag)"
done
cp "$scratch/steps.csv" "$scratch/before.csv"
refused "a run that would overwrite checkpoints" "kept/step-200 already exists" --data "$scratch/text" $small --checkpoint "$scratch/kept" --csv "$scratch/steps.csv"
cmp -s "$scratch/steps.csv" "$scratch/before.csv" || complain "the table of the run before, after a run that is refused"
ln -s text "$scratch/link"
for written in json csv timeline batches profile-out; do
  refused "a --$written that is the data" "^gpt2: --$written $scratch/link would overwrite the file of --data, which the run reads; choose another file$" \
    --data "$scratch/text" $small --$written "$scratch/link"
done
refused "a table that is the weights" "^gpt2: --csv .* would overwrite the file of --weights, " --data "$scratch/text" $small \
  --weights "$scratch/kept/step-200/model.safetensors" --csv "$scratch/kept/../kept/step-200/model.safetensors"
ln -s x1 "$scratch/x2"
for pair in "json csv x1 x1" "json timeline x1 ./x1" "json profile-out x1 x2" "timeline batches x2 x1"; do
  set -- $pair
  refused "one file for two outputs, $pair" "^gpt2: --$1 $scratch/$3 and --$2 $scratch/$4 are one file; choose another file for one of them$" \
    --data "$scratch/text" $small --$1 "$scratch/$3" --$2 "$scratch/$4"
done
rows() { # rows FILE ARGUMENT...: trains for two epochs of 44 steps of 8 rows (fewer in the last two), and keeps the rows in FILE
  file=$1
  shift
  trains "rows of $*" 9 --data "$scratch/text" --layers 1 --width 16 --heads 1 --length 32 --epochs 2 --quiet --batches "$scratch/$file" "$@"
}
rows alone --batch 8 --csv "$scratch/steps.csv"
count=$(awk -F, 'NR > 1 { rows += $3 } END { print rows }' "$scratch/steps.csv")
grep -aq "\"input_ids\":{\"dtype\":\"F32\",\"shape\":\[$count, 32\]" "$scratch/alone" || complain "$count rows of steps in a file"
rows ranks --batch 4 --ranks 2
rows micros --batch 4 --accumulate 2
rows seed --batch 8 --seed 1
cmp -s "$scratch/alone" "$scratch/ranks" || complain "the same rows on two ranks"
cmp -s "$scratch/alone" "$scratch/micros" || complain "the same rows in two micro-steps"
cmp -s "$scratch/alone" "$scratch/seed" && complain "another order of the rows by another seed"
# A run that is over when it resumes; the second one makes two steps where the checkpoint's run made one.
for end in "--steps 150" "--steps 340 --batch 4"; do
  "$program" $small --threads 1 --data "$scratch/text" --checkpoint "$scratch/kept" --resume --epochs 4 $end --json "$scratch/nothing.json" > "$scratch/out" 2>&1 &&
    grep -q "^the run ends at step $(cut -d ' ' -f 2 <<< "$end"), which the checkpoint has reached: no step is left$" "$scratch/out" &&
    ! grep -q "training loss" "$scratch/out" && grep -q '"loss": null' "$scratch/nothing.json" || complain "a run that is over when it resumes, $end"
done
# Another number of ranks goes on in the table of the run before, whose lines before the checkpoint stay.
world="--data $scratch/text --layers 1 --width 16 --heads 1 --length 32 --batch 4 --quiet --csv $scratch/worlds.csv --checkpoint $scratch/worlds"
epoch() { awk -F, 'NR > 1 { rows += $3 } END { print NR - 1, rows }' "$scratch/worlds.csv"; }  # lines, and their rows
trains "a run of one rank" 9 $world --steps 40
trains "and then of two" 9 $world --steps 30 --resume --ranks 2
[ "$(epoch)" = "50 240" ] || complain "40 steps of one rank and 10 of two: $(epoch)"
trains "and then of one" 9 $world --steps 64 --resume
[ "$(epoch)" = "54 256" ] || complain "and 4 of one: $(epoch)"
# 59 rows in steps of 8: the last two share 11, so that the last begins at row 54 and not at 56.
head -c 2134 "$scratch/text" > "$scratch/uneven-text"
uneven="--data $scratch/uneven-text --layers 1 --width 16 --heads 1 --length 32 --batch 8 --held-out 0.1 --quiet --epochs 2"
trains "a run with uneven steps" 9 $uneven --csv "$scratch/uneven.csv" --checkpoint "$scratch/uneven" --checkpoint-every 7 --steps 7
echo 7,0,5,1,,,,,,,,54 >> "$scratch/uneven.csv"  # as if it had logged this step after its last checkpoint
trains "and then its last step" 9 $uneven --csv "$scratch/uneven.csv" --checkpoint "$scratch/uneven" --resume --steps 8
[ "$(sed 1d "$scratch/uneven.csv" | cut -d, -f 1 | tr '\n' ' ')" = "0 1 2 3 4 5 6 7 " ] || complain "each step once: $(cut -d, -f 1,3 "$scratch/uneven.csv")"
# A table that begins within an epoch, because the run before had none.
rm "$scratch/uneven.csv"
trains "a second epoch" 9 $uneven --checkpoint "$scratch/uneven" --resume --steps 12
trains "and then a table" 9 $uneven --csv "$scratch/uneven.csv" --checkpoint "$scratch/uneven" --resume --steps 15
rm -r "$scratch/uneven/step-15"
trains "and then the same steps" 9 $uneven --csv "$scratch/uneven.csv" --checkpoint "$scratch/uneven" --resume --steps 16
[ "$(sed 1d "$scratch/uneven.csv" | cut -d, -f 1 | tr '\n' ' ')" = "12 13 14 15 " ] || complain "each step of the table once: $(cut -d, -f 1,3 "$scratch/uneven.csv")"
# Ranks that read all of the data come to the same row of it, whatever their number.
whole="--data $scratch/text --layers 1 --width 16 --heads 1 --length 32 --batch 4 --unsharded --quiet --csv $scratch/whole.csv --checkpoint $scratch/whole"
trains "two ranks that read all" 9 $whole --steps 10 --ranks 2
trains "and then one" 9 $whole --steps 15 --resume
[ "$(sed 1d "$scratch/whole.csv" | cut -d, -f 1,3 | sort -n | tr '\n' ' ')" = "$(for s in {0..14}; do printf '%d,%d ' $s $((s < 10 ? 8 : 4)); done)" ] ||
  complain "10 steps of two ranks and 5 of one: $(cut -d, -f 1,3 "$scratch/whole.csv")"
# A run that resumes says which of its options have changed, and keeps the order of its rows.
trains "a run at another rate" 9 ${world/--quiet/} --steps 66 --resume --lr 0.05 --checkpoint-every 7
grep -q "^resumed with optimizer.lr 0.05, the checkpoint's run had 0.001$" "$scratch/out" || complain "the rate that has changed"
refused "another order of the rows" "^gpt2: $scratch/worlds/step-[0-9]+ was written with seed 0, but this trainer has 1, by which .*; resume with seed 0$" \
  $world --steps 70 --resume --seed 1
refused "another text" "^gpt2: fit: the fit to resume had a training set of [0-9]+ samples and this one has [0-9]+, " \
  $world --steps 70 --resume --data "$scratch/uneven-text"
"$program" $small --threads 1 --data "$scratch/text" --quiet --steps 2 --replay-rate 1000 --csv "$scratch/replayed.csv" > "$scratch/out" 2>&1 &&
  [ "$(sed 1d "$scratch/replayed.csv" | cut -d, -f 1,4,5,7 | tr '\n' ' ')" = "0,,, 1,,, " ] || complain "a replay without losses: $(cat "$scratch/replayed.csv")"
refused "checkpoints of a replay" "^gpt2: --checkpoint $scratch/kept keeps what a training has learned, and a replay learns nothing; " \
  --data "$scratch/text" $small --checkpoint "$scratch/kept" --resume --steps 300 --replay-rate 1000
refused "a model in ONNX without logits" "onnx: the model has no outputs" --data "$scratch/text" $small --onnx "$scratch/model.onnx"
refused "rows of ranks that read all" "every rank has its own" --data "$scratch/text" $small --unsharded --batches "$scratch/rows"
"$program" $small --threads 1 --data "$scratch/text" --checkpoint "$scratch/kept" --evaluate > "$scratch/out" 2>&1 &&
  grep -q "^test loss:.* rows, $scratch/kept/step-200)$" "$scratch/out" || complain "evaluation of a checkpoint"
trains "by another optimizer" 9 --data "$scratch/text" $small --optimizer muon --steps 2 --quiet --checkpoint "$scratch/muon"
"$program" $small --threads 1 --data "$scratch/text" --checkpoint "$scratch/muon" --evaluate > "$scratch/out" 2>&1 || complain "evaluation without the optimizer of the training"
trains "the text by heart" 0.1 --data "$scratch/text" $small --epochs 64 --steps 800 --lr 0.01 --quiet --checkpoint "$scratch/heart"
generate() { "$program" $small --threads 1 --checkpoint "$scratch/heart" --generate "$@" 2>&1; }
generate 114 --prompt "The quick" --temperature 0 > "$scratch/out"
head -2 "$scratch/text" | cmp -s - "$scratch/out" || complain "two lines, longer than a row, that are known by heart"
"$program" $small --threads 1 --weights "$scratch/heart/step-800/model.safetensors" --generate 114 --prompt "The quick" --top-k 1 --seed 3 |
  cmp -s - "$scratch/out" || complain "the same by the weights, drawn from one token"
for seed in 1 2 1; do
  cp "$scratch/out" "$scratch/before"
  generate 60 --temperature 5 --top-k 0 --seed $seed > "$scratch/out"
  [ "$(wc -c < "$scratch/out")" -eq 61 ] && ! cmp -s "$scratch/out" "$scratch/before" || complain "60 bytes by seed $seed"
  [ ! -e "$scratch/seed-$seed" ] || cmp -s "$scratch/out" "$scratch/seed-$seed" || complain "a seed says the same twice"
  cp "$scratch/out" "$scratch/seed-$seed"
done
if [ -c /dev/full ]; then
  for what in "--evaluate --data $scratch/text" "--generate 60"; do
    "$program" $small --threads 1 --checkpoint "$scratch/heart" $what > /dev/full 2> "$scratch/out" && complain "a full disk, with $what: it ended well"
    grep -q "^gpt2: the standard output cannot be written$" "$scratch/out" || complain "a full disk, with $what: it does not say so"
  done
fi
if [ -c /dev/full ]; then
  timeout 60 "$program" $small --threads 1 --data "$scratch/text" --steps 1 --timeline /dev/full --json "$scratch/first.json" > "$scratch/out" 2>&1 &&
    complain "a timeline on a full disk: it ended well"
  grep -q "^| training loss " "$scratch/out" && grep -q '"steps": 1,' "$scratch/first.json" || complain "the result, if there is no room for the timeline"
fi
for comm in ps ps-async ps-stale; do
  refused "norms that the servers of $comm know" "^gpt2: --grad-norm needs .* but only the servers of --comm $comm know" --data "$scratch/text" $small --ranks 2 --comm $comm --grad-norm
done
refused "the default limit of a norm that nobody knows" "^gpt2: --comm ps-async updates before any .* --clip 1 cannot limit its norm; pass --clip 0$" \
  --data "$scratch/text" $small --ranks 2 --comm ps-async
refused "a place for servers that are not there" "^gpt2: --placement beside is for parameter servers, and --comm ring has none$" --placement beside
refused "a warm-up of no codec" "^gpt2: --codec-warmup is for the codecs topk and powersgd, not for --codec int8$" --codec int8 --codec-warmup 3
refused "batch norms of all ranks" "^gpt2: --sync-batch-norm is for models with batch norms, and gpt2 has none$" --data "$scratch/text" $small --sync-batch-norm
refused "taps of filters" "^gpt2: --keep-dead-taps is for models with convolutions, and gpt2 has none$" --data "$scratch/text" $small --keep-dead-taps
refused "a text by nothing" "--generate needs --weights or --checkpoint" --generate 5 $small
both="--weights $scratch/kept/step-200/model.safetensors --checkpoint $scratch/kept"
trains "a model of another vocabulary and one more layer" 9 --data "$scratch/text" ${small/layers 2/layers 3} --vocabulary 300 --steps 1 \
  --weights "$scratch/kept/step-200/model.safetensors" --partial-weights
grep -q "/model.safetensors: 27 tensors loaded, 12 ('transformer.h.2.[^)]*, \.\.\.) of the model's missing, 0 unexpected, 1 ('transformer.wte.weight') of another shape$" "$scratch/out" ||
  complain "the names of tensors that do not fit"
"$program" --layers 1 --width 16 --heads 2 --length 8 --threads 1 --checkpoint "$scratch/other" --data "$scratch/text" --steps 1 --quiet > "$scratch/out" 2>&1 ||
  complain "a model of another width"
refused "weights of which none fits" "^gpt2: .*/model.safetensors has no tensor that fits the model: 12 [(]'transformer.h.1.* of the model's missing, 0 unexpected, 16 [(]'transformer.wte.weight'.* of another shape$" \
  --data "$scratch/text" $small --steps 1 --quiet --weights "$scratch/other/step-1/model.safetensors" --partial-weights
refused "an evaluation of two models" "^gpt2: --evaluate evaluates either --weights or .*; leave out one of the two options$" --evaluate $small --data "$scratch/text" $both
refused "a text by two models" "^gpt2: --generate takes either --weights or .*; leave out one of the two options$" --generate 5 $small $both
for other in --evaluate "--precision bf16" "--ranks 2"; do
  refused "a text with $other" "^gpt2: ${other%% *} does not apply to --generate, .*; leave out one of the two options$" --generate 5 $small --checkpoint "$scratch/kept" $other
done
OMPI_COMM_WORLD_SIZE=2 refused "a text by each of two ranks" "^gpt2: --generate continues a text on one rank, and a launcher has started 2; start the program without it$" \
  --generate 5 $small --checkpoint "$scratch/kept"
refused "a text of a replay" "^gpt2: a replay does not apply to --generate, " --generate 5 $small --weights "$scratch/kept/step-200/model.safetensors" --replay-rate 100
refused "tokens that are no bytes" "needs --merges" --generate 5 --bits 16 $small --checkpoint "$scratch/kept"
refused "no checkpoint" "there is no checkpoint in" --generate 5 $small --checkpoint "$scratch/none"
# By byte-pair encoding: "th", "the" and " the" are tokens.
printf '#version: 0.2\nt h\nth e\n\304\240 the\n' > "$scratch/merges"
encoded="$small --vocabulary 260 --merges $scratch/merges"
trains "a text by byte-pair encoding" 9 --data "$scratch/text" $encoded --steps 20 --quiet --checkpoint "$scratch/encoded"
grep -q '"data": "text, 11600 tokens"' "$scratch/result.json" || complain "a text of fewer tokens than bytes: $(grep '"data"' "$scratch/result.json")"
"$program" $encoded --threads 1 --checkpoint "$scratch/encoded" --generate 5 --prompt "The" > "$scratch/out" 2>&1 && grep -q "^The" "$scratch/out" ||
  complain "a text that continues by the same encoding"
refused "merges for tokens" "^gpt2: --merges encodes a text, but with --bits 16 --data holds tokens; leave out one of the two options$" \
  --data "$scratch/text" $encoded --bits 16
refused "merges of more tokens than the vocabulary" "merges has 260 tokens, more than the vocabulary of 256$" --data "$scratch/text" $small --merges "$scratch/merges"
refused "an id beyond the vocabulary" "has id [0-9]+ at byte [0-9]+, expected one below 64" --data "$scratch/text" $small --vocabulary 64
printf 12345 > "$scratch/odd"
refused "half an id" "odd is 5 bytes long, expected a multiple of 4" --data "$scratch/odd" --bits 32 $small
refused "heads that do not divide" "heads" --data "$scratch/text" --layers 1 --width 30 --heads 4 --length 16
trains "rows by a number that begins with 0" 9 --data "$scratch/text" --layers 1 --width 32 --heads 2 --length 32 --steps 1 --quiet --batch 08 --csv "$scratch/steps.csv"
[ "$(tail -1 "$scratch/steps.csv" | cut -d, -f 3)" = 8 ] || complain "8 rows by --batch 08"
trains "the last of two numbers of rows" 9 --data "$scratch/text" $small --steps 1 --quiet --batch 4 --csv "$scratch/other.csv" --csv "$scratch/steps.csv"
[ "$(tail -1 "$scratch/steps.csv" | cut -d, -f 3)" = 4 ] && [ ! -e "$scratch/other.csv" ] || complain "4 rows by --batch 8 --batch 4"
for number in "batch 0x10" "batch 1e3" "steps -" "seed -1"; do
  refused "no whole number, --$number" "^--${number% *}: ${number#* } is not a whole number$" --data "$scratch/text" --layers 1 --${number% *}=${number#* }
done
for number in "seed 18446744073709551616" "steps 9223372036854775808"; do
  refused "a number of more than 64 bits, --$number" "^--${number% *}: ${number#* } is beyond the numbers of 64 bits$" --data "$scratch/text" --layers 1 --$number
done
for range in "warmup-share 0 to 0.9" "held-out 0.001 to 0.9" "dropout 0 to 0.9" "momentum 0 to 1" "codec-fraction 1e-06 to 1"; do
  refused "--${range%% *} nan" "^--${range%% *}: nan is not a number from ${range#* }$" --${range%% *} nan
done
refused "--lr inf" "^--lr: inf is above 3.40282e[+]38$" --lr inf
refused "--lr 1e39" "^--lr: 1e39 is above 3.40282e[+]38$" --lr 1e39
refused "--clip 1e-60" "^--clip: 1e-60 is below 1.4013e-45$" --clip 1e-60
for only in "prompt The" "temperature 1" "top-k 5"; do
  refused "--$only of a text that is not generated" "^--${only% *} requires --generate$" --data "$scratch/text" $small --$only
done
for option in checkpoint csv json batches timeline profile-out weights merges; do
  refused "an empty --$option" "^--$option: the path is empty$" --generate 5 --$option ""
done
refused "no token" "^--generate: 0 is not a number above 0$" --generate 0 $small --checkpoint "$scratch/kept"
for written in json csv timeline batches profile-out; do
  for instead in "--evaluate" "--generate 5"; do
    refused "a --$written of no training, with $instead" "^gpt2: --$written .*/file is about a training, and with ${instead% *} there is none" \
      $instead $small --checkpoint "$scratch/kept" --data "$scratch/text" --$written "$scratch/file"
  done
done
refused "missing merges" "^gpt2: --merges: $scratch/nowhere does not exist$" --generate 5 $small --checkpoint "$scratch/kept" --merges "$scratch/nowhere"
refused "a missing text" "^gpt2: --data: $scratch/nowhere does not exist$" --data "$scratch/nowhere"
few() { (ulimit -v 16000000 && exec timeout 60 "$program" "$@") > "$scratch/out" 2>&1; } # few ARGUMENT...: in 16 GB
if few --help; then # which a sanitizer does not start in
  few --threads 1 --data "$scratch/text" $small --vocabulary 200000000 && complain "more than the memory: it ended well"
  grep -q "^gpt2: there is not enough memory; " "$scratch/out" || complain "more than the memory: it does not say so"
fi
refused "weights of another model" "has shape .*, expected|lacks [0-9]+ of the model's tensors" --data "$scratch/text" --layers 2 --width 64 --heads 2 --length 32 --weights "$scratch/kept/step-200/model.safetensors"
finish

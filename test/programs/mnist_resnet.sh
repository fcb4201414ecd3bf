#!/usr/bin/env bash
# mnist_resnet.sh PROGRAM: how the trainer handles invalid input. Each case must end by itself, with a non-zero code and one sentence
# that names the culprit.
program=$1
. "$(dirname "$0")/mnist_resnet.bash"

# The sound set trains, so that later sets are refused for their changes alone.
if ! timeout 100 $run --data "$scratch/sound" --comm none > "$scratch/out" 2>&1; then
  echo "FAILED sound data"
  cat "$scratch/out"
  failures=$((failures + 1))
fi

# Exchanges of GPU memory need --device cuda.
if "$program" --help | grep -q 'cuda-peer'; then
  refused "GPUs' exchange" 'mnist_resnet: --comm cuda-peer exchanges memory of GPUs; choose --device cuda' $run --comm cuda-peer
  refused "GPUs' transport" 'mnist_resnet: --comm sharded over cuda-peer exchanges memory of GPUs; choose --device cuda' \
    $run --comm sharded --transport cuda-peer
fi

# Ranks that were started without MPI do not each train alone.
refused "tasks of srun without MPI" 'mnist_resnet: a launcher has started 2 ranks without MPI' env -u RANK -u PMI_SIZE SLURM_JOB_ID=1 \
  SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_NODELIST='gn[01-02]' $run

# A run that gets SIGTERM, twice as from Slurm, keeps its state, and resumes to the same weights as one that was not interrupted.
kept="$program --threads 1 --batch 8 --comm none --epochs 8 --log-every 1 --data $scratch/sound"
timeout 100 $kept --checkpoint "$scratch/whole" --csv "$scratch/whole.csv" > "$scratch/out" 2>&1
: > "$scratch/out"  # so that the loop below does not see lines of the run before
$kept --checkpoint "$scratch/halves" --csv "$scratch/halves.csv" > "$scratch/out" 2>&1 &
child=$!
for _ in $(seq 400); do
  grep -q "^Step3" "$scratch/out" && break
  sleep 0.05
done
kill -TERM $child
sleep 0.01
kill -TERM $child 2> /dev/null
wait $child
code=$?
printf '100000,8,8,1\n100001,8,' >> "$scratch/halves.csv"  # as if it had logged steps after its last checkpoint
timeout 100 $kept --checkpoint "$scratch/halves" --resume --csv "$scratch/halves.csv" > "$scratch/rest" 2>&1
last=$(cd "$scratch/whole" && ls -d step-* | sort -V | tail -1)
if [ $code -ne 0 ] || grep -q "^Epoch 7" "$scratch/out" || ! grep -Eq "^[|] steps .* [0-9]+ .terminated. [|]$" "$scratch/out" || ! grep -q "^Epoch 7" "$scratch/rest" ||
  ! cmp "$scratch/whole/$last/model.safetensors" "$scratch/halves/$last/model.safetensors" ||
  ! cmp <(cut -d, -f 1-6 "$scratch/whole.csv") <(cut -d, -f 1-6 "$scratch/halves.csv"); then
  echo "FAILED a run that is told to end, and resumed (it ended with $code)"
  cat "$scratch/out" "$scratch/rest"
  ls "$scratch/whole" "$scratch/halves"
  failures=$((failures + 1))
fi
echo step > "$scratch/other.csv"
refused "a table with other columns to go on in" 'other.csv begins with "step" and not with "step,epoch,rows,.*",' \
  $kept --checkpoint "$scratch/halves" --resume --csv "$scratch/other.csv"
refused "a folder with checkpoints that are not resumed from" "resume from it, or choose another folder" $kept --checkpoint "$scratch/whole"

if ! timeout 100 $run --data "$scratch/sound" --comm none --image-size 224 --json "$scratch/large.json" > "$scratch/out" 2>&1 ||
  ! grep -q '"data": ".*, 224x224"' "$scratch/large.json"; then
  echo "FAILED images of 28x28 for a model of 224x224"
  cat "$scratch/out"
  failures=$((failures + 1))
fi

if ! timeout 100 $run --data "$scratch/sound" --ranks 2 --background --overlap --json "$scratch/overlap.json" --onnx "$scratch/model.onnx" \
  > "$scratch/out" 2>&1 || ! grep -Eq '"hidden": [01]' "$scratch/overlap.json" || ! grep -aq 'layer4.1.bn2.running_var' "$scratch/model.onnx"; then
  echo "FAILED an exchange in the background whose overlap is measured, and a model in ONNX"
  cat "$scratch/out"
  failures=$((failures + 1))
fi

# The result is printed before the model is written.
if [ -c /dev/full ]; then
  refused "a model on a full disk" "^mnist_resnet: /dev/full cannot be written" "$program" --threads 1 --batch 4 --steps 1 \
    --data "$scratch/sound" --comm none --onnx /dev/full
  if ! grep -q "training loss" "$scratch/out"; then
    echo "FAILED a result that comes before a model on a full disk"
    failures=$((failures + 1))
  fi
fi
# A run is recorded, and replayed by two ranks. Another replay has a published speed for each rank, and sends dead taps as published
# exchanges do. A replay classifies nothing: its accuracy is null in JSON and empty in the table of steps.
recorded="$program --threads 1 --batch 4 --steps 5 --quiet --data $scratch/sound"
sent_bytes() { sed -n 's/.*"sent_bytes_per_step": \([0-9]*\).*/\1/p' "$1"; }
if ! timeout 100 $recorded --comm none --profile-out "$scratch/profile.json" > "$scratch/out" 2>&1 ||
  ! timeout 100 $recorded --ranks 2 --replay "$scratch/profile.json" --json "$scratch/lean.json" \
    --csv "$scratch/lean.csv" > "$scratch/out" 2>&1 ||
  ! timeout 100 $recorded --ranks 2 --replay-rate 400,800 --bucket-mib tensor --no-overlap --keep-dead-taps \
    --json "$scratch/kept.json" > "$scratch/out" 2>&1 ||
  ! grep -q '"device": "replay"' "$scratch/kept.json" ||
  [ "$(grep -c '"loss": null' "$scratch/lean.json")" != 2 ] ||
  [ "$(grep -c 'accuracy": null' "$scratch/lean.json")" != 2 ] ||
  [ "$(cut -d, -f 5 "$scratch/lean.csv" | sort -u | tr '\n' ' ')" != " accuracy " ] ||
  [ $((2 * $(sent_bytes "$scratch/kept.json"))) -le $((3 * $(sent_bytes "$scratch/lean.json"))) ]; then
  echo "FAILED a run that is recorded and replayed"
  cat "$scratch/out" "$scratch"/lean.json "$scratch"/kept.json
  failures=$((failures + 1))
fi
# Of two ranks in a ring each sends its gradients once a step, here the 4228554 of ResNet-18 that are not dead taps; the initial parameters
# and the sums of reports do not belong to a step, or are small.
if [ "$(sent_bytes "$scratch/lean.json")" -lt 16914216 ] || [ "$(sent_bytes "$scratch/lean.json")" -gt 17000000 ]; then
  echo "FAILED the bytes that a rank sends in a step: $(sent_bytes "$scratch/lean.json")"
  failures=$((failures + 1))
fi
# The larger the buckets, the fewer there are, also where their size in bytes is beyond the largest integer or double.
buckets_of() { # buckets_of MIB: the number of buckets in a step
  rm -f "$scratch/buckets.json"
  timeout 100 $program --threads 1 --batch 4 --steps 1 --quiet --data "$scratch/sound" --ranks 2 --replay-rate 1000 --bucket-mib "$1" \
    --timeline "$scratch/buckets.json" > "$scratch/out" 2>&1
  grep -o '"bucket [0-9]*"' "$scratch/buckets.json" | sort -u | wc -l
}
tensors=$(buckets_of tensor) few=$(buckets_of 1000)
if [ "$few" -lt 1 ] || [ "$tensors" -le "$few" ] || [ "$(buckets_of 1e13)" != "$few" ] || [ "$(buckets_of 1e400)" != "$few" ]; then
  echo "FAILED larger and fewer buckets: $tensors of a tensor, $few of 1000 MiB, $(buckets_of 1e13) of 1e13 MiB, $(buckets_of 1e400) of 1e400 MiB"
  cat "$scratch/out"
  failures=$((failures + 1))
fi
refused "a profile of another model" "the profile of resnet18 is for another plan.*" $recorded --comm none --model resnet50 --replay "$scratch/profile.json"
refused "a profile that is not there" "nowhere.json cannot be read" $recorded --comm none --replay "$scratch/nowhere.json"
refused "what a replay has learned" "^mnist_resnet: --onnx $scratch/model.onnx keeps what a training has learned, and a replay learns nothing" \
  $recorded --comm none --replay-rate 400 --onnx "$scratch/model.onnx"
refused "three speeds for two ranks" "3 machines for 2 workers" $recorded --ranks 2 --replay-rate 1,2,3
refused "half a roofline" "replay-roofline" $recorded --comm none --replay-roofline 3
refused "a recording of too few steps" "--profile-out: the run ended" $run --data "$scratch/sound" --comm none --profile-out "$scratch/short.json"

# Every CPU trains in bf16, and the report says in what it multiplied.
if ! timeout 100 $run --data "$scratch/sound" --comm none --precision bf16 --json "$scratch/bf16.json" > "$scratch/out" 2>&1 ||
  ! grep -q '"precision": "bf16"' "$scratch/bf16.json" ||
  ! grep -Eq '"products": "(bf16|f32)"' "$scratch/bf16.json"; then
  echo "FAILED a training in bf16"
  cat "$scratch/out"
  failures=$((failures + 1))
fi
refused "a precision of GPUs" "tf32" $run --data "$scratch/sound" --comm none --precision tf32
refused "a replay in bf16" "--precision bf16" $run --data "$scratch/sound" --replay-rate 100 --precision bf16

refused "an exchange that cannot be measured alone" "--overlap needs .*" $run --data "$scratch/sound" --ranks 2 --comm ps --overlap
refused "a missing folder" "^mnist_resnet: --data: $scratch/nowhere does not exist$" $run --data "$scratch/nowhere"
folder truncated
head -c 9000 "$scratch/sound/train-images-idx3-ubyte" > "$scratch/truncated/train-images-idx3-ubyte"
refused "a truncated file" "train-images-idx3-ubyte.*" $run --data "$scratch/truncated"
folder oversized
printf 'more' >> "$scratch/oversized/t10k-images-idx3-ubyte"
refused "an oversized file" "t10k-images-idx3-ubyte.*" $run --data "$scratch/oversized"
folder mislabeled
cp "$scratch/sound/train-labels-idx1-ubyte" "$scratch/mislabeled/train-images-idx3-ubyte"
refused "labels in the place of images" "train-images-idx3-ubyte.*" $run --data "$scratch/mislabeled"
folder unequal
idx "$scratch/unequal/train-labels-idx1-ubyte" 00000801 19 19
refused "unequal counts" "19.*20|20.*19" $run --data "$scratch/unequal"
folder large_label
{ head -c 27 "$scratch/sound/train-labels-idx1-ubyte"; printf '\012'; } > "$scratch/large_label/train-labels-idx1-ubyte"
refused "a label of 10" "label" $run --data "$scratch/large_label"
folder broken_gzip
gzip -c "$scratch/sound/train-images-idx3-ubyte" | head -c 40 > "$scratch/broken_gzip/train-images-idx3-ubyte.gz"
rm "$scratch/broken_gzip/train-images-idx3-ubyte"
refused "a truncated gzip file" "train-images-idx3-ubyte.gz.*" $run --data "$scratch/broken_gzip"
refused "a batch larger than the data set" "larger than the data set of 20" $program --threads 1 --quiet --batch 21 --data "$scratch/sound"

for option in "--batch 0" "--batch -4" "--epochs 0" "--lr -1" "--lr 0" "--threads -1" "--ranks 0" "--steps -1" "--accumulate 0" \
  "--deadline 0" "--replay-rate 0" "--model resnet19" "--comm rings" "--image-size 32" "--optimizer sgdd" "--data" "--nonsense"; do
  refused "$option" "${option%% *}" $program $option
done
refused "a rate that is no number" "^--lr: abc is not a number above 0$" $program --lr abc
refused "a decay in steps of no length" "--decay steps needs --decay-every" $run --data "$scratch/sound" --decay steps
refused "a decay at no milestone" "--decay milestones needs --milestones" $run --data "$scratch/sound" --decay milestones
for option in "--decay-end 0.1 --decay none" "--decay-power 3" "--decay-gamma 0.5" "--decay-every 30" "--milestones 30,60 --decay steps --decay-every 9"; do
  refused "a decay without $option" "^mnist_resnet: --decay [a-z]+ does not use ${option%% *}, which is an option of [a-z]" \
    $run --data "$scratch/sound" $option
done
refused "fewer steps than none" "^--steps: -1 is not 0 or a number above 0$" $program --steps -1
refused "an evaluation of nothing" "there is no checkpoint in $scratch/nowhere" $run --data "$scratch/sound" --evaluate --checkpoint "$scratch/nowhere"
refused "a parameter server in the background" "parameter server" $run --ranks 2 --comm ps --background --data "$scratch/sound"
refused "several ranks that exchange nothing" "none" $run --ranks 2 --comm none --data "$scratch/sound"
refused "shares for another number of ranks" "3 weights for 2 workers" $run --ranks 2 --shares 2,1,1 --data "$scratch/sound"
refused "a negative share" "weight of rank 1 is -1" $run --ranks 2 --shares 2,-1 --data "$scratch/sound"
refused "shares that are given and measured" "weighted" $run --ranks 2 --shares 2,1 --weighted --data "$scratch/sound"
for written in json timeline profile-out; do
  refused "--$written that cannot be written, before training" "nowhere" $run --data "$scratch/sound" --epochs 100000 \
    --$written "$scratch/nowhere/file"
done
refused "a number of samples of a set that is not generated" "--samples is for generated sets" $run --data "$scratch/sound" --samples 100
if [ -c /dev/full ]; then
  refused "a result on a full disk" "/dev/full cannot be written: No space left" $run --data "$scratch/sound" --json /dev/full
  refused "a timeline on a full disk" "/dev/full cannot be written: No space left" $run --data "$scratch/sound" --timeline /dev/full
  [ -c /dev/full ] || { echo "/dev/full was replaced" >&2; exit 1; }
fi

finish

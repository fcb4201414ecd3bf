#!/usr/bin/env bash
# plan.sh PROGRAM: plan knows every model, sets its sizes, and refuses unknown models and sizes in one sentence.
set -u
program=$1
failures=0

# has WHAT PATTERN ARGUMENTS...: plan succeeds, and its output has the pattern
has() {
  what=$1
  pattern=$2
  shift 2
  if ! out=$("$program" "$@" 2>&1) || ! grep -Eq -e "$pattern" <<< "$out"; then
    printf '%s\n' "FAILED $what: expected '$pattern' of plan $*, which said" "$(tail -8 <<< "$out")"
    failures=$((failures + 1))
  fi
}
# refused WHAT PATTERN ARGUMENTS...: plan fails with one line, which has the pattern
refused() {
  what=$1
  pattern=$2
  shift 2
  if out=$("$program" "$@" 2>&1) || [ "$(wc -l <<< "$out")" != 1 ] || ! grep -Eq -e "$pattern" <<< "$out"; then
    printf '%s\n' "FAILED $what: expected '$pattern' of plan $*, which said" "$(head -8 <<< "$out")"
    failures=$((failures + 1))
  fi
}
# Published numbers of parameters.
while read -r model parameters; do
  has "$model" "^parameters +$parameters," "$model"
done << END
resnet18 11689512
resnet34 21797672
resnet50 25557032
resnet101 44549160
resnet152 60192808
resnet18-mnist 11175370
convnet 421642
mlp 101770
bert 110106428
gpt2 124439808
gpt2-medium 354823168
gpt2-large 774030080
gpt2-xl 1557611200
END
has "the Transformer of SST-5" "^encoder.layers.5.linear1 +\[256x1024\]" transformer
has "sizes of a Transformer" '"name": "bert.encoder.layer.2.attention.self.projections"' bert --layers 3 --length 64 --json
has "sizes of an image" "^conv1 +\[64x16x16\]" resnet18 --height 32 --width 32 --classes 10
has "widths of an Mlp" "^fc3 +\[10\] +510 " mlp --hidden 100,50
has "widths that begin with 0" "^fc3 +\[10\] +510 " mlp --hidden 0100,050
refused "an unknown model" "^plan: there is no model 'bart'; there are bert, bert-large, convnet, gpt2, .*, transformer$" bart
refused "a size of another model" "^plan: resnet18 has no --layers; it has --channels, --classes, --height, --width$" resnet18 --layers 3
refused "hidden layers elsewhere" "^plan: bert has no --hidden; only mlp has$" bert --hidden 3
refused "heads that do not divide" "^plan: model: .* has 7 heads, which do not divide" bert --heads 7
if [ -c /dev/full ]; then
  for form in "" --json; do
    if out=$("$program" bert $form 2>&1 > /dev/full) || [ "$out" != "plan: the standard output cannot be written" ]; then
      printf '%s\n' "FAILED a full disk: plan bert $form said '$out'"
      failures=$((failures + 1))
    fi
  done
fi
[ $failures -eq 0 ] && echo "plan knows every model"
exit $((failures > 0))

#!/usr/bin/env bash
# infer.sh PROGRAM: reads weights in the layouts of convoy and of Hugging Face, writes them in either layout, and refuses files that do
# not fit. (scripts/torch_weights.py compares its results with PyTorch's.)
program=$1
. "$(dirname "$0")/trains.bash"

# tensors FILE NAME:SHAPE...: writes a safetensors file of zeros; a shape is for example 4,12.
tensors() {
  file=$1 at=0 json="{"
  shift
  for tensor in "$@"; do
    shape=${tensor#*:} size=4
    for extent in ${shape//,/ }; do size=$((size * extent)); done
    json+="\"${tensor%:*}\":{\"dtype\":\"F32\",\"shape\":[$shape],\"data_offsets\":[$at,$((at + size))]},"
    at=$((at + size))
  done
  json="${json%,}}"
  printf "\\x$(printf %02x $((${#json} % 256)))\\x$(printf %02x $((${#json} / 256)))\\0\\0\\0\\0\\0\\0%s" "$json" > "$file"
  head -c $at /dev/zero >> "$file"
}
# gpt2 FILE PREFIX ATTENTION UP DOWN: writes weights of one layer; the last three are shapes of matrices whose layout differs.
gpt2() {
  h=$2h.0.
  tensors "$1" $2wte.weight:4,4 $2wpe.weight:3,4 $2ln_f.weight:4 $2ln_f.bias:4 ${h}ln_1.weight:4 ${h}ln_1.bias:4 ${h}ln_2.weight:4 ${h}ln_2.bias:4 \
    ${h}attn.c_attn.weight:$3 ${h}attn.c_attn.bias:12 ${h}attn.c_proj.weight:4,4 ${h}attn.c_proj.bias:4 \
    ${h}mlp.c_fc.weight:$4 ${h}mlp.c_fc.bias:16 ${h}mlp.c_proj.weight:$5 ${h}mlp.c_proj.bias:4
}
sizes="--model gpt2 --layers 1 --width 4 --heads 1 --length 3 --vocabulary 4 --positions 3"
files="--inputs $scratch/in --outputs $scratch/logits --save $scratch/saved"
tensors "$scratch/in" input_ids:2,3
gpt2 "$scratch/own" transformer. 12,4 16,4 4,16
gpt2 "$scratch/theirs" "" 4,12 4,16 16,4
for weights in own theirs; do
  "$program" $sizes --threads 1 --weights "$scratch/$weights" $files > "$scratch/out" 2>&1 || complain "weights of $weights"
  grep -aq '"logits":{"dtype":"F32","shape":\[2, 3, 4\]' "$scratch/logits" || complain "logits by $weights"
  [ "$weights" = own ] && shape='"transformer.h.0.attn.c_attn.weight":{"dtype":"F32","shape":\[12, 4\]' ||
    shape='"h.0.attn.c_attn.weight":{"dtype":"F32","shape":\[4, 12\]'
  grep -aq "$shape" "$scratch/saved" || complain "weights of $weights written as they were"
done
# Weights are converted without inputs, too.
"$program" $sizes --weights "$scratch/theirs" --save "$scratch/alone" --onnx "$scratch/model.onnx" > "$scratch/out" 2>&1 || complain "weights without inputs"
cmp -s "$scratch/saved" "$scratch/alone" || complain "weights that were written without inputs"
for name in input_ids logits transformer.h.0.attn.c_attn.weight; do
  grep -aq "$name" "$scratch/model.onnx" || complain "$name in ONNX"
done
refused "nothing to write" "^infer: there is nothing to do: pass --inputs and --outputs, --save, or --onnx$" $sizes --weights "$scratch/own"
refused "inputs without outputs" "^--inputs requires --outputs$" $sizes --weights "$scratch/own" --inputs "$scratch/in"
# Random weights go from Hugging Face's layout to convoy's and back, and compute the same logits in each. The matrix attn.c_proj is square, so
# that its shape does not tell the layout.
numbers=$(($(wc -c < "$scratch/theirs") - $(head -c 8 "$scratch/theirs" | od -An -tu8) - 8))
head -c $numbers /dev/urandom | od -An -v -tu1 -w4 | LC_ALL=C awk '{ printf "\\%03o\\%03o\\%03o\\%o", $1, $2, $3, $1 % 2 ? 61 : 189 }' > "$scratch/octal"
printf "$(cat "$scratch/octal")" | dd of="$scratch/theirs" bs=1 seek=$(($(wc -c < "$scratch/theirs") - numbers)) conv=notrunc 2> /dev/null
converts() { # converts FROM FORM TO: writes the weights of FROM in a form to TO, and keeps the logits of FROM
  "$program" $sizes --threads 1 --weights "$scratch/$1" --inputs "$scratch/in" --outputs "$scratch/logits-of-$1" --save "$scratch/$3" --save-form "$2" \
    > "$scratch/out" 2>&1 || complain "weights of $1 in the form $2"
}
converts theirs convoy convoys
converts convoys huggingface head
converts head convoy again
converts again as-read same
for layout in "convoys 12, 4" "head 4, 12"; do
  grep -aq "\"transformer.h.0.attn.c_attn.weight\":{\"dtype\":\"F32\",\"shape\":\[${layout#* }\]" "$scratch/${layout%% *}" || complain "the layout of ${layout%% *}"
done
for from in convoys head again; do
  cmp "$scratch/logits-of-theirs" "$scratch/logits-of-$from" || complain "the logits by $from"
done
cmp -s "$scratch/convoys" "$scratch/again" && cmp -s "$scratch/again" "$scratch/same" || complain "the same weights after two conversions"
cmp -s "$scratch/convoys" "$scratch/head" && complain "two layouts in one file"
refused "a form of no file" "^--save-form requires --save$" $sizes --weights "$scratch/own" --inputs "$scratch/in" --outputs "$scratch/logits" --save-form convoy
refused "an unknown form" "^--save-form: onnx not in" $sizes --weights "$scratch/own" $files --save-form onnx
refused "weights of another model" "has shape .*, expected|lacks [0-9]+ of the model's tensors" --model resnet18 --weights "$scratch/own" $files
refused "layers of a ResNet" "^infer: resnet18 has no --layers$" --model resnet18 --layers 3 --weights "$scratch/own" $files
refused "an option of BERT" "^infer: gpt2 has no --ffn$" $sizes --ffn 8 --weights "$scratch/own" $files
refused "a vocabulary that is not the weights'" "'transformer.wte.weight' has shape .*, expected" ${sizes/vocabulary 4/vocabulary 5} --weights "$scratch/own" $files
# An input whose second id is no whole number: 1.5, a NaN, and 1e20, all as floats.
for bits in '\0\0\300\077' '\0\0\300\177' '\354\170\255\140'; do
  tensors "$scratch/in" input_ids:2,3
  printf "$bits" | dd of="$scratch/in" bs=1 seek=$(($(wc -c < "$scratch/in") - 20)) conv=notrunc 2> /dev/null
  refused "an id that is no whole number" "in: the tensor 'input_ids' holds (1.5|nan|1e\+20), expected whole numbers" $sizes --weights "$scratch/own" $files
done
tensors "$scratch/in" input_ids:2,4
refused "rows of another length" "the tensor 'input_ids' has shape \[2, 4\], not \[2, 3\]" $sizes --weights "$scratch/own" $files
tensors "$scratch/in" images:2,3
refused "inputs of another name" "has no tensor 'input_ids'" $sizes --weights "$scratch/own" $files
for option in --vocabulary --positions; do
  refused "a negative $option" "^$option: -4 is not 0 or a number above 0$" --model gpt2 --weights "$scratch/own" $files $option -4
done
for written in outputs save; do
  for read in weights inputs; do
    one="--weights $scratch/own --inputs $scratch/in --outputs $scratch/logits --save $scratch/saved"
    for option in $written $read; do one=$(sed -E "s#--$option [^ ]+#--$option $scratch/it#" <<< "$one"); done
    refused "one file for --$read and --$written" "^infer: --$written $scratch/it would overwrite the file of --$read, which the run reads; " $sizes $one
  done
done
refused "one file for two outputs" "^infer: --outputs $scratch/it and --save $scratch/./it are one file; " $sizes --weights "$scratch/own" \
  --inputs "$scratch/in" --outputs "$scratch/it" --save "$scratch/./it"
refused "a model over its weights" "^infer: --onnx $scratch/own would overwrite the file of --weights" $sizes --weights "$scratch/own" --onnx "$scratch/own"
refused "no inputs" "^infer: --inputs: $scratch/nowhere does not exist$" $sizes --weights "$scratch/own" --inputs "$scratch/nowhere" --outputs "$scratch/logits"
refused "no weights" "^infer: --weights: $scratch/nowhere does not exist$" $sizes --weights "$scratch/nowhere" $files
if [ -c /dev/full ]; then
  if said=$("$program" --help 2>&1 > /dev/full) || [ "$said" != "infer: the standard output cannot be written" ]; then
    printf '%s\n' "FAILED a full disk: --help said '$said'"
    failures=$((failures + 1))
  fi
fi
[ $failures -eq 0 ] && echo "infer reads and writes weights, and refuses what it should"
exit $((failures > 0))

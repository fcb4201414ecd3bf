#!/usr/bin/env bash
# cifar10_resnet.sh PROGRAM: trains on files of CIFAR-10's form, and refuses others.
program=$1
. "$(dirname "$0")/trains.bash"
mkdir "$scratch/cifar"
for file in data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch; do
  for label in 0 1; do
    for _ in 1 2; do
      printf "\\x0$label"
      head -c 3072 /dev/zero | tr '\0' "$([ $label = 0 ] && printf '\020' || printf '\320')"
    done
  done > "$scratch/cifar/$file.bin"
done
trains "dark and bright images" 2.5 --data "$scratch/cifar" --steps 2 --batch 4 --lr 0.01 --quiet
head -c 100 "$scratch/cifar/test_batch.bin" > "$scratch/cut" && mv "$scratch/cut" "$scratch/cifar/test_batch.bin"
refused "half a record" "test_batch.bin is 100 bytes long, expected a multiple of 3073" --data "$scratch/cifar"
refused "a missing folder" "^cifar10_resnet: --data: $scratch/nowhere does not exist$" --data "$scratch/nowhere"
finish

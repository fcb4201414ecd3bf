#!/usr/bin/env bash
# bigmnist.sh PROGRAM: trains on deformed digits and on digits as they are.
program=$1
. "$(dirname "$0")/trains.bash"
trains "deformed digits" 2.2 --data digits --steps 60 --batch 64 --lr 0.05 --quiet
trains "digits as they are" 1.5 --data digits --plain --steps 60 --batch 64 --lr 0.05 --quiet
trains "by another rule than its own, without its momentum" 1.5 --data digits --plain --steps 60 --batch 64 --optimizer adam --lr 0.001 --quiet
trains "by two ranks that read all data each" 2.4 --data digits --steps 10 --batch 32 --lr 0.05 --quiet --ranks 2 --unsharded
refused "batch norms of all ranks" "^bigmnist: --sync-batch-norm is for models with batch norms, and convnet has none$" --data digits --sync-batch-norm
refused "a missing folder" "^bigmnist: --data: $scratch/nowhere does not exist$" --data "$scratch/nowhere"
finish

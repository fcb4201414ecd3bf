#!/usr/bin/env python3
"""Checks that convoy's BERT and GPT-2 train like Hugging Face's in PyTorch: compares the losses of 50 steps from the same weights
on the same batches.

    python3 scripts/torch_curves.py build/release/examples [TEXT]

needs torch, torchvision, transformers and safetensors (PyPI), and no network. The default TEXT is the README. For each model,
PyTorch writes random weights; `gpt2` or `bert_pretrain` trains from these and writes its losses (--csv) and its batches
(--batches); PyTorch trains from the same weights on these batches. Both train without dropout. No loss may differ by more than
1e-4, relatively.
"""
import argparse
import csv
import os
import re
import subprocess
import sys
import tempfile


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", help="the folder of the example programs")
    readme = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "README.md")
    parser.add_argument("text", nargs="?", default=readme, help="to train on (default: the README)")
    return parser.parse_args()


OPTIONS = parse() if __name__ == "__main__" else None  # before the imports: --help needs no PyTorch

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from torch_weights import save, see_bert, see_gpt2  # noqa: E402

FURTHEST = 1e-4  # relative difference of any loss
STEPS, BATCH, LENGTH, WARMUP, EPSILON = 50, 8, 128, 5, 1e-8
LAYERS, WIDTH, HEADS = 4, 256, 4


def write_vocabulary(path, text):
    """Writes BERT's special tokens, then every word and every character of the text. Returns the number of tokens."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({*words, *(c for c in text.lower() if not c.isspace())})]
    with open(path, "w") as file:
        file.write("\n".join(tokens) + "\n")
    return len(tokens)


def bert(folder, text):
    vocabulary = os.path.join(folder, "vocab.txt")
    sizes = dict(num_hidden_layers=LAYERS, hidden_size=WIDTH, num_attention_heads=HEADS, intermediate_size=4 * WIDTH)
    count = write_vocabulary(vocabulary, text)
    model = transformers.BertForPreTraining(transformers.BertConfig(vocab_size=count, pad_token_id=None, **sizes))
    return model, ["--vocabulary", vocabulary, "--ffn", str(4 * WIDTH)]


def gpt2(folder, text):
    sizes = dict(n_layer=LAYERS, n_embd=WIDTH, n_head=HEADS, vocab_size=256, n_positions=LENGTH)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=None, eos_token_id=None, **sizes)), []


def loss_of_bert(model, rows):
    seen = see_bert(model, rows)
    words = F.cross_entropy(seen["prediction_logits"].flatten(0, 1), rows["masked_labels"].long().flatten())
    return words + F.cross_entropy(seen["seq_relationship_logits"], rows["next_sentence_label"].long())


def loss_of_gpt2(model, rows):
    return F.cross_entropy(see_gpt2(model, rows)["logits"].flatten(0, 1), rows["labels"].long().flatten())


def train(model, loss_of, batches, lr, decay):
    """Yields the loss before each update by AdamW. Weight decay applies to matrices, not to biases and norms; the learning rate
    rises linearly to `lr` and falls linearly to zero."""
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": decay},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, eps=EPSILON)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / WARMUP, (STEPS - s) / (STEPS - WARMUP)))
    for rows in batches:
        loss = loss_of(model, rows)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield loss.item()


def main():
    text, failed = OPTIONS.text, False
    for name, program, make, loss_of, lr, decay in [
        ("bert", "bert_pretrain", bert, loss_of_bert, 1e-3, 0.01),
        ("gpt2", "gpt2", gpt2, loss_of_gpt2, 1e-3, 0.1),
    ]:
        with tempfile.TemporaryDirectory() as folder, open(text) as file:
            path = lambda file: os.path.join(folder, file)
            torch.manual_seed(7)
            model, options = make(folder, file.read())
            save(model, path("weights.safetensors"))
            options += ["--weights", path("weights.safetensors"), "--csv", path("steps.csv"), "--batches", path("batches.safetensors")]
            for key, value in {"data": text, "layers": LAYERS, "width": WIDTH, "heads": HEADS, "length": LENGTH, "dropout": 0, "batch": BATCH,
                               "steps": STEPS, "epochs": STEPS, "warmup": WARMUP, "lr": lr, "epsilon": EPSILON, "weight-decay": decay,
                               "clip": 1}.items():
                options += [f"--{key}", str(value)]
            subprocess.run([os.path.join(OPTIONS.programs, program), "--quiet", *options], check=True)
            with open(path("steps.csv")) as lines:
                steps = list(csv.DictReader(lines))
            counts = [int(step["rows"]) for step in steps]
            split = {key: field.split(counts) for key, field in load_file(path("batches.safetensors")).items()}
            batches = [{key: parts[s] for key, parts in split.items()} for s in range(STEPS)]
            own = [float(step["loss"]) for step in steps]
            theirs = list(train(model.eval(), loss_of, batches, lr, decay))
        apart = [abs(a - b) / b for a, b in zip(own, theirs, strict=True)]
        fine = max(apart) < FURTHEST
        failed = failed or not fine
        print(f"{name}: losses {own[0]:.5f} to {own[-1]:.5f} in convoy, {theirs[0]:.5f} to {theirs[-1]:.5f} in PyTorch; they differ by "
              f"{max(apart):.1e} at most, at step {apart.index(max(apart))}: {'as they should' if fine else 'WRONG'}")
    sys.exit(failed)


if __name__ == "__main__":
    main()

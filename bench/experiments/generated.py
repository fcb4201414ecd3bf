"""Data that the driver generates if a data set is missing: random words and trees in the right format.

Throughput does not depend on the content. Accuracies on such data are meaningless and left out of the tables.
"""

import os
import random

VOCABULARY = 30_522  # BERT-base's
SENTENCES = {"train.txt": 8_544, "dev.txt": 1_101, "test.txt": 2_210}  # SST-5's


def word(number):
    letters = ""
    while True:
        letters += chr(ord("a") + number % 26)
        number //= 26
        if number == 0:
            return letters


def _write(path, lines):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".part", "w") as file:
        file.writelines(line + "\n" for line in lines)
    os.replace(path + ".part", path)


def vocabulary(folder):
    """A vocabulary of BERT's size, with the special tokens at BERT's ids."""
    path = os.path.join(folder, "vocab.txt")
    if not os.path.exists(path):
        special = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
        _write(path, (special.get(i, word(i)) for i in range(VOCABULARY)))
    return path


def text(folder):
    """Documents of sentences whose words are in the vocabulary."""
    path = os.path.join(folder, "text.txt")
    if not os.path.exists(path):
        draw = random.Random(0)
        usual = [word(i) for i in range(1_000, VOCABULARY)]
        lines = []
        for _ in range(400):
            lines += [" ".join(draw.choices(usual, k=draw.randint(8, 40))) for _ in range(10)] + [""]
        _write(path, lines)
    return path


def _tree(draw, words):
    """A binary tree over the words, each node with a label."""
    if len(words) == 1:
        return f"({draw.randint(0, 4)} {words[0]})"
    cut = draw.randint(1, len(words) - 1)
    return f"({draw.randint(0, 4)} {_tree(draw, words[:cut])} {_tree(draw, words[cut:])})"


def trees(folder):
    """A folder in SST-5's format, with as many sentences as SST-5."""
    target = os.path.join(folder, "sst5")
    draw = random.Random(0)
    usual = [word(i) for i in range(16_000)]
    for name, count in SENTENCES.items():
        path = os.path.join(target, name)
        if not os.path.exists(path):
            _write(path, (_tree(draw, draw.choices(usual, k=draw.randint(5, 40))) for _ in range(count)))
    return target

"""The data of a cell: `data` names it; "auto" takes the real set if it exists, otherwise a generated one."""

import os

from . import generated
from .failure import Failure


def roots(root):
    """Folders that may hold data sets: $CONVOY_DATA, then data/ of the source tree."""
    return [folder for folder in (os.environ.get("CONVOY_DATA", ""), os.path.join(root, "data")) if folder]


def _found(root, *paths):
    for folder in roots(root):
        for path in paths:
            if os.path.exists(os.path.join(folder, path)):
                return os.path.join(folder, path)
    return None


def _text(root):
    for folder in roots(root):
        texts = os.path.join(folder, "text")
        if os.path.isdir(texts):
            for name in sorted(os.listdir(texts)):
                if name.endswith(".txt"):
                    return os.path.join(texts, name)
    return _found(root, "text.txt")


def words(cell, root, scratch):
    """The program's options that name the cell's data; generated data is written below `scratch`."""
    if cell.data != "auto":
        if cell.data in ("digits", "synthetic"):
            return ["--data", cell.data]
        if not os.path.exists(cell.data):
            raise Failure(f"the data {cell.data} does not exist")
        return ["--data", os.path.abspath(cell.data)]
    folder = os.path.join(scratch, "drawn")
    if cell.model == "bert":
        vocabulary, text = _found(root, "bert/vocab.txt"), _text(root)
        if vocabulary and text:
            return ["--vocabulary", vocabulary, "--data", text]
        return ["--vocabulary", generated.vocabulary(folder), "--data", generated.text(folder)]
    if cell.model == "transformer":
        return ["--data", _found(root, "sst5") or generated.trees(folder)]
    mnist = _found(root, "mnist/train-images-idx3-ubyte.gz", "mnist/train-images-idx3-ubyte")
    return ["--data", os.path.dirname(mnist) if mnist else "digits"]

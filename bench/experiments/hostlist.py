"""Slurm's compressed lists of hosts, such as gn[01-03,07]."""

import re

from .failure import Failure


def _split(text):
    """Splits at the commas outside brackets."""
    parts, depth, part = [], 0, ""
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise Failure(f"{text!r} is not a list of hosts: its brackets do not match")
        if letter == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += letter
    if depth:
        raise Failure(f"{text!r} is not a list of hosts: its brackets do not match")
    return parts + [part]


def _range(text, whole):
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if not match:
        raise Failure(f"{whole!r} is not a list of hosts: {text!r} is neither a number nor a range")
    first, last = match[1], match[2] or match[1]
    if int(last) < int(first):
        raise Failure(f"{whole!r} is not a list of hosts: {text!r} runs backwards")
    if int(last) - int(first) >= 1 << 20:
        raise Failure(f"{whole!r} is not a list of hosts: {text!r} has more than 2^20 numbers")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def expand(text):
    """The names in a compressed list, in its order."""
    names = []
    for part in _split(text.strip()):
        if not part:
            raise Failure(f"{text!r} is not a list of hosts: a name is missing")
        heads = [""]
        for piece in re.findall(r"\[[^\]]*\]|[^\[\]]+", part):
            if piece[0] == "[":
                ends = [n for r in piece[1:-1].split(",") for n in _range(r, text)]
            else:
                ends = [piece]
            heads = [head + end for head in heads for end in ends]
        names += heads
    return names


def _ranges(numbers):
    """Ranges of sorted numbers of one width: "01-03,07"."""
    runs = []
    for digits in numbers:
        if runs and int(digits) == int(runs[-1][1]) + 1:
            runs[-1][1] = digits
        else:
            runs.append([digits, digits])
    return ",".join(first if first == last else f"{first}-{last}" for first, last in runs)


def compress(names):
    """The compressed list of names, sorted and without duplicates: digits at the end of names become ranges."""
    alike, order = {}, []
    for name in sorted(set(names)):
        head, digits = re.fullmatch(r"(.*?)(\d*)", name).groups()
        group = (head, len(digits))
        if group not in alike:
            alike[group] = []
            order.append(group)
        alike[group].append(digits)
    parts = []
    for head, width in order:
        numbers = sorted(alike[head, width])
        parts.append(head + (numbers[0] if len(numbers) == 1 else f"[{_ranges(numbers)}]" if width else ""))
    return ",".join(parts)

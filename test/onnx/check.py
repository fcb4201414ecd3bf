#!/usr/bin/env python3
"""Runs each NAME.onnx of a folder by onnxruntime on the inputs in NAME.safetensors, and compares the outputs with those there.

    check.py FOLDER

needs onnxruntime (PyPI). The tensors of NAME.safetensors are f32, called inputs.<name> and outputs.<name>.
"""
import glob
import json
import os
import sys

import numpy
import onnxruntime

FURTHEST = 2e-4  # of an element from its expected value, relative to the largest element of the output
TYPES = {"tensor(float)": numpy.float32, "tensor(int32)": numpy.int32, "tensor(uint8)": numpy.uint8}


def tensors(path):
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: numpy.frombuffer(data[slice(*entry["data_offsets"])], numpy.float32).reshape(entry["shape"])
            for name, entry in header.items()}


def problem(path):
    """What is wrong with a model; empty if nothing is."""
    known = tensors(path.removesuffix(".onnx") + ".safetensors")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = {it.name: known["inputs." + it.name].astype(TYPES[it.type]) for it in session.get_inputs()}
    names = [it.name for it in session.get_outputs()]
    if {"outputs." + name for name in names} != {name for name in known if name.startswith("outputs.")}:
        return f"the outputs are {names}"
    for name, got in zip(names, session.run(names, inputs)):
        expected = known["outputs." + name]
        if got.shape != expected.shape:
            return f"{name} has shape {got.shape}, not {expected.shape}"
        off = numpy.abs(got - expected).max(initial=0)
        most = max(numpy.abs(expected).max(initial=0), 1e-3)
        if not off <= FURTHEST * most:
            return f"{name} is off by {off} (the largest being {most})"
    return ""


def main():
    paths = sorted(glob.glob(os.path.join(sys.argv[1], "*.onnx")))
    problems = 0
    for path in paths:
        try:
            wrong = problem(path)
        except Exception as error:  # of onnxruntime, which has a type for each status
            wrong = str(error)
        if wrong:
            problems += 1
            print(f"{os.path.basename(path)}: {wrong}", flush=True)
    print(f"{len(paths)} models, {problems} of them wrong")
    sys.exit(problems > 0 or not paths)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Times training steps on a GPU in PyTorch: the peer that gpu_bench is measured against.

Models: torchvision's ResNets in channels_last; BERT, GPT-2 and the SST-5 classifier, built from torch.nn with
scaled_dot_product_attention. AdamW (fused) and cross-entropy; the batch stays on the GPU. Precisions: f32 (no TF32), tf32, bf16 and
f16 (autocast; f16 with a gradient scaler). Settings: eager; graph, eager captured as one CUDA graph; compile, torch.compile with
max-autotune (which captures graphs itself; its own convolutions, which take minutes to time and lose to cuDNN's on an H200, are left
out). Prints one JSON object per line: model, precision, setting, batch, samples_per_sec, step_ms; or, for a setting that PyTorch
refuses or that takes too long to compile, error instead of the last two. What need not be compiled comes first in each precision.

    torch_step_gpu.py [--models resnet18/28x28,bert/128] [--precisions bf16,f16] [--settings eager,graph,compile] [--but FILE]
    torch_step_gpu.py --device cpu --shrink --settings eager        smoke test without a GPU
"""
import argparse
import contextlib
import itertools
import json
import signal
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional

from torch_step import PREDICTIONS, SIZES, resnet, sst5

BATCH = {"resnet50/224x224": 256, "resnet18/28x28": 128, "bert/128": 64, "gpt2/1024": 8, "sst5/64": 256,
         "resnet18/224x224": 256, "resnet101/224x224": 128}
SHRUNK = {"layers": 1, "width": 16, "heads": 2, "ffn": 32, "length": 24, "vocabulary": 64}


class Attention(nn.Module):
    def __init__(self, width, heads, dropout, causal):
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.packed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask):
        rows, length, width = x.shape
        q, k, v = self.packed(x).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal, dropout_p=self.dropout)
        return self.out(y.transpose(1, 2).reshape(rows, length, width))


class Layer(nn.Module):
    """A layer of GPT-2, with norms before sublayers, or of BERT, with norms after them."""

    def __init__(self, width, heads, ffn, dropout, gpt):
        super().__init__()
        self.before = gpt
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=1e-5 if gpt else 1e-12) for _ in range(2))
        self.attention = Attention(width, heads, dropout, causal=gpt)
        self.up, self.gelu = nn.Linear(width, ffn), nn.GELU(approximate="tanh" if gpt else "none")
        self.down, self.dropout = nn.Linear(ffn, width), nn.Dropout(dropout)

    def forward(self, x, mask=None):
        if self.before:
            x = x + self.dropout(self.attention(self.norm1(x), mask))
            return x + self.dropout(self.down(self.gelu(self.up(self.norm2(x)))))
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        return self.norm2(x + self.dropout(self.down(self.gelu(self.up(x)))))


class Gpt2(nn.Module):
    def __init__(self, layers, width, heads, ffn, length, vocabulary, dropout):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(width, heads, ffn, dropout, gpt=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.dropout(self.words(ids) + self.places.weight[: ids.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.norm(x), self.words.weight)


class Bert(nn.Module):
    """As in convoy, the decoder sees only the masked positions."""

    def __init__(self, layers, width, heads, ffn, length, vocabulary, dropout):
        super().__init__()
        self.words, self.places, self.types = nn.Embedding(vocabulary, width), nn.Embedding(512, width), nn.Embedding(2, width)
        self.norm, self.dropout = nn.LayerNorm(width, eps=1e-12), nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(width, heads, ffn, dropout, gpt=False) for _ in range(layers))
        self.pooler, self.follows = nn.Linear(width, width), nn.Linear(width, 2)
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=1e-12))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, ids, types, own, masked):
        x = self.words(ids) + self.types(types) + self.places.weight[: ids.shape[1]]
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x, own[:, None, None, :])
        of_masked = self.transform(x.gather(1, masked.unsqueeze(2).expand(-1, -1, x.shape[2])))
        words = functional.linear(of_masked, self.words.weight, self.bias)
        return words, self.follows(torch.tanh(self.pooler(x[:, 0])))


def task(name, options):
    """(the model, its inputs, its labels, its batch)"""
    kind, size = name.split("/")
    batch = 4 if options.shrink else BATCH[name]
    if kind not in SIZES:
        small = int(size.split("x")[0]) < 100
        side = 32 if options.shrink else int(size.split("x")[0])
        channels, classes = (1, 10) if small else (3, 1000)
        net = resnet(kind, classes, channels).to(memory_format=torch.channels_last)
        return net, [torch.randn(batch, channels, side, side).to(memory_format=torch.channels_last)], [torch.randint(classes, (batch,))], batch
    sizes = {**SIZES[kind], **(SHRUNK if options.shrink else {})}
    length, vocabulary = sizes["length"], sizes["vocabulary"]
    ids = torch.randint(vocabulary, (batch, length))
    if kind == "gpt2":
        return Gpt2(**sizes), [ids], [torch.randint(vocabulary, (batch, length))], batch
    own = torch.arange(length) < torch.randint(1, length + 1, (batch, 1))
    if kind == "sst5":
        return sst5(argparse.Namespace(**sizes)), [ids, ~own], [torch.randint(5, (batch,))], batch
    given = [ids, torch.randint(2, (batch, length)), own, torch.randint(length, (batch, PREDICTIONS))]
    return Bert(**sizes), given, [torch.randint(vocabulary, (batch, PREDICTIONS)), torch.randint(2, (batch,))], batch


def step_of(net, given, labels, precision, setting, device):
    """A function that makes one step."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True, capturable=setting == "graph")
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}.get(precision)
    scaler = torch.amp.GradScaler(device, enabled=precision == "f16")

    def forward(given, labels):
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            made = net(*given)
            made = made if isinstance(made, tuple) else (made,)
            return sum(functional.cross_entropy(m.flatten(0, -2), of.flatten()) for m, of in zip(made, labels))

    if setting == "compile":
        from torch._inductor import config
        config.max_autotune_conv_backends = "ATEN"
        forward = torch.compile(forward, mode="max-autotune")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = forward(given, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def captured(step):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


class TooLong(BaseException):
    """Not an Exception, which PyTorch's compiler would take for a kernel that it cannot use."""


@contextlib.contextmanager
def at_most(seconds):
    """Raises TooLong in what runs within after these seconds."""
    def end(*_):
        raise TooLong(f"not compiled within {seconds} s")

    signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def measure(name, precision, setting, options):
    """The fields of a result."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "f32"
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    net, given, labels, batch = task(name, options)
    net = net.to(options.device).train()
    given, labels = ([x.to(options.device) for x in some] for some in (given, labels))
    step = step_of(net, given, labels, precision, setting, options.device)
    finish = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    if setting == "graph":
        step = captured(step)
    with at_most(options.compile_seconds):
        for _ in range(10):
            step()
    times = []
    for _ in range(5):
        finish()
        start = time.perf_counter()
        for _ in range(options.steps):
            step()
        finish()
        times.append((time.perf_counter() - start) / options.steps)
    median = statistics.median(times)
    return {"batch": batch, "samples_per_sec": batch / median, "step_ms": median * 1e3, "least_ms": min(times) * 1e3,
            "most_ms": max(times) * 1e3}


def measured(path):
    """What a file has results of."""
    found = set()
    with open(path) as file:
        for line in file:
            with contextlib.suppress(ValueError, KeyError):  # a line that was cut off
                row = json.loads(line)
                found.add((row["model"], row["precision"], row["setting"]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(BATCH), help="comma-separated, from %(default)s (default: all)")
    parser.add_argument("--precisions", default="bf16,f16", help="comma-separated (default: %(default)s)")
    parser.add_argument("--settings", default="eager,graph,compile", help="comma-separated (default: %(default)s)")
    parser.add_argument("--but", metavar="FILE", help="leave out what FILE, an earlier output, has results of")
    parser.add_argument("--compile-seconds", type=int, default=120,
                        help="give a setting up that takes longer to compile (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="steps per timing (default: %(default)s)")
    parser.add_argument("--device", default="cuda", help="PyTorch device (default: %(default)s)")
    parser.add_argument("--shrink", action="store_true", help="small sizes and batches, for smoke tests only")
    options = parser.parse_args()
    done = measured(options.but) if options.but else set()
    precisions = options.precisions.split(",")
    wanted = itertools.product(precisions, options.models.split(","), options.settings.split(","))
    for precision, name, setting in sorted(wanted, key=lambda case: (precisions.index(case[0]), case[2] == "compile")):
        if setting == "graph" and precision == "f16":
            continue  # the gradient scaler synchronizes with the host
        if (name, precision, setting) in done:
            continue
        try:
            result = measure(name, precision, setting, options)
        except (Exception, TooLong) as error:  # a setting that PyTorch refuses; the others follow
            print(f"{name} {precision} {setting}: {error}", file=sys.stderr, flush=True)
            result = {"error": (str(error).splitlines() or [type(error).__name__])[0]}
        print(json.dumps({"model": name, "precision": precision, "setting": setting, **result, "torch": torch.__version__}), flush=True)
        torch._dynamo.reset()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

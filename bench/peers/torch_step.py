#!/usr/bin/env python3
"""The training step of convoy's ResNet examples, written in PyTorch: the peer that convoy is measured against.

Same topology (torchvision's ResNet; a one-channel stem for MNIST-sized images), Adam with lr 1e-3, cross-entropy, float32,
same batch and threads. One batch of synthetic images stays in memory; a step is zero_grad, forward, backward and update. The
loss is read once after the last step. Several ranks are processes under DistributedDataParallel over gloo; --batch is per rank.

    torch_step.py --model resnet18 --image 28 --batch 128 --threads 2 --best
    torch_step.py --model resnet18 --image 28 --batch 128 --threads 1 --ranks 2 --layout channels_last

Prints one JSON object per setting:
    model, image, channels, classes, batch (per rank), threads (per rank), ranks, layout, mode, adam, memory, torch, parameters,
    steps, images_per_sec (all ranks, from the median step), images_per_sec_mean (from the total time), step_ms {min, median, max},
    step_ms_all, loss
and with --best, after one line per setting, the same object of the fastest (see quarter_step) with "best": true.

Settings that a user may turn without changing the arithmetic:
    layout   plain | channels_last
    mode     eager | compile (torch.compile, where it works)
    adam     loop (one tensor after the other) | foreach | fused (one kernel, PyTorch >= 2.4)
    memory   default | kept: the C library keeps freed memory (MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_) and PyTorch asks for
             huge pages (THP_MEM_ALLOC_ENABLE), so that large activations do not fault their pages in again at every step
"""
import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

KEPT_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 30),
    "THP_MEM_ALLOC_ENABLE": "1",
}


def resnet(name, classes, channels):
    """torchvision's model; where torchvision is missing, the same topology with the same parameter order."""
    import torch.nn as nn

    try:
        import torchvision

        net = getattr(torchvision.models, name)(num_classes=classes)
    except ImportError:
        net = _own_resnet(name, classes)
    if channels != 3:
        net.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
    return net


def _own_resnet(name, classes):
    import torch
    import torch.nn as nn

    def conv(a, b, k, s=1):
        return nn.Conv2d(a, b, k, s, k // 2, bias=False)

    class Block(nn.Module):
        def __init__(self, wide, width, stride, bottleneck):
            super().__init__()
            out = width * (4 if bottleneck else 1)
            if bottleneck:
                parts = [conv(wide, width, 1), conv(width, width, 3, stride), conv(width, out, 1)]
            else:
                parts = [conv(wide, width, 3, stride), conv(width, width, 3)]
            for i, part in enumerate(parts, 1):
                setattr(self, f"conv{i}", part)
                setattr(self, f"bn{i}", nn.BatchNorm2d(part.out_channels))
            self.count = len(parts)
            self.relu = nn.ReLU(inplace=True)
            self.downsample = None
            if stride != 1 or wide != out:
                self.downsample = nn.Sequential(conv(wide, out, 1, stride), nn.BatchNorm2d(out))

        def forward(self, x):
            y = x
            for i in range(1, self.count + 1):
                y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
                if i < self.count:
                    y = self.relu(y)
            y += x if self.downsample is None else self.downsample(x)
            return self.relu(y)

    class ResNet(nn.Module):
        def __init__(self, stages, bottleneck):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
            self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
            wide = 64
            for i, blocks in enumerate(stages):
                layer = []
                for j in range(blocks):
                    layer.append(Block(wide, 64 << i, 2 if i and not j else 1, bottleneck))
                    wide = (64 << i) * (4 if bottleneck else 1)
                setattr(self, f"layer{i + 1}", nn.Sequential(*layer))
            self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(wide, classes)

        def forward(self, x):
            x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(torch.flatten(self.avgpool(x), 1))

    stages = {
        "resnet18": ([2, 2, 2, 2], False),
        "resnet34": ([3, 4, 6, 3], False),
        "resnet50": ([3, 4, 6, 3], True),
        "resnet101": ([3, 4, 23, 3], True),
        "resnet152": ([3, 8, 36, 3], True),
    }
    return ResNet(*stages[name])


def adam(parameters, kind):
    import torch

    choice = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[kind]
    return torch.optim.Adam(parameters, lr=1e-3, **choice)


def train(options, rank):
    """Runs the steps of one rank; returns (milliseconds of each timed step, last loss, parameters)."""
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(1 + rank)
    net = resnet(options.model, options.classes, options.channels).train()
    parameters = sum(p.numel() for p in net.parameters())
    images = torch.rand(options.batch, options.channels, options.image, options.image)
    labels = torch.randint(0, options.classes, (options.batch,))
    if options.layout == "channels_last":
        net = net.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    if options.ranks > 1:
        # Views into the buckets save a copy of all gradients, and running statistics need no broadcast at every step.
        warnings.simplefilter("ignore", FutureWarning)  # the option has another name from 2.15 on
        net = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True, broadcast_buffers=False)
    if options.mode == "compile":
        net = torch.compile(net)
    optimizer = adam(net.parameters(), options.adam)
    criterion = torch.nn.CrossEntropyLoss()

    times = []
    for step in range(options.warmup + options.steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(net(images), labels)
        loss.backward()
        optimizer.step()
        if step >= options.warmup:
            times.append((time.perf_counter() - begin) * 1e3)
    return times, loss.item(), parameters


def report(options, times, loss, parameters):
    import torch

    images = options.batch * options.ranks
    median = statistics.median(times)
    print(
        json.dumps(
            {
                "model": options.model,
                "image": options.image,
                "channels": options.channels,
                "classes": options.classes,
                "batch": options.batch,
                "threads": options.threads,
                "ranks": options.ranks,
                "layout": options.layout,
                "mode": options.mode,
                "adam": options.adam,
                "memory": options.memory,
                "torch": torch.__version__,
                "parameters": parameters,
                "steps": options.steps,
                "images_per_sec": round(images / median * 1e3, 2),
                "images_per_sec_mean": round(images * len(times) / sum(times) * 1e3, 2),
                "step_ms": {"min": round(min(times), 3), "median": round(median, 3), "max": round(max(times), 3)},
                "step_ms_all": [round(t, 2) for t in times],
                "loss": loss,
            }
        ),
        flush=True,
    )


def run_rank(options):
    import datetime

    import torch.distributed

    torch.distributed.init_process_group(
        "gloo",
        init_method="file://" + options.meeting,
        rank=options.rank,
        world_size=options.ranks,
        timeout=datetime.timedelta(seconds=300),
    )
    result = train(options, options.rank)
    if options.rank == 0:
        report(options, *result)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def environment(options):
    env = dict(os.environ, OMP_NUM_THREADS=str(options.threads), MKL_NUM_THREADS=str(options.threads))
    env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if options.memory == "kept":
        env.update(KEPT_MEMORY)
    return env


def arguments(options, **changes):
    values = {**vars(options), **changes}
    names = ["model", "image", "channels", "classes", "batch", "threads", "ranks", "layout", "mode", "adam", "memory"]
    names += ["steps", "warmup", "limit"]
    return [sys.executable, os.path.abspath(__file__)] + [f"--{name}={values[name]}" for name in names]


def run_setting(options, quiet=False):
    """Runs one setting in fresh processes (thread counts and allocator are fixed when a process starts); returns its JSON or None."""
    errors = subprocess.DEVNULL if quiet else None
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                arguments(options) + [f"--rank={rank}", f"--meeting={folder}/meeting"],
                env=environment(options),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            for rank in range(options.ranks)
        ]
        end = time.monotonic() + options.limit
        try:
            outputs = [rank.communicate(timeout=max(1, end - time.monotonic()))[0] for rank in ranks]
        except subprocess.TimeoutExpired:
            outputs = [""]
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                rank.wait()
    lines = [line for line in outputs[0].splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines and all(rank.returncode == 0 for rank in ranks) else None


def quarter_step(result):
    """What settings are ranked by: a quarter of the steps are faster. Neighbours on the machine disturb it less than the median."""
    return sorted(result["step_ms_all"])[len(result["step_ms_all"]) // 4]


def best(options):
    import torch

    modern = hasattr(torch, "compile")
    # The fastest Adam on two cores of a server CPU: fused where it exists, else the plain loop.
    adams = ["fused"] if modern else ["loop"]
    if options.adams == "all":
        adams = (["fused"] if modern else []) + ["loop", "foreach"]
    choices = itertools.product(
        options.memories.split(","), ["eager", "compile"] if modern else ["eager"], ["plain", "channels_last"], adams
    )
    results = []
    for memory, mode, layout, kind in choices:
        changes = {"mode": mode, "layout": layout, "memory": memory, "adam": kind}
        result = run_setting(argparse.Namespace(**{**vars(options), **changes}), quiet=True)
        if result is None:
            print(f"no result: {changes}", file=sys.stderr)
            continue
        print(json.dumps(result), flush=True)
        results.append(result)
    if not results:
        sys.exit("torch_step.py: no setting ran")
    print(json.dumps({**min(results, key=quarter_step), "best": True}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--image", type=int, default=28, help="height and width")
    parser.add_argument("--channels", type=int, default=0, help="default: 1 for images up to 32, else 3")
    parser.add_argument("--classes", type=int, default=0, help="default: 10 for images up to 32, else 1000")
    parser.add_argument("--batch", type=int, default=128, help="per rank")
    parser.add_argument("--threads", type=int, default=2, help="per rank")
    parser.add_argument("--ranks", type=int, default=1, help="processes under DistributedDataParallel over gloo")
    parser.add_argument("--layout", choices=["plain", "channels_last"], default="plain")
    parser.add_argument("--mode", choices=["eager", "compile"], default="eager")
    parser.add_argument("--adam", choices=["loop", "foreach", "fused"], default="loop")
    parser.add_argument("--memory", choices=["default", "kept"], default="default")
    parser.add_argument("--steps", type=int, default=20, help="timed steps")
    parser.add_argument("--warmup", type=int, default=5, help="steps before them")
    parser.add_argument("--limit", type=float, default=300, help="seconds one setting may take")
    parser.add_argument("--best", action="store_true", help="try the settings, report each and the fastest")
    parser.add_argument("--memories", default="default,kept", help="the memory settings that --best tries")
    parser.add_argument("--adams", choices=["usual", "all"], default="usual", help="--best: the Adam known to be fastest, or all")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.channels = options.channels or (1 if options.image <= 32 else 3)
    options.classes = options.classes or (10 if options.image <= 32 else 1000)
    if options.rank is not None:
        if options.ranks > 1:
            run_rank(options)
        else:
            report(options, *train(options, 0))
    elif options.best:
        best(options)
    else:
        result = run_setting(options)
        if result is None:
            sys.exit("torch_step.py: the setting gave no result")
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

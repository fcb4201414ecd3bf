#!/usr/bin/env python3
"""Times the training step of convoy's examples in PyTorch: the peer that convoy is measured against.

ResNets: torchvision's topology (a one-channel stem for MNIST-sized images), Adam with lr 1e-3. Transformers, with AdamW: `bert`
(Hugging Face's BertForPreTraining, whose decoder computes only the masked positions, as convoy's does), `gpt2` (Hugging Face's) and
`sst5` (torch.nn.TransformerEncoder with pre-norm layers); all use scaled_dot_product_attention. Sizes, batch and threads are as in
convoy; precision is f32, or bf16 by autocast. One batch of synthetic data stays in memory; a step is zero_grad, forward, backward and
update. The loss is read once, after the last step. Several ranks are processes under DistributedDataParallel over gloo.

    torch_step.py --model resnet18 --image 28 --batch 128 --threads 2 --best
    torch_step.py --model resnet18 --image 28 --batch 128 --threads 1 --ranks 2 --layout channels_last
    torch_step.py --model bert --length 128 --batch 8 --precision bf16 --best

Prints one JSON object per setting:
    model, its sizes, precision, batch (per rank), threads (per rank), ranks, layout, mode, adam, memory, torch, parameters, steps,
    samples_per_sec (all ranks, from the median step), samples_per_sec_mean (from the total time), step_ms {min, median, max},
    step_ms_all, loss
and with --best, after one line per setting, the object of the fastest (by the lower quartile of its steps) with "best": true.

Settings that do not change the arithmetic:
    layout   plain | channels_last (of images)
    mode     eager | compile (torch.compile, where it works)
    adam     loop (one tensor after another) | foreach | fused (one kernel, PyTorch >= 2.4)
    memory   default | kept: the C library keeps freed memory (MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_) and PyTorch asks for
             huge pages (THP_MEM_ALLOC_ENABLE), so that large activations do not page-fault again in every step
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


def sst5(options):
    """convoy's models::Transformer: the mean over a sentence's words, classified."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self, layers, width, heads, ffn, length, vocabulary, classes, dropout):
            super().__init__()
            self.embedding = torch.nn.Embedding(vocabulary, width)
            self.position = torch.nn.Parameter(torch.randn(length, width) * 0.02)
            self.dropout = torch.nn.Dropout(dropout)
            layer = torch.nn.TransformerEncoderLayer(
                width, heads, ffn, dropout, activation="gelu", batch_first=True, norm_first=True)
            self.encoder = torch.nn.TransformerEncoder(
                layer, layers, norm=torch.nn.LayerNorm(width), enable_nested_tensor=False)
            self.classifier = torch.nn.Linear(width, classes)

        def forward(self, ids, padding):
            x = self.encoder(self.dropout(self.embedding(ids) + self.position), src_key_padding_mask=padding)
            own = (~padding).unsqueeze(2).to(x.dtype)
            return self.classifier((x * own).sum(1) / own.sum(1))

    return Net(options.layers, options.width, options.heads, options.ffn, options.length, options.vocabulary, 5, options.dropout)


def bert(options):
    import torch
    import transformers

    class Net(torch.nn.Module):
        def __init__(self, config):
            super().__init__()
            self.model = transformers.BertForPreTraining(config)

        def forward(self, ids, types, mask, masked):
            x, pooled = self.model.bert(ids, token_type_ids=types, attention_mask=mask)[:2]
            x = x.gather(1, masked.unsqueeze(2).expand(-1, -1, x.shape[2]))
            return self.model.cls(x, pooled)

    return Net(transformers.BertConfig(
        vocab_size=options.vocabulary, num_hidden_layers=options.layers, hidden_size=options.width,
        num_attention_heads=options.heads, intermediate_size=options.ffn, hidden_dropout_prob=options.dropout,
        attention_probs_dropout_prob=options.dropout, attn_implementation="sdpa"))


def gpt2(options):
    import transformers

    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=options.vocabulary, n_layer=options.layers, n_embd=options.width, n_head=options.heads,
        n_inner=options.ffn, n_positions=options.length, embd_pdrop=options.dropout, attn_pdrop=options.dropout,
        resid_pdrop=options.dropout, use_cache=False, attn_implementation="sdpa"))


# The sizes of the published models.
SIZES = {
    "sst5": {"layers": 6, "width": 256, "heads": 4, "ffn": 1024, "length": 64, "vocabulary": 16581, "dropout": 0.1},
    "bert": {"layers": 12, "width": 768, "heads": 12, "ffn": 3072, "length": 128, "vocabulary": 30522, "dropout": 0.1},
    "gpt2": {"layers": 12, "width": 768, "heads": 12, "ffn": 3072, "length": 1024, "vocabulary": 50257, "dropout": 0.0},
}
PREDICTIONS = 20  # masked positions of a row


def task(options):
    """(the model, a function that computes the loss on a resident batch with the model that it is given)"""
    import torch

    loss = torch.nn.functional.cross_entropy
    rows = options.batch
    if options.model not in SIZES:
        net = resnet(options.model, options.classes, options.channels).train()
        images = torch.rand(rows, options.channels, options.image, options.image)
        labels = torch.randint(0, options.classes, (rows,))
        if options.layout == "channels_last":
            net = net.to(memory_format=torch.channels_last)
            images = images.contiguous(memory_format=torch.channels_last)
        return net, lambda called: loss(called(images), labels)

    ids = torch.randint(0, options.vocabulary, (rows, options.length))
    if options.model == "sst5":
        labels = torch.randint(0, 5, (rows,))
        padding = torch.arange(options.length) >= torch.randint(1, options.length + 1, (rows, 1))
        return sst5(options).train(), lambda called: loss(called(ids, padding).float(), labels)
    if options.model == "gpt2":
        labels = torch.randint(0, options.vocabulary, (rows * options.length,))
        return gpt2(options).train(), lambda called: loss(called(ids).logits.view(-1, options.vocabulary).float(), labels)
    types = (torch.arange(options.length) >= options.length // 2).long().expand(rows, -1).contiguous()
    mask = torch.ones(rows, options.length, dtype=torch.long)
    mask[:, options.length - options.length // 8:] = 0
    masked = torch.randint(0, options.length - options.length // 8, (rows, PREDICTIONS))
    words, follows = torch.randint(0, options.vocabulary, (rows * PREDICTIONS,)), torch.randint(0, 2, (rows,))

    def of(called):
        logits, follow = called(ids, types, mask, masked)
        return loss(logits.view(-1, options.vocabulary).float(), words) + loss(follow.float(), follows)

    return bert(options).train(), of


def optimizer_of(net, options):
    import torch

    choice = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[options.adam]
    rule = torch.optim.AdamW if options.model in SIZES else torch.optim.Adam
    return rule(net.parameters(), lr=1e-3, **choice)


def train(options, rank):
    """Runs the steps of one rank; returns (milliseconds of each timed step, last loss, parameters)."""
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(1 + rank)
    net, loss_of = task(options)
    parameters = sum(p.numel() for p in net.parameters())
    if options.ranks > 1:
        # Views into the buckets save a copy of all gradients. Running statistics need no broadcast at every step.
        warnings.simplefilter("ignore", FutureWarning)  # the option has another name from 2.15 on
        net = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True, broadcast_buffers=False)
    if options.mode == "compile":
        net = torch.compile(net)
    optimizer = optimizer_of(net, options)
    cast = torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16")

    times = []
    for step in range(options.warmup + options.steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with cast:
            loss = loss_of(net)
        loss.backward()
        optimizer.step()
        if step >= options.warmup:
            times.append((time.perf_counter() - begin) * 1e3)
    return times, loss.item(), parameters


def sizes_of(options):
    """The names of the options for the model's size."""
    return list(SIZES[options.model]) if options.model in SIZES else ["image", "channels", "classes"]


def report(options, times, loss, parameters):
    import torch

    samples = options.batch * options.ranks
    median = statistics.median(times)
    print(
        json.dumps(
            {
                "model": options.model,
                **{name: getattr(options, name) for name in sizes_of(options)},
                "precision": options.precision,
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
                "samples_per_sec": round(samples / median * 1e3, 2),
                "samples_per_sec_mean": round(samples * len(times) / sum(times) * 1e3, 2),
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
    names = ["model", *sizes_of(options), "precision", "batch", "threads", "ranks", "layout", "mode", "adam", "memory"]
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
    """The lower quartile of step times, by which settings are ranked. Other load on the machine disturbs it less than the median."""
    return sorted(result["step_ms_all"])[len(result["step_ms_all"]) // 4]


def best(options):
    import torch

    modern = hasattr(torch, "compile")
    # The fastest Adam on two cores of a server CPU: fused where it exists, else the plain loop.
    adams = ["fused"] if modern else ["loop"]
    if options.adams == "all":
        adams = (["fused"] if modern else []) + ["loop", "foreach"]
    layouts = ["plain"] if options.model in SIZES else ["plain", "channels_last"]
    choices = itertools.product(options.memories.split(","), ["eager", "compile"] if modern else ["eager"], layouts, adams)
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


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet18", help="model (default: resnet18)")
    parser.add_argument("--image", type=int, default=28, help="height and width of images (default: 28)")
    parser.add_argument("--channels", type=int, default=0, help="channels of images (default: 1 for images up to 32, else 3)")
    parser.add_argument("--classes", type=int, default=0, help="number of classes (default: 10 for images up to 32, else 1000)")
    for name, kind in (("layers", int), ("width", int), ("heads", int), ("ffn", int), ("length", int), ("vocabulary", int), ("dropout", float)):
        parser.add_argument(f"--{name}", type=kind, help=f"{name} of a Transformer (default: the published model's)")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32", help="precision; bf16 is autocast (default: f32)")
    parser.add_argument("--batch", type=int, default=128, help="batch size per rank (default: 128)")
    parser.add_argument("--threads", type=int, default=2, help="threads per rank (default: 2)")
    parser.add_argument("--ranks", type=int, default=1, help="processes under DistributedDataParallel over gloo (default: 1)")
    parser.add_argument("--layout", choices=["plain", "channels_last"], default="plain", help="layout of images (default: plain)")
    parser.add_argument("--mode", choices=["eager", "compile"], default="eager", help="execution mode (default: eager)")
    parser.add_argument("--adam", choices=["loop", "foreach", "fused"], default="loop", help="Adam implementation (default: loop)")
    parser.add_argument("--memory", choices=["default", "kept"], default="default", help="kept: the C library keeps freed memory")
    parser.add_argument("--steps", type=int, default=20, help="timed steps (default: 20)")
    parser.add_argument("--warmup", type=int, default=5, help="untimed steps before the timed ones (default: 5)")
    parser.add_argument("--limit", type=float, default=300, help="time limit of one setting in seconds (default: 300)")
    parser.add_argument("--best", action="store_true", help="try all settings, and report each one and the fastest")
    parser.add_argument("--memories", default="default,kept", help="memory settings that --best tries (default: default,kept)")
    parser.add_argument("--adams", choices=["usual", "all"], default="usual", help="Adam implementations that --best tries: the usually fastest, or all")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    options.channels = options.channels or (1 if options.image <= 32 else 3)
    if options.model == "gpt2" and options.ffn is None and options.width is not None:
        options.ffn = 4 * options.width  # as in convoy, where GPT-2 has no other
    for name, value in SIZES.get(options.model, {}).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.classes = options.classes or (10 if options.image <= 32 else 1000)
    return options


def main():
    options = parse()
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

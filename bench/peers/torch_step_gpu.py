#!/usr/bin/env python3
"""Training steps of ResNets on a GPU in PyTorch: the peer that gpu_bench is measured against.

torchvision's models, Adam (fused), cross-entropy, a batch that stays on the GPU, channels_last. Precisions: f32 (no TF32), tf32,
bf16 and f16 (autocast; f16 with a gradient scaler). Settings: eager; eager captured as one CUDA graph; torch.compile with
max-autotune (which captures by itself). Prints one JSON object a line: model, precision, setting, batch, images_per_sec, step_ms.

    torch_step_gpu.py [--models resnet18/28x28,resnet50/224x224] [--precisions bf16,f16] [--settings eager,graph,compile]
"""
import argparse
import json
import statistics
import sys
import time

import torch
import torchvision

BATCH = {"resnet18/28x28": 128, "resnet18/224x224": 256, "resnet50/224x224": 256, "resnet101/224x224": 128}


def model_of(name):
    kind, image = name.split("/")
    side = int(image.split("x")[0])
    small = side < 100
    net = getattr(torchvision.models, kind)(num_classes=10 if small else 1000)
    if small:
        net.conv1 = torch.nn.Conv2d(1, 64, 7, 2, 3, bias=False)
    return net, (1 if small else 3, side, side), 10 if small else 1000


def step_of(net, x, y, precision, setting):
    """A function that makes one step."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True, capturable=setting == "graph")
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}.get(precision)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "f16")

    def forward(inputs, labels):
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            return torch.nn.functional.cross_entropy(net(inputs), labels)

    if setting == "compile":
        forward = torch.compile(forward, mode="max-autotune")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = forward(x, y)
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


def measure(name, precision, setting, steps):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "f32"
    torch.backends.cudnn.benchmark = True
    net, shape, classes = model_of(name)
    batch = BATCH[name]
    net = net.cuda().to(memory_format=torch.channels_last).train()
    x = torch.randn(batch, *shape, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(classes, (batch,), device="cuda")
    step = step_of(net, x, y, precision, setting)
    if setting == "graph":
        step = captured(step)
    for _ in range(10):
        step()
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / steps)
    median = statistics.median(times)
    print(json.dumps({"model": name, "precision": precision, "setting": setting, "batch": batch,
                      "images_per_sec": batch / median, "step_ms": median * 1e3, "least_ms": min(times) * 1e3,
                      "most_ms": max(times) * 1e3, "torch": torch.__version__}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(BATCH))
    parser.add_argument("--precisions", default="bf16,f16")
    parser.add_argument("--settings", default="eager,graph,compile")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    for name in options.models.split(","):
        for precision in options.precisions.split(","):
            for setting in options.settings.split(","):
                if setting == "graph" and precision == "f16":
                    continue  # the gradient scaler asks the host
                try:
                    measure(name, precision, setting, options.steps)
                except Exception as error:  # a setting that PyTorch refuses is reported, the rest goes on
                    print(f"{name} {precision} {setting}: {error}", file=sys.stderr, flush=True)
                torch._dynamo.reset()
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

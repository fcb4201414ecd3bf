#!/usr/bin/env python3
"""Checks that weights go from PyTorch to convoy and back: ResNet-18 of torchvision, BERT and GPT-2 of Hugging Face, with random
weights.

    python3 scripts/torch_weights.py build/release/examples/infer

needs torch, torchvision, transformers, safetensors and onnxruntime (PyPI), and no network. For each model, PyTorch computes logits and
writes its weights; `infer` reads these, computes the logits of the same inputs, and writes the weights in convoy's form; `infer` reads
that file and writes it in PyTorch's form and the model in ONNX; PyTorch loads the last weights into a new model, onnxruntime the model,
and both compute the logits again. All must agree.
"""
import argparse
import os
import subprocess
import sys
import tempfile


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("infer", help="the example program")
    return parser.parse_args()


OPTIONS = parse() if __name__ == "__main__" else None  # before the imports: --help needs no PyTorch

import onnxruntime  # noqa: E402
import torch  # noqa: E402
import torchvision  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

FURTHEST = 2e-4  # difference of any logit, relative to the largest logit


def shaken(model):
    """Adds noise to weights, biases and running statistics, so that none has its usual initial value and each one matters."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            tensor += 0.02 * (noise.abs() if name.endswith("running_var") else noise)
    return model.eval()


def resnet18():
    return torchvision.models.resnet18(weights=None)


def bert():
    sizes = dict(num_hidden_layers=4, hidden_size=128, num_attention_heads=4, intermediate_size=512, vocab_size=1000)
    return transformers.BertForPreTraining(transformers.BertConfig(max_position_embeddings=64, pad_token_id=None, **sizes))


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=4, n_embd=128, n_head=4, vocab_size=1000, n_positions=64))


def see_resnet18(model, images):
    return {"logits": model(images["image"])}


def see_bert(model, row):
    ids = row["input_ids"].long()
    mask = torch.arange(ids.shape[1])[None, :] < row["lengths"][:, None]
    seen = model(input_ids=ids, token_type_ids=row["token_type_ids"].long(), attention_mask=mask.long())
    masked = row["masked_positions"].long()[:, :, None].expand(-1, -1, seen.prediction_logits.shape[-1])
    return {"prediction_logits": seen.prediction_logits.gather(1, masked), "seq_relationship_logits": seen.seq_relationship_logits}


def see_gpt2(model, row):
    return {"logits": model(input_ids=row["input_ids"].long()).logits}


def ids(*shape, below=1000):
    return torch.randint(0, below, shape)


def models():
    torch.manual_seed(7)
    transformer = ["--layers", "4", "--width", "128", "--heads", "4", "--length", "48", "--vocabulary", "1000", "--positions", "64"]
    yield "resnet18", resnet18, see_resnet18, {"image": torch.randn(3, 3, 224, 224)}, []
    pair = {
        "input_ids": ids(5, 48),
        "token_type_ids": (torch.arange(48)[None, :] > 20).long().expand(5, -1).contiguous(),
        "lengths": torch.tensor([48, 30, 41, 21, 48]),
        "masked_positions": ids(5, 6, below=21),
    }
    yield "bert", bert, see_bert, pair, transformer + ["--ffn", "512", "--predictions", "6"]
    yield "gpt2", gpt2, see_gpt2, {"input_ids": ids(5, 48)}, transformer


def load(model, file):
    """Loads a file. It lacks the other names of a tied tensor, which is stored once; the model has these tied already."""
    own = model.state_dict()
    missing, unexpected = model.load_state_dict(load_file(file), strict=False)
    stored = {own[name].data_ptr() for name in own if name not in missing}
    assert not unexpected and all(own[name].data_ptr() in stored for name in missing), (missing, unexpected)
    return model.eval()


def save(model, file):
    """Saves tied tensors once, as safetensors requires."""
    seen, state = set(), {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen or tensor.numel() == 0:
            seen.add(tensor.data_ptr())
            state[name] = tensor.contiguous()
    save_file(state, file, metadata={"format": "pt"})


def see_by_onnxruntime(file, inputs):
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    own = {it.name: inputs[it.name].numpy().astype("float32" if it.type == "tensor(float)" else "int32") for it in session.get_inputs()}
    names = [it.name for it in session.get_outputs()]
    return {name: torch.from_numpy(value) for name, value in zip(names, session.run(names, own))}


def furthest(got, expected):
    return max(((got[name] - expected[name]).abs().max() / expected[name].abs().max()).item() for name in expected)


def main():
    failed = False
    for name, make, see, inputs, options in models():
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            path = lambda file: os.path.join(folder, file + ".safetensors")
            model = shaken(make())
            expected = see(model, inputs)
            save(model, path("torch"))
            save_file({key: value.float() for key, value in inputs.items()}, path("inputs"))
            there = 0
            for read, written, form in (("torch", "convoy", "convoy"), ("convoy", "back", "huggingface")):
                files = ["--weights", path(read), "--inputs", path("inputs"), "--outputs", path("outputs"), "--save", path(written),
                         "--onnx", path("onnx")]
                subprocess.run([OPTIONS.infer, "--model", name, *files, "--save-form", form, *options], check=True)
                there = max(there, furthest(load_file(path("outputs")), expected))
            back = furthest(see(load(make(), path("back")), inputs), expected)
            by_onnx = furthest(see_by_onnxruntime(path("onnx"), inputs), expected)
            fine = there < FURTHEST and back == 0 and by_onnx < FURTHEST
            failed = failed or not fine
            count = sum(tensor.numel() for tensor in load_file(path("convoy")).values())
            print(f"{name}: {count} numbers; logits differ by {there:.1e} of the largest in convoy, by {back:.1e} back in PyTorch, "
                  f"by {by_onnx:.1e} in onnxruntime: {'as they should' if fine else 'WRONG'}")
    sys.exit(failed)


if __name__ == "__main__":
    main()

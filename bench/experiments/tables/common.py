"""Shared parts of the tables: a run's name, its baseline, and its choices among those of the published runs."""

MODELS = {
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "resnet101": "ResNet-101",
    "transformer": "Transformer",
    "bert": "BERT",
    "convnet": "ConvNet",
}
ORDER = list(MODELS)


def rate_text(value):
    return "" if value is None else f"{value:.2f}" if value < 10_000 else f"{value:.0f}"


def clock(seconds):
    """h:mm:ss."""
    seconds = round(seconds)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def published_how(number):
    return f"published, set {number}"


def model_text(record):
    """The model and, if they differ from the published ones, its sizes."""
    name = MODELS[record["cell"]["model"]]
    sizes = ("--layers", "--width", "--length", "--image-size", "--copies")
    words = record["cell"]["options"]
    return " ".join([name, *(f"{a.removeprefix('--')} {b}" for a, b in zip(words, words[1:]) if a in sizes)])


def exchange_text(record):
    """The exchange and, if they differ from convoy's defaults, its buckets and its time."""
    cell = record["cell"]
    if record["family"] == "none":
        return "none"
    words = [cell["comm"] if cell["comm"] == "nccl" else f"{cell['comm']}/{cell['transport']}"]
    if cell["servers"]:
        words.append(f"+{cell['servers']}")
    if cell["bucket_mib"]:
        words.append("per tensor" if cell["bucket_mib"] == "tensor" else f"{cell['bucket_mib']} MiB")
    if cell["no_overlap"]:
        words.append("after backward")
    return " ".join(words)


def baseline_of(record, store):
    """Samples per second of one rank of the same kind: a run of one rank, or the replayed published rate."""
    if record["pace"]:
        return record["pace"]
    same = ("model", "batch", "exec", "options", "threads", "unsharded")
    alike = [
        other
        for other in store.runs()
        if other.get("world") == 1 and all(other["cell"][field] == record["cell"][field] for field in same)
    ]
    # Prefer a run by the same protocol.
    alike.sort(key=lambda other: other["protocol"]["kind"] != record["protocol"]["kind"])
    return alike[0]["throughput"] if alike else None


def workers(record):
    return record["cell"]["nodes"] * record["cell"]["ranks_per_node"]


def settings_notes(records):
    """Notes on the runs' choices among those of the published runs: the choices of most runs, and the runs that differ."""
    by = {}
    for record in records:
        by.setdefault(record["settings"], []).append(record["text"])
    (usual, _), *others = sorted(by.items(), key=lambda item: -len(item[1])) or [("", [])]
    notes = [f"Ran here with: {usual}."] if usual else []
    notes += [f"But {'; '.join(dict.fromkeys(who))}: {text}." for text, who in others]
    data = dict.fromkeys(f"{MODELS[record['cell']['model']]}: {record['data']}" for record in records)
    return notes + ([f"Data of what ran here: {'; '.join(data)}."] if data else [])


def ordered(records):
    return sorted(records, key=lambda r: (ORDER.index(r["cell"]["model"]), r["cell"]["nodes"], workers(r)))


def predicted(store):
    return [r for r in store.records.values() if r["status"] == "ok" and "prediction" in r]


def predicted_base(record, store):
    """The baseline of a prediction's speed-up: the slowest replayed rank, or one rank of the cluster."""
    if record["pace"]:
        return record["pace"]
    answer = record["prediction"]
    if isinstance(answer.get("scalability"), (int, float)) and answer["scalability"] > 0:
        return answer["throughput"] / answer["scalability"]
    return baseline_of(record, store)

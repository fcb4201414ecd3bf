"""What tables share: how a run is called, what it is compared with, and which published choices it made."""

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
    """The model and, where they are not the published one's, its sizes."""
    name = MODELS[record["cell"]["model"]]
    sizes = ("--layers", "--width", "--length", "--image-size", "--copies")
    words = record["cell"]["options"]
    return " ".join([name, *(f"{a.removeprefix('--')} {b}" for a, b in zip(words, words[1:]) if a in sizes)])


def exchange_text(record):
    """The exchange, and where it is not convoy's own, in what pieces and when."""
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
    """Samples a second of one rank of the same kind: a run of one, or the published rate that is replayed."""
    if record["pace"]:
        return record["pace"]
    same = ("model", "batch", "exec", "options", "threads", "unsharded")
    alike = [
        other
        for other in store.runs()
        if other.get("world") == 1 and all(other["cell"][field] == record["cell"][field] for field in same)
    ]
    # A run by the same protocol is nearest.
    alike.sort(key=lambda other: other["protocol"]["kind"] != record["protocol"]["kind"])
    return alike[0]["throughput"] if alike else None


def workers(record):
    return record["cell"]["nodes"] * record["cell"]["ranks_per_node"]


def settings_notes(records):
    """Which of the published choices each of the runs made: those of most, and the runs that differ."""
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
    """What a prediction's speed-up is over: the slowest rank that it is for, or one of the cluster's."""
    if record["pace"]:
        return record["pace"]
    answer = record["prediction"]
    if isinstance(answer.get("scalability"), (int, float)) and answer["scalability"] > 0:
        return answer["throughput"] / answer["scalability"]
    return baseline_of(record, store)

"""Machines, their software, and the throughput of a single device."""

from .. import published
from ..table import Table
from .common import published_how, rate_text


def baselines(store):
    """One GPU, and one rank here."""
    table = Table(
        "One GPU of each machine, and one rank here",
        ["machine", "device", "network, Gbit/s", "ResNet-18, images/s", "ResNet-101, images/s", "BERT, words/s", "how"],
    )
    for row in published.baselines():
        table.add(
            row["machine"],
            row["gpu"],
            row["network_gbps"],
            row["resnet18_images_per_sec"],
            row["resnet101_images_per_sec"],
            row["bert_base_words_per_sec"],
            published_how(2),
        )
    for machine in ("lm1", "lm6"):
        rates = {model: published.single()[model, machine] for model in ("resnet18", "resnet101")}
        table.add(machine, "2080Ti", 1, f"{rates['resnet18']:.2f}", f"{rates['resnet101']:.2f}", "", published_how(1))
    by = {}
    for record in store.runs("cumulative"):
        if record["world"] == 1 and record["cell"]["exec"] != "replay":
            by.setdefault((record["hosts"], record["device"], record["how"]), {})[record["cell"]["model"]] = record
    for (host, device, how), models in by.items():
        texts = [rate_text(models[m]["throughput"]) if m in models else "" for m in ("resnet18", "resnet101")]
        bert = models.get("bert")
        table.add(host, device, "", *texts, rate_text(bert["throughput"] * bert["units_per_row"]) if bert else "", how)
    table.notes = ["Sets 1 and 2 differ on the same machines: a run is only ever divided by its own set's baseline."]
    return [table]


def testbeds(store):
    """Machines."""
    table = Table("Test beds", ["machine", "nodes", "ranks of a node", "device", "network", "how"])
    table.add("lm1, lm6", 2, "4, 2", "2080 Ti", "1 Gbit/s between, NVLink inside", published_how(1))
    for row in published.baselines():
        table.add(row["machine"], "", "", row["gpu"], f"{row['network_gbps']} Gbit/s", published_how(2))
    table.add("4 nodes", 4, 8, "V100-SXM2-16GB", "100 Gbit/s EDR InfiniBand, NVLink inside", published_how(3))
    table.add("gn01 to gn09", 4, "1 to 4", "GPUs of several types", "", published_how(4))
    seen = set()
    elsewhere = False
    for record in store.records.values():
        if record["status"] != "ok" or record.get("how", "predicted") == "predicted":
            continue
        machine, cell = record["machine"], record["cell"]
        device = (
            "; ".join(machine["gpus"])
            if cell["exec"] == "cuda"
            else f"{machine['processor']}, {machine['processors']} processors"
        )
        elsewhere |= record["launcher"] in ("hosts", "slurm")
        bed = cell["nodes"] > 1 and record["launcher"] in ("testbed", "local and testbed")
        network = f"test bed at {cell['rate'] or '1gbit'}" if bed else "" if cell["nodes"] == 1 else record["launcher"]
        row = (
            record["hosts"],
            cell["nodes"],
            cell["ranks_per_node"],
            f"{device}, {machine['memory_gib']:g} GiB, {machine['system']}",
            network,
            record["how"],
        )
        if row not in seen:
            seen.add(row)
            table.add(*row)
    if elsewhere:
        table.notes = ["On hosts of a file and under Slurm, the device is that of the machine from which the experiment was started."]
    return [table]


def versions(store):
    """Software."""
    table = Table("Versions", ["software", "version", "how"])
    for name, text in (("CUDA", "10.1"), ("cuDNN", "7.6.5"), ("jaxlib", "0.1.56"), ("cupy", "8.3.0")):
        table.add(name, text, published_how(2))
    seen = set()
    for record in store.records.values():
        for name, text in [
            ("convoy", f"commit {record['commit'] or 'unknown'}"),
            ("system", f"{record['machine']['system']}, Linux {record['machine']['kernel']}"),
            *record["versions"].items(),
        ]:
            if (name, text) not in seen:
                seen.add((name, text))
                table.add(name, text, "ran on this machine")
    return [table]

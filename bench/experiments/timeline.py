"""One training step of all ranks as a picture, from a Chrome trace of a trainer's --timeline."""

import json

from .failure import Failure

COLORS = {"forward": "#7aa6d8", "backward": "#2f6db3", "update": "#e0a030", "exchange": "#4ca64c", "other": "#999999"}

TRACKS = ("compute", "exchange", "optimizer")


def read(path):
    """[(rank, track, name, start, seconds)] and the names of tracks {(rank, tid): name}."""
    try:
        with open(path) as file:
            events = json.load(file)["traceEvents"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure(f"{path} is not a Chrome trace: {error!r}") from None
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("ph") == "M" and e.get("name") == "thread_name"}
    bars = [
        (e["pid"], tracks.get((e["pid"], e["tid"]), str(e["tid"])), e["name"], e["ts"] * 1e-6, e["dur"] * 1e-6)
        for e in events
        if e.get("ph") == "X"
    ]
    if not bars:
        raise Failure(f"{path} has no events")
    return bars


def step_of(bars, number=None):
    """The bars of one step, from rank 0's forward to its next; by default a step in the middle of the run."""
    forwards = sorted(start for rank, _, name, start, _ in bars if rank == 0 and name == "forward")
    if len(forwards) < 2:
        raise Failure("the trace has fewer than two steps")
    number = len(forwards) // 2 if number is None else number
    begin = forwards[number]
    end = forwards[number + 1] if number + 1 < len(forwards) else float("inf")
    return [
        (rank, track, name, start - begin, seconds)
        for rank, track, name, start, seconds in bars
        if begin <= start + seconds / 2 < end
    ]


def kind_of(track, name):
    if name in ("forward", "backward", "update"):
        return name
    return "exchange" if track == "exchange" else "other"


def lanes(bars):
    """Rows of the picture: [(label, [bars])], with a rank's computation, exchange and updates. Overlapping bars are on separate
    rows."""
    found = []
    for rank in sorted({bar[0] for bar in bars}):
        for track in sorted(
            {bar[1] for bar in bars if bar[0] == rank}, key=lambda t: (TRACKS.index(t) if t in TRACKS else len(TRACKS), t)
        ):
            rows = []
            for bar in sorted((b for b in bars if b[0] == rank and b[1] == track), key=lambda b: b[3]):
                free = next((row for row in rows if row[-1][3] + row[-1][4] <= bar[3] + 1e-7), None)
                if free is None:
                    rows.append(free := [])
                free.append(bar)
            found += [(f"rank {rank} {track}" if i == 0 else "", row) for i, row in enumerate(rows)]
    return found


def picture(path, title, folder, name="timeline"):
    from .plots import pyplot, save

    plt = pyplot()
    rows = lanes(step_of(read(path)))
    figure, axis = plt.subplots(figsize=(11, 0.7 + 0.34 * len(rows)))
    shown = set()
    end = max(start + seconds for _, row in rows for *_, start, seconds in row)
    for y, (_, row) in enumerate(rows):
        for _, track, what, start, seconds in row:
            kind = kind_of(track, what)
            axis.barh(
                y,
                seconds * 1e3,
                left=start * 1e3,
                height=0.74,
                color=COLORS[kind],
                edgecolor="white",
                linewidth=0.6,
                label=kind if kind not in shown else None,
            )
            shown.add(kind)
            if seconds > 0.035 * end and what != "update":
                axis.text(
                    (start + seconds / 2) * 1e3,
                    y,
                    what.replace("bucket ", "b"),
                    ha="center",
                    va="center",
                    color="white",
                    fontsize=8,
                )
    axis.set_yticks(range(len(rows)), [label for label, _ in rows])
    axis.invert_yaxis()
    axis.grid(False, axis="y")
    axis.set_xlabel("ms since the step began on rank 0")
    axis.set_title(title, loc="left")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return save(figure, folder, name)

"""The slides' table of complexities, measured: how time and memory grow with the length T and the width D."""

from typing import Any

from recurrify_papers.declare import number_experiment
from recurrify_papers.experiment import Chart, Headline, Row
from recurrify_papers.plan import Entry, Plan
from recurrify_papers.slides.lengths import SOURCE

PARTS: dict[str, tuple[str, dict[str, int]]] = {
    "self-attention, its matrix stored": ("O(T²·D)", {"T": 2, "D": 1}),
    "self-attention, fused": ("O(T²·D)", {"T": 2, "D": 1}),
    "position-wise FFN": ("O(T·D²)", {"T": 1, "D": 2}),
    "LSTM layer": ("O(T·D²)", {"T": 1, "D": 2}),
    "RSA scan": ("O(T·D)", {"T": 1, "D": 1}),
}
"""By part: its complexity in the slides, and the exponents of T and D."""
SLOW = ("self-attention, its matrix stored", "self-attention, fused", "LSTM layer")
LIGHT = ("RSA scan",)
GRIDS: dict[str, dict[str, Any]] = {
    "cpu": {
        "lengths": (128, 256, 512, 1024, 2048, 4096, 8192, 16_384),
        "longest_slow": 2048,
        "widths": (64, 128, 256, 512, 1024),
        "width": 128,
        "length": 256,
        "light_times": 8,
        "repeats": 7,
    },
    "cuda": {
        "lengths": (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536),
        "longest_slow": 16_384,
        "widths": (128, 256, 512, 1024, 2048, 4096),
        "width": 512,
        "length": 4096,
        "light_times": 16,
        "repeats": 7,
    },
}
"""Lengths at one width, widths at one length. Slow parts stop at `longest_slow`. Light parts take sequences
`light_times` as long, so that more than their kernel launches is measured."""


def complexity_entries(plan: Plan) -> list[Entry]:
    """Each part along T and along D."""
    own = plan.size.own.get("slides-complexity", {})
    grids = {device: {**grid, **own} for device, grid in GRIDS.items()}
    found = []
    for part, (order, _) in PARTS.items():
        for axis in ("T", "D"):
            name = f"complexity-{part.lower().replace(',', '').replace(' ', '-')}-{axis}"
            settings = {"part": part, "axis": axis, "slow": part in SLOW, "light": part in LIGHT, "grids": grids}
            run = plan.run("slides.measuring:complexity_run", name, **settings)
            found.append(Entry(label=part, model=part, dataset=f"along {axis}", trained={0: (run,)}, note=order))
    return found


def published(row: Row) -> float:
    """The exponent in the slides."""
    return float(PARTS[row.label][1][str(row.dataset).removeprefix("along ")])


EXPERIMENTS = (
    number_experiment(
        complexity_entries,
        published,
        name="slides-complexity",
        title="Time and memory against length and width, with their exponents",
        source=f"{SOURCE}, the table of complexities (orders of growth, no numbers)",
        text="An exponent is the slope of a line through the logarithms of the larger sizes, by least squares.",
        differences=("The slides give only orders of growth; sizes are those that fit the device.",),
        headlines=(
            Headline(
                label="self-attention, its matrix stored",
                metric="exponent of forward and backward time",
                dataset="along T",
                sentence="Self-attention grows with the length to the power of {value}; {published}.",
            ),
        ),
        chart=Chart(x="label", metric="exponent of forward and backward time", facet="dataset", title="Exponents"),
    ),
)

"""The slides' table of complexities, measured: how time and memory grow with the length T and the width D."""

from typing import Any

from recurrify_papers.experiment import Chart, Experiment, Headline, Row, Table
from recurrify_papers.runner import Results, Run
from recurrify_papers.sizes import Size
from recurrify_papers.slides.lengths import SOURCE

PARTS: dict[str, tuple[str, dict[str, int]]] = {
    "self-attention, its matrix stored": ("O(T²·D)", {"T": 2, "D": 1}),
    "self-attention, fused": ("O(T²·D)", {"T": 2, "D": 1}),
    "position-wise FFN": ("O(T·D²)", {"T": 1, "D": 2}),
    "LSTM layer": ("O(T·D²)", {"T": 1, "D": 2}),
    "RSA scan": ("O(T·D)", {"T": 1, "D": 1}),
}
"""By part: its complexity in the slides, and the exponents of T and D."""
METRICS = {"seconds": "forward and backward time", "forward_seconds": "forward time", "peak_bytes": "memory"}


def _name(part: str, axis: str) -> str:
    return f"complexity-{part.lower().replace(',', '').replace(' ', '-')}-{axis}"


def complexity_runs(size: Size) -> list[Run]:
    """Each part along T and along D."""
    function = "recurrify_papers.slides.measuring:complexity_run"
    grid = dict(size.own.get("slides-complexity", {}))
    return [
        Run(name=_name(part, axis), function=function, settings={"part": part, "axis": axis, "grid": grid})
        for part in PARTS
        for axis in ("T", "D")
    ]


def complexity_table(size: Size, results: Results) -> Table:
    """Measured exponents, with those of the slides as published values."""
    table = Table()
    for part in PARTS:
        for axis in ("T", "D"):
            found = results.get(_name(part, axis))
            if found is None:
                table.missing.append(f"{part}, along {axis}")
            else:
                add_part(table, part, axis, found)
    return table


def add_part(table: Table, part: str, axis: str, found: dict[str, Any]) -> None:
    """The exponents and points of one part along one axis."""
    theory, exponents = PARTS[part]
    common: dict[str, Any] = {
        "label": part,
        "model": part,
        "dataset": f"along {axis}",
        "published": float(exponents[axis]),
    }
    for name, title in METRICS.items():
        fit = found["exponents"].get(name)
        if fit is not None:
            error, points = fit["standard_error"], fit["points"]
            note = f"{theory}; standard error {error:.2f} over {points} sizes; {found['clock']} clock"
            table.rows.append(Row(metric=f"exponent of {title}", value=fit["exponent"], note=note, **common))
        elif name in found["too_few"]:
            note = "too few sizes take several times as long as launching the kernels"
            table.rows.append(Row(metric=f"exponent of {title}", value=None, note=note, **common))
    table.rows.append(Row(metric="exponent of counted operations", value=found["counted_exponent"], **common))
    x = [point[axis] for point in found["points"]]
    y = [point["seconds"] for point in found["points"]]
    axes = {"x_label": f"{axis} ({_fixed(found['at'])})", "y_label": "seconds, forward and backward"}
    table.curves.append({"name": part, **axes, "x": x, "y": y, "log": True})
    table.missing += found["lacking"]


def _fixed(at: dict[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in at.items())


EXPERIMENTS = (
    Experiment(
        name="slides-complexity",
        title="Time and memory against length and width, with their exponents",
        source=f"{SOURCE}, the table of complexities (orders of growth, no numbers)",
        runs=complexity_runs,
        table=complexity_table,
        text="An exponent is the slope of a line through the logarithms of the larger sizes, by least squares.",
        differences=("The slides give orders of growth alone; sizes are those that fit the device.",),
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

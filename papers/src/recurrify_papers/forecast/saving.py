"""A forecaster in a folder: `config.json` with all that a forecast needs to know, and weights as safetensors."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from recurrify.errors import UserError
from recurrify.records import RUN_FILE
from recurrify.results import write_whole
from recurrify_papers.forecast.building import described, rebuilt
from recurrify_papers.forecast.data import Scaling
from recurrify_papers.forecast.evaluation import Intervals

CONFIG_FILE, WEIGHTS_FILE, INTERVALS_FILE = "config.json", "model.safetensors", "intervals.safetensors"
START_FILE = "recurrence_start.json"
"""What the recurrence was before the first step."""


@dataclass(frozen=True)
class Forecaster:
    """A model with what ties it to its data."""

    model: nn.Module
    columns: tuple[str, ...]
    target: str
    frequency: str
    past: int
    horizon: int
    scaling: Scaling
    intervals: Intervals
    train_end: str | None = None
    """Date of the last training row; None in models saved before it was written down."""
    valid_end: str | None = None
    """Date of the last validation row: what begins later was never seen."""
    recurrence_start: list[dict[str, Any]] = field(default_factory=list)
    """`recurrence_shapes` before the first step."""


def save_forecaster(forecaster: Forecaster, folder: str | Path) -> None:
    """The configuration is written last: a folder that has one is whole."""
    folder = Path(folder)
    config = {
        "format": "recurrify forecaster",
        "model": described(forecaster.model),
        "columns": forecaster.columns,
        "target": forecaster.target,
        "frequency": forecaster.frequency,
        "past": forecaster.past,
        "horizon": forecaster.horizon,
        "mean": forecaster.scaling.mean.tolist(),
        "spread": forecaster.scaling.spread.tolist(),
        "levels": forecaster.intervals.levels,
        "validation_windows": forecaster.intervals.windows,
        "train_end": forecaster.train_end,
        "valid_end": forecaster.valid_end,
    }
    weights = {name: value.detach().cpu().contiguous() for name, value in forecaster.model.state_dict().items()}
    write_whole(folder / WEIGHTS_FILE, save(weights))
    half_widths = forecaster.intervals.half_widths.detach().cpu().contiguous()
    write_whole(folder / INTERVALS_FILE, save({"half_widths": half_widths}))
    if forecaster.recurrence_start:
        write_whole(folder / START_FILE, (json.dumps(forecaster.recurrence_start) + "\n").encode())
    write_whole(folder / CONFIG_FILE, (json.dumps(config, indent=2) + "\n").encode())


def _none_there(folder: Path) -> str:
    if (folder / RUN_FILE).is_file():
        return (
            f"The training in {str(folder)!r} has not come to its end, and there is no forecaster before: give its "
            "command again, which goes on from what is saved."
        )
    return f"There is no forecaster in {str(folder)!r}: give the --out folder of a finished `forecast train`."


def load_forecaster(path: str | Path) -> Forecaster:
    """Read what `save_forecaster` wrote, from its folder or from the folder of its run."""
    folder = Path(path)
    if not (folder / CONFIG_FILE).is_file():
        folder = folder / "model"
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(_none_there(Path(path)))
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        if config.get("format") != "recurrify forecaster":
            raise ValueError("it describes something else")
        model = rebuilt(config["model"])
        model.load_state_dict(load_file(folder / WEIGHTS_FILE))
        half_widths = load_file(folder / INTERVALS_FILE)["half_widths"]
        return Forecaster(
            model=model.eval(),
            columns=tuple(config["columns"]),
            target=config["target"],
            frequency=config["frequency"],
            past=config["past"],
            horizon=config["horizon"],
            scaling=Scaling(np.array(config["mean"]), np.array(config["spread"])),
            intervals=Intervals(tuple(config["levels"]), half_widths, config.get("validation_windows")),
            train_end=config.get("train_end"),
            valid_end=config.get("valid_end"),
            recurrence_start=_recurrence_start(folder),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise UserError(f"The forecaster in {str(folder)!r} cannot be loaded: {error}.") from error


def _recurrence_start(folder: Path) -> list[dict[str, Any]]:
    path = folder / START_FILE
    if not path.is_file():
        return []
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found

"""A run that trains a language model from scratch."""

from pathlib import Path
from typing import Any

from recurrify_papers.finetune import OUT, finished
from recurrify_papers.runner import Say, minutes_left
from recurrify_papers.scratch.run import train_scratch
from recurrify_papers.scratch.settings import ScratchSettings


def train_run(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any] | None:
    """Train as the settings say; the result has the numbers and curves of the table."""
    own = ScratchSettings(out=str(folder / OUT), max_minutes=minutes_left(), **settings)
    result = finished(train_scratch(own, lambda text: say(f"{folder.name}: {text}")))
    return result and result | {"numbers": numbers_of(result), "curves": [curve_of(result)]}


def numbers_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Bits per symbol of both parts, and the size and speed of the training."""
    metric = f"bits per {result['unit']}"
    found = [
        {"metric": metric, "value": result[part]["bits_per_symbol"], "split": split}
        for split, part in (("valid", "validation"), ("test", "test"))
    ]
    facts = {"parameters": "parameters", "symbols per second": "tokens_per_second"}
    facts |= {"training seconds": "training_seconds", "training symbols": "tokens"}
    return [*found, *({"metric": name, "value": result[key]} for name, key in facts.items() if result[key] is not None)]


def curve_of(result: dict[str, Any]) -> dict[str, Any]:
    """The training loss."""
    points = result["history"]["training"]
    y = [round(one["loss"], 4) for one in points]
    return {"x_label": "step", "y_label": "training loss", "x": [one["step"] for one in points], "y": y}

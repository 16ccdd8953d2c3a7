"""How the runs of Table 1 learned: the epochs that were best, the seconds they took, and how far gates moved."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any


def training_facts(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By model, of those that learn: how often each epoch, from the first, was best on validation, and the seconds of
    all epochs. By model with recurrence: `gates_moved`, of the runs that noted where their gates started."""
    learned: dict[str, list[dict[str, Any]]] = {}
    for one in results:
        if one["history"]:
            learned.setdefault(one["model"], []).append(one)
    moved = {model: _gates_moved(runs) for model, runs in learned.items()}
    return {
        "best_epochs": {model: _best_epochs(runs) for model, runs in learned.items()},
        "training_seconds": {
            model: sum(epoch["seconds"] for one in runs for epoch in one["history"]) for model, runs in learned.items()
        },
        "gates_moved": {model: parts for model, parts in moved.items() if parts},
    }


def _best_epochs(runs: Sequence[dict[str, Any]]) -> list[int]:
    epochs = [one["best_epoch"] for one in runs]
    return [epochs.count(epoch) for epoch in range(1, max(epochs) + 1)]


def _gates_moved(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By part of the model, encoder or decoder: means over the gates of all its layers and runs, and how many ended so
    open that less than a tenth is left to attention."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for one in runs:
        start = {layer["layer"]: layer["gate"] for layer in one.get("recurrence_start") or []}
        for layer in one["recurrence"] if start else []:
            part = layer["layer"].partition(".")[0]
            pairs.setdefault(part, []).append((start[layer["layer"]], layer["gate"]))
    return {
        part: {
            "gates": len(gates),
            "start": fmean(start for start, _ in gates),
            "end": fmean(end for _, end in gates),
            "moved": fmean(abs(end - start) for start, end in gates),
            "above_0.9": sum(end > 0.9 for _, end in gates),
        }
        for part, gates in pairs.items()
    }

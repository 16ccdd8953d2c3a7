"""The legs of a run that was stopped and went on: how long each took, and what it was made with."""

import json
from collections.abc import Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import Any

from recurrify.results import load_result, write_whole

LEGS_FILE = "legs.json"


def made_with(origin: Mapping[str, Any]) -> dict[str, str]:
    """What numbers may depend on besides their settings, out of a provenance."""
    git, machine, libraries = origin["git"], origin["machine"], origin["libraries"]
    return {
        "commit": (git["commit"] or "unknown") + (", changed" if git["dirty"] else ""),
        "device": machine["gpu"] or machine["cpu"] or "unknown",
        "torch": libraries["torch"] or "unknown",
        "transformers": libraries["transformers"] or "unknown",
    }


def with_this_leg(out: Path, first_step: int, last_step: int, origin: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All legs of the run in a folder, up to the one whose provenance this is."""
    # Legs before a start from nothing left nothing to this one.
    earlier = load_result(out / LEGS_FILE)["legs"] if first_step and (out / LEGS_FILE).is_file() else []
    this = {"first_step": first_step, "last_step": last_step, "seconds": origin["wall_seconds"], **made_with(origin)}
    return [*earlier, this]


def keep_legs(out: Path, legs: Sequence[Mapping[str, Any]]) -> None:
    """For the leg that goes on."""
    write_whole(out / LEGS_FILE, (json.dumps({"legs": legs}, indent=1) + "\n").encode())


def seconds_of(result: Mapping[str, Any]) -> float | None:
    """How long a finished run took, all legs together; None where one of them left no word, as after a power cut."""
    legs = result.get("legs")
    if legs is None:
        return result["provenance"]["wall_seconds"] if _in_one_go(result["history"]) else None
    ends = [0, *(leg["last_step"] for leg in legs)]
    if any(leg["first_step"] != end for leg, end in zip(legs, ends, strict=False)):
        return None
    return sum(leg["seconds"] for leg in legs)


def _in_one_go(history: Sequence[Mapping[str, float]]) -> bool:
    """For results of the time before legs were kept: Trainer's closing loss is that of the last leg's steps alone,
    while the log holds those of all."""
    closing = next((entry for entry in reversed(history) if "train_loss" in entry), None)
    if closing is None:
        return False
    total, before = 0.0, 0.0
    for entry in history:
        if "loss" in entry:
            total += entry["loss"] * (entry["step"] - before)
            before = entry["step"]
    return isclose(total, closing["train_loss"] * closing["step"], rel_tol=1e-3)

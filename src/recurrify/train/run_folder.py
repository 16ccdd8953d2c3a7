"""The folder of a run: checks before the run starts, and the files that it writes."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from recurrify.console import is_first
from recurrify.data.texts import Say
from recurrify.errors import UserError
from recurrify.evaluate.flops import memory_cost
from recurrify.modeling.loading import own_memory
from recurrify.modeling.sharding import is_sharded, whole_weights
from recurrify.records import CONFIG_FILE, MODEL_FOLDER, RESULT_FILE, RUN_FILE, RunRecord
from recurrify.results import full_disk_explained, load_result, provenance, save_result, write_whole
from recurrify.train.callbacks import seconds_trained
from recurrify.train.checkpoints import checkpoints, last_whole_checkpoint, step_of
from recurrify.train.loop import TrainOutcome
from recurrify.train.settings import MemorySettings, TrainerSettings

Settings = TypeVar("Settings", bound=MemorySettings)
LEGS_FILE = "legs.json"
"""One entry for each time a run was started or resumed, until its result has them."""
WRITTEN = (RESULT_FILE, MODEL_FOLDER, "training.safetensors", "checkpoint-*")
"""Files of a run."""
LEFTOVERS = (".*.tmp", ".saving-*", f"{MODEL_FOLDER}/.*.tmp", f"{MODEL_FOLDER}/.saving-*")
"""Unfinished files of killed processes."""


def recorded(settings: Settings, model: Any, data_checksum: str, held_out_checksum: str | None) -> Settings:
    """The settings as the record of a run has them: with every setting of the model, and checksums of all inputs."""
    return replace(
        settings,
        recurrence=model.recurrence.to_dict(),
        data_checksum=data_checksum,
        held_out_checksum=held_out_checksum,
        model_checksum=_weights_checksum(model, with_memory=bool(own_memory(settings.model))),
    )


def _weights_checksum(model: Any, with_memory: bool) -> str:
    """A checksum of the weights that a run starts from, quick and the same on every device.

    A new memory may look at what the base computes, which differs between devices, so it does not count.
    """
    weights = list(model.base.parameters())
    if with_memory:
        weights += model.added_parameters().values()
    total = 0
    for number, parameter in enumerate(weights, 1):
        total ^= (number * int(torch.hash_tensor(parameter.detach()).item())) & (2**64 - 1)
    return f"{total:016x}"


def earlier_result(settings: RunRecord, say: Say, also_written: Sequence[str] = ()) -> dict[str, Any] | None:
    """The result of a finished run in the folder `settings.out`; None if there is something to train.

    Args:
        settings: The settings of the run.
        say: Prints a line.
        also_written: Names of files that only this kind of run writes.

    Raises:
        UserError: The folder has a run with other settings, or files of something else.
    """
    out = Path(settings.out)
    if out.exists() and not out.is_dir():
        raise UserError(f"{settings.out!r} is a file, not a folder: choose another --out.")
    earlier = type(settings).read(out)
    if earlier is None:
        _check_not_read(out, getattr(settings, "data", None))
        _check_loses_nothing(out, (*WRITTEN, *also_written))
        return None
    settings.check_same_run(earlier)
    if (out / RESULT_FILE).is_file():
        if not (out / MODEL_FOLDER).is_dir():
            raise UserError(
                f"{settings.out!r} has the {RESULT_FILE} of a finished run, but its model is missing: choose another "
                "--out, or delete the folder to train again."
            )
        say(f"{settings.out} is finished: nothing to do (choose another --out to train again).")
        return load_result(out / RESULT_FILE)
    if is_first():
        last = last_whole_checkpoint(out)
        where = "from the start: there is no intact checkpoint" if last is None else f"from step {step_of(last)}"
        say(f"resuming the run in {settings.out} {where}")
    return None


def _check_not_read(out: Path, data: str | Sequence[str] | None) -> None:
    """A run inside the folder of its training text would read its own files the next time."""
    for one in [data] if isinstance(data, str) else data or []:
        if Path(one).is_dir() and out.resolve().is_relative_to(Path(one).resolve()):
            raise UserError(
                f"--out is {str(out)!r}, which is inside the training data {one!r}: the run's own files would be read "
                "as text the next time. Choose another --out."
            )


def _check_loses_nothing(out: Path, written: Sequence[str]) -> None:
    """Raise UserError if a new run would overwrite files of something else, or hide a model in the folder."""
    if (out / CONFIG_FILE).is_file():
        raise UserError(f"{str(out)!r} contains a model ({CONFIG_FILE}): choose another --out.")
    found = [path for pattern in written for path in sorted(out.glob(pattern)) if not _is_empty_folder(path)]
    if found:
        names = ", ".join(f"{path.name}/" if path.is_dir() else path.name for path in found[:3])
        raise UserError(
            f"{str(out)!r} has {names} but no {RUN_FILE}, so a run would overwrite files that are not its own: choose "
            "another --out, or move them."
        )


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def begin_run(settings: TrainerSettings) -> None:
    """Write the run's record, before anything else, and the entry of this start; removes leftovers of killed starts."""
    out = Path(settings.out)
    if not is_first():
        return
    settings.write()
    for leftover in (path for pattern in LEFTOVERS for path in out.glob(pattern)):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    first_step = max(map(step_of, checkpoints(out)), default=0)  # `earlier_result` has removed those that are damaged
    earlier = load_result(out / LEGS_FILE)["legs"] if first_step and (out / LEGS_FILE).is_file() else []
    leg = {"first_step": first_step, **made_with(provenance({}))}
    write_whole(out / LEGS_FILE, (json.dumps({"legs": [*earlier, leg]}, indent=1) + "\n").encode())


def complete_run(
    kind: str,
    settings: TrainerSettings,
    model: Any,
    tokenizer: Any,
    say: Say,
    started: float,
    fit: Callable[[], TrainOutcome],
    scores: Callable[[], dict[str, Any]] = dict,
    **facts: Any,
) -> dict[str, Any]:
    """Train with `fit`; if the run is finished, add `scores` and save model and result. Returns the result."""
    facts["memory"] = memory_cost(model)._asdict()  # before processes divide the weights among themselves
    with full_disk_explained(settings.out):
        outcome = fit()
        if not outcome.finished:
            say(f"stopped and saved after {outcome.steps:,} steps: run the same command to resume")
            return run_result(kind, settings, model, outcome, started, **facts)
        result = run_result(kind, settings, model, outcome, started, **facts, **scores())
        save_run(model, tokenizer, result, Path(settings.out))
    return result


def made_with(origin: Mapping[str, Any]) -> dict[str, str]:
    """The code, device and libraries of a run, from its provenance: numbers may depend on them."""
    git, machine, libraries = origin["git"], origin["machine"], origin["libraries"]
    return {
        "commit": (git["commit"] or "unknown") + (", changed" if git["dirty"] else ""),
        "device": machine["gpu"] or machine["cpu"] or "unknown",
        "torch": libraries["torch"] or "unknown",
        "transformers": libraries["transformers"] or "unknown",
    }


def run_result(
    kind: str, settings: TrainerSettings, model: Any, outcome: TrainOutcome, started: float, **more: Any
) -> dict[str, Any]:
    """The result of a run; `more` are entries of one kind of run."""
    legs = Path(settings.out) / LEGS_FILE
    return {
        "kind": kind,
        "finished": outcome.finished,
        "interrupted": outcome.interrupted,
        "steps": outcome.steps,
        "tokens": outcome.tokens,
        "train_loss": _mean_loss(outcome.history),
        "training_seconds": seconds_trained(outcome.history),
        "parameters": count_parameters(model),
        **more,
        "history": outcome.history,
        "legs": load_result(legs)["legs"] if legs.is_file() else [],
        "provenance": provenance(
            settings.to_dict(), seed=settings.seed, data_checksum=settings.data_checksum, started=started
        ),
    }


def _mean_loss(history: Sequence[Mapping[str, float]]) -> float | None:
    """The mean training loss of all steps; Trainer's own covers the steps since the last resume."""
    total, before = 0.0, 0.0
    for entry in history:
        if "loss" in entry:
            total, before = total + entry["loss"] * (entry["step"] - before), entry["step"]
    return total / before if before else None


def save_run(model: Any, tokenizer: Any, result: Mapping[str, Any], out: Path) -> None:
    """Save the model and then the result, which marks the run as finished."""
    weights = {"state_dict": whole_weights(model)} if is_sharded(model) else {}
    if not is_first():
        return
    model.save_pretrained(out / MODEL_FOLDER, about=_about(result), **weights)
    tokenizer.save_pretrained(out / MODEL_FOLDER)
    save_result(out / RESULT_FILE, result)
    (out / LEGS_FILE).unlink(missing_ok=True)


def _about(result: Mapping[str, Any]) -> dict[str, Any]:
    """For the model card: the name of the data without the folders above it, and the last validation."""
    data = result["provenance"]["config"].get("data")
    scores: dict[str, float] = {}
    for entry in result["history"]:
        numbers = {name: value for name, value in entry.items() if isinstance(value, int | float)}
        scores |= {name: value for name, value in numbers.items() if name in ("eval_loss", "eval_perplexity_per_word")}
    return {"data": Path(data).name if data else None, "results": scores}


def count_parameters(model: Any) -> dict[str, int]:
    """Parameters of the base model and of the memory."""
    added = sum(parameter.numel() for parameter in model.added_parameters().values())
    return {"base": sum(p.numel() for p in model.base.parameters()), "added": added}


def check_vocabulary(model: Any, texts: Iterable[Any], name: str) -> None:
    """Raise `UserError` if a tokenizer gives ids that the model has no embedding for, which would crash a GPU."""
    known = int(model.get_input_embeddings().num_embeddings)
    largest = max(int(np.max(getattr(text, "ids", text))) for text in texts)
    if largest >= known:
        raise UserError(
            f"The tokenizer of {name!r} gives token {largest}, but the model knows only 0 to {known - 1}: "
            "they do not belong together."
        )


def own_gpu() -> torch.device | None:
    """The GPU of this process among those that train together."""
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else None

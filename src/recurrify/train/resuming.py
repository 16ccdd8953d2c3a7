"""A run's folder, when the same command is given again."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recurrify.data.texts import Say
from recurrify.errors import UserError
from recurrify.records import CONFIG_FILE, MODEL_FOLDER, RUN_FILE, RunRecord
from recurrify.results import load_result
from recurrify.train.checkpoints import last_whole_checkpoint

RESULT_FILE = "result.json"
WRITTEN = (RESULT_FILE, MODEL_FOLDER, "training.safetensors", "checkpoint-*")
"""What runs leave in their folder, by kind of run."""


def last_step(out: Path) -> int | None:
    """The step of the newest whole checkpoint of a Trainer."""
    checkpoint = last_whole_checkpoint(out)
    return None if checkpoint is None else int(checkpoint.name.split("-")[1])


def earlier_result(
    settings: RunRecord,
    say: Say,
    saved_step: Callable[[Path], int | None] = last_step,
    also_written: Sequence[str] = (),
) -> dict[str, Any] | None:
    """The result that a finished run left in the folder; None where there is something to do.

    A folder that holds a run with other settings, whose model is gone, or that has somebody else's results, is refused.
    `saved_step` says from where a run that was stopped goes on, `also_written` names what only such runs leave.
    """
    out = Path(settings.out)
    if out.exists() and not out.is_dir():
        raise UserError(f"{settings.out!r} is a file, not a folder: choose another --out.")
    earlier = type(settings).read(out)
    if earlier is None:
        _must_not_be_read(out, getattr(settings, "data", None))
        _must_lose_nothing(out, (*WRITTEN, *also_written))
        return None
    settings.check_same_run(earlier)
    if (out / RESULT_FILE).is_file():
        if not (out / MODEL_FOLDER).is_dir():
            raise UserError(
                f"{settings.out!r} has a finished run's {RESULT_FILE}, but its model is gone: choose another --out, or "
                "delete the folder to train anew."
            )
        say(f"{settings.out} is finished already: nothing to do (choose another --out to train anew).")
        return load_result(out / RESULT_FILE)
    step = saved_step(out)
    where = "from the start: no whole checkpoint is there" if step is None else f"from step {step}"
    say(f"going on with the run in {settings.out}, {where}")
    return None


def _must_not_be_read(out: Path, data: str | Sequence[str] | None) -> None:
    """Where texts are read from a folder, a run in it would read its own files the next time."""
    for one in [data] if isinstance(data, str) else data or []:
        if Path(one).is_dir() and out.resolve().is_relative_to(Path(one).resolve()):
            raise UserError(
                f"--out is {str(out)!r}, which lies in {one!r}, where texts are read from: the run's own files would "
                "be read as texts the next time. Choose an --out elsewhere."
            )


def _must_lose_nothing(out: Path, written: Sequence[str]) -> None:
    """Without a record of its own a run begins: what has the names that it writes, or goes on from, is not its own.
    And where a model is the folder's, by the folder's name that one would be loaded, not the run's."""
    if (out / CONFIG_FILE).is_file():
        raise UserError(
            f"{str(out)!r} has a config.json, as models have, which a run's would hide behind: choose another --out."
        )
    found = [path for pattern in written for path in sorted(out.glob(pattern)) if not _is_empty_folder(path)]
    if found:
        names = ", ".join(f"{path.name}/" if path.is_dir() else path.name for path in found[:3])
        raise UserError(
            f"{str(out)!r} has {names} but no {RUN_FILE}, so that a run here would overwrite what is not its own: "
            "choose another --out, or move that away."
        )


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())

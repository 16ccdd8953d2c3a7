"""Units of work, one after another or several side by side on one device."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from recurrify.data.texts import Say, read_text
from recurrify.errors import UserError
from recurrify.modeling.loading import model_tokenizer
from recurrify.side_by_side import Outcome, Task, run_side_by_side
from recurrify_papers.experiments.unit import Unit, do_unit

__all__ = ["Outcome", "do_units"]


def do_units(units: Sequence[Unit], jobs: int, say: Say, deadline: float | None = None) -> Outcome:
    """Do what is not finished. `deadline` is a `time.monotonic()` at which to stop, saved.

    With one job everything runs in this process. With more, each unit gets a process of its own and a log file, and
    one that fails does not stop the others.
    """
    waiting = [unit for unit in units if not unit.is_finished()]
    if len(units) > len(waiting):
        say(f"{len(units) - len(waiting)} of {len(units)} runs are finished already")
    if not waiting:
        return Outcome(True, [])
    if deadline is not None and time.monotonic() > deadline:
        return Outcome(False, [])  # before anything is tokenized for nothing
    if jobs > 1:
        tokenize_once(waiting, say)
        say(f"{len(waiting)} runs, {jobs} at a time; each writes a log in {waiting[0].folder / 'logs'}")
        return run_side_by_side([_task(unit) for unit in waiting], jobs, say, deadline)
    for unit in waiting:
        if deadline is not None and time.monotonic() > deadline:
            return Outcome(False, [])
        if not do_unit(_until(unit, deadline), say):
            return Outcome(False, [])
    return Outcome(True, [])


def tokenize_once(units: Sequence[Unit], say: Say) -> None:
    """Make the tokens with every core, and once: runs side by side would each make them with one core."""
    wanted: dict[tuple[str, str, str], set[str]] = {}
    for unit in units:
        settings = unit.settings
        splits = wanted.setdefault((settings.model, settings.data, settings.text_field), {"train", "valid"})
        splits.update(score.split for score in unit.wanted)
    for (model, data, text_field), splits in wanted.items():
        with suppress(UserError):  # its runs will tell
            tokenizer = model_tokenizer(model)
            for split in sorted(splits):
                read_text(data, split, tokenizer, say, text_field)


def _task(unit: Unit) -> Task:
    arguments = ("-c", "from recurrify_papers.experiments.unit import main; main()", str(unit.write()))
    return Task(unit.name, arguments, unit.folder / "logs" / f"{unit.name}.log")


def _until(unit: Unit, deadline: float | None) -> Unit:
    """The unit with what is left of the time as its own limit."""
    if deadline is None:
        return unit
    minutes = max((deadline - time.monotonic()) / 60, 0.01)
    return replace(unit, settings=replace(unit.settings, max_minutes=minutes))

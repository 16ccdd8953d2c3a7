"""A run's folder, when the same command is given again."""

from pathlib import Path
from typing import Any

from recurrify.errors import UserError
from recurrify.jobs.texts import Say
from recurrify.records import RunRecord
from recurrify.results import load_result
from recurrify.train import last_whole_checkpoint

RESULT_FILE = "result.json"


def earlier_result(settings: RunRecord, say: Say) -> dict[str, Any] | None:
    """The result that a finished run left in the folder; None where there is something to do.

    A folder that holds a run with other settings is refused.
    """
    out = Path(settings.out)
    if out.exists() and not out.is_dir():
        raise UserError(f"{settings.out!r} is a file, not a folder: choose another --out.")
    earlier = type(settings).read(out)
    if earlier is None:
        return None
    settings.check_same_run(earlier)
    if (out / RESULT_FILE).is_file():
        say(f"{settings.out} is finished already: nothing to do (choose another --out to train anew).")
        return load_result(out / RESULT_FILE)
    checkpoint = last_whole_checkpoint(out)
    where = f"from step {checkpoint.name.split('-')[1]}" if checkpoint else "from the start: nothing was saved yet"
    say(f"going on with the run in {settings.out}, {where}")
    return None

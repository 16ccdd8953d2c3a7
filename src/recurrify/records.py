"""Settings that are written beside a run's weights, so that the same command goes on with it and no other does."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from recurrify.errors import UserError
from recurrify.results import write_whole

RUN_FILE, MODEL_FOLDER, CONFIG_FILE = "run.json", "model", "config.json"
LOCK_FILE = ".training.lock"
"""In the folder of a run while it is trained."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Everything a run is made of, in one flat record."""

    may_differ: ClassVar[tuple[str, ...]] = ("max_minutes", "out")
    """What does not belong to the run itself: how long an invocation may take, and where."""

    out: str
    """Folder of this run."""
    max_minutes: float | None = None
    """Stop this invocation after so many minutes, saved and ready to be resumed."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        unknown = sorted(set(values) - {entry.name for entry in fields(cls)})
        if unknown:
            raise UserError(
                f"Unknown settings {', '.join(unknown[:3])}: another kind of run, or a newer recurrify, wrote them."
            )
        return cls(**values)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], **changed: Any) -> Self:
        """A command's options that are called like a setting are that setting, unless `changed` says otherwise."""
        known = {entry.name for entry in fields(cls)}
        return cls(**{name: value for name, value in options.items() if name in known} | changed)

    def write(self) -> None:
        write_whole(Path(self.out) / RUN_FILE, (json.dumps(self.to_dict(), indent=2) + "\n").encode())

    @classmethod
    def read(cls, folder: str | Path) -> Self | None:
        path = Path(folder) / RUN_FILE
        if not path.is_file():
            return None
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{str(path)!r} cannot be read ({error}): name another folder.") from error

    def check_same_run(self, earlier: Self) -> None:
        """A folder belongs to one run."""
        mine, theirs = self.to_dict(), earlier.to_dict()
        different = [
            told
            for name in mine
            if name not in self.may_differ
            for told in _differences(name, theirs[name], mine[name])
        ]
        if different:
            raise UserError(
                f"{self.out!r} holds a run with other settings ({'; '.join(different)}): "
                "repeat its settings to go on with it, or choose another output folder."
            )


def check_takes_results(out: Path) -> None:
    """Before long work: whether its results can be put into `out`; in a run's folder they would replace its own."""
    above = next(one for one in (out, *out.absolute().parents) if one.exists())
    if not above.is_dir():
        raise UserError(f"`out` is {str(out)!r}, but {str(above)!r} is a file, not a folder: give another folder.")
    if (out / RUN_FILE).is_file():
        raise UserError(f"`out` is {str(out)!r}, a run's folder, which has its own results: give another one.")


def check_has_model(folder: str | Path) -> None:
    """Refuse the folder of a run that was stopped before it had a model."""
    if (Path(folder) / RUN_FILE).is_file() and not (Path(folder) / MODEL_FOLDER / CONFIG_FILE).is_file():
        saved = max(Path(folder).glob("checkpoint-*/config.json"), key=lambda path: path.stat().st_mtime, default=None)
        meanwhile = "" if saved is None else f", or take what was saved last, {str(saved.parent)!r}"
        raise UserError(
            f"The run in {str(folder)!r} is not finished, and has no model yet: give its command again to go on with "
            f"it{meanwhile}."
        )


def _differences(name: str, there: Any, now: Any) -> list[str]:
    """In words; of settings inside a setting only those that differ."""
    if there == now:
        return []
    if isinstance(there, dict) and isinstance(now, dict):
        names = dict.fromkeys([*there, *now])
        return [told for inner in names for told in _differences(f"{name}.{inner}", there.get(inner), now.get(inner))]
    return [f"{name}={there!r} there, {now!r} now"]

"""The record of a run (`run.json`): its settings, written before training, so that the same command resumes it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from recurrify.errors import UserError
from recurrify.results import check_takes_files, read_given, write_whole
from recurrify.run_lock import LOCK_FILE
from recurrify.settings import check_settings, setting, with_present_names

__all__ = [
    "CONFIG_FILE",
    "LOCK_FILE",
    "MODEL_FOLDER",
    "RESULT_FILE",
    "RUN_FILE",
    "RunRecord",
    "check_has_model",
    "check_takes_results",
]

RUN_FILE, RESULT_FILE, MODEL_FOLDER, CONFIG_FILE = "run.json", "result.json", "model", "config.json"
BUDGET = "Budget and validation"


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The settings that every run has."""

    may_differ: ClassVar[tuple[str, ...]] = ("max_minutes", "out")
    """Settings that may change when a run is resumed."""
    input_names: ClassVar[Mapping[str, str]] = {
        "data_checksum": "the training data",
        "held_out_checksum": "the validation or test data",
    }
    """Checksums among the settings, and the inputs that they belong to."""

    out: str = setting(panel="Input and output", basic=True)
    """Folder of the run; run the same command again to resume."""
    max_minutes: float | None = setting(None, positive=True, panel=BUDGET, basic=True)
    """Save and stop after this many minutes."""

    def __post_init__(self) -> None:
        check_settings(self)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Settings as `to_dict` writes them; raises `UserError` for unknown ones."""
        values = with_present_names(cls, values)
        unknown = sorted(set(values) - {entry.name for entry in fields(cls)})
        if unknown:
            raise UserError(
                f"unknown settings {', '.join(unknown[:3])}: another command or another version of recurrify wrote them"
            )
        return cls(**values)

    def write(self) -> None:
        """Write `run.json` into the run's folder."""
        write_whole(Path(self.out) / RUN_FILE, (json.dumps(self.to_dict(), indent=2) + "\n").encode())

    @classmethod
    def read(cls, folder: str | Path) -> Self | None:
        """The record in a folder; None if there is none. Raises `UserError` if it cannot be read."""
        path = Path(folder) / RUN_FILE
        if not path.exists():
            return None
        try:
            return cls.from_dict(json.loads(read_given(path)))
        except (UserError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"{str(path)!r} cannot be read ({error}): choose another folder.") from error

    def check_same_run(self, earlier: Self) -> None:
        """Raise `UserError` unless `earlier` has the same settings, apart from those that may differ."""
        mine, theirs = self.to_dict(), earlier.to_dict()
        names = [name for name in mine if name not in self.may_differ and mine[name] != theirs[name]]
        changed = [self.input_names[name] for name in names if name in self.input_names]
        if changed and len(changed) == len(names):
            raise UserError(
                f"{' and '.join(changed)} changed since the run in {self.out!r} began: restore the input, or choose "
                "another output folder."
            )
        different = [part for name in names for part in _differences(name, theirs[name], mine[name])]
        if different:
            raise UserError(
                f"{self.out!r} contains a run with other settings ({'; '.join(different)}): use the same settings to "
                "resume it, or choose another output folder."
            )


def check_takes_results(out: Path) -> None:
    """Before long work: raise `UserError` if results cannot be written to the folder `out`."""
    check_takes_files(out)
    if (out / RUN_FILE).is_file():
        raise UserError(f"`out` is {str(out)!r}, the folder of a training run: choose another folder.")


def check_has_model(folder: str | Path) -> None:
    """Raise `UserError` for the folder of a run that stopped before it saved a model."""
    if (Path(folder) / RUN_FILE).is_file() and not (Path(folder) / MODEL_FOLDER / CONFIG_FILE).is_file():
        saved = max(Path(folder).glob("checkpoint-*/config.json"), key=lambda path: path.stat().st_mtime, default=None)
        meanwhile = "" if saved is None else f", or use its last checkpoint, {str(saved.parent)!r}"
        raise UserError(
            f"The run in {str(folder)!r} is not finished and has no model yet: run its command again to resume it"
            f"{meanwhile}."
        )


def _differences(name: str, there: Any, now: Any) -> list[str]:
    """How two values of a setting differ; of nested settings, those that differ, or the mechanism alone if it does."""
    if there == now:
        return []
    if isinstance(there, dict) and isinstance(now, dict):
        names = dict.fromkeys([*there, *now])
        if there.get("mechanism") != now.get("mechanism"):  # the others belong to it
            names = {"mechanism": None}
        return [part for inner in names for part in _differences(f"{name}.{inner}", there.get(inner), now.get(inner))]
    return [f"{name}={there!r} there, {now!r} now"]

"""Settings that are written beside a run's weights, so that the same command goes on with it and no other does."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from recurrify.errors import UserError
from recurrify.results import write_whole
from recurrify.train.settings import RUN_FILE


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Everything a run is made of, in one flat record."""

    out: str
    """Folder of this run."""
    max_minutes: float | None = None
    """Stop this invocation after so many minutes, saved and ready to be resumed."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def write(self) -> None:
        write_whole(Path(self.out) / RUN_FILE, (json.dumps(self.to_dict(), indent=2) + "\n").encode())

    @classmethod
    def read(cls, folder: str | Path) -> Self | None:
        path = Path(folder) / RUN_FILE
        if not path.is_file():
            return None
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            unknown = sorted(set(values) - {entry.name for entry in fields(cls)})
            if unknown:
                raise ValueError(f"settings of another kind of run: {', '.join(unknown[:3])}")
            return cls(**values)
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{str(path)!r} cannot be read ({error}): choose another output folder.") from error

    def check_same_run(self, earlier: Self) -> None:
        """A folder belongs to one run: only how long an invocation may take can differ."""
        mine, theirs = self.to_dict(), earlier.to_dict()
        different = [
            f"{name}={theirs[name]!r} there, {mine[name]!r} now"
            for name in mine
            if name not in ("max_minutes", "out") and mine[name] != theirs[name]
        ]
        if different:
            raise UserError(
                f"{self.out!r} holds a run with other settings ({'; '.join(different)}): "
                "repeat its settings to go on with it, or choose another output folder."
            )

"""The checkpoints of a run: their checksums, and which of them are intact."""

import itertools
import json
import re
import shutil
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from recurrify.results import write_whole

CHECKSUMS_FILE, STATE_FILE = "checksums.json", "trainer_state.json"
BLOCK = 2**22


def finish_checkpoint(checkpoint: Path) -> None:
    """Write the CRC-32 of each file of a checkpoint, which marks it as finished; then remove those that it replaces.

    CRC-32 finds accidents and takes 0.4 s per GiB where SHA-256 takes 3 s or more.
    """
    files = (file for file in sorted(checkpoint.iterdir()) if file.name != CHECKSUMS_FILE)
    _write_checksums(checkpoint, {file.name: [_crc32(file)] for file in files})
    _remove_old_checkpoints(checkpoint.parent)


def replace_state(checkpoint: Path, new: Path) -> None:
    """Move another state into a finished checkpoint. Until it is there, both pass the check: a kill damages nothing."""
    sums = _read_checksums(checkpoint)
    _write_checksums(checkpoint, {**sums, STATE_FILE: [*sums[STATE_FILE], _crc32(new)]})
    new.replace(checkpoint / STATE_FILE)


def _write_checksums(checkpoint: Path, sums: Mapping[str, Sequence[int | None]]) -> None:
    write_whole(checkpoint / CHECKSUMS_FILE, (json.dumps(sums, indent=1) + "\n").encode())


def _read_checksums(checkpoint: Path) -> dict[str, list[int]]:
    """The valid checksums of each file."""
    return dict(json.loads((checkpoint / CHECKSUMS_FILE).read_text(encoding="utf-8")))


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, from the oldest to the newest."""
    found = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step of a checkpoint."""
    return int(checkpoint.name.split("-")[1])


def last_whole_checkpoint(folder: Path) -> Path | None:
    """The newest intact `checkpoint-N` whose best checkpoint is intact too.

    Newer ones that a full disk or a kill left unfinished are removed. Finished ones that were damaged since are renamed
    to `damaged-checkpoint-N`.
    """
    for path in reversed(checkpoints(folder)):
        if not (path / CHECKSUMS_FILE).exists():
            shutil.rmtree(path, ignore_errors=True)
            continue
        damaged = _damaged_file(path)
        if damaged is None:
            best = best_checkpoint(path)
            damaged = None if best == path else _damaged_file(best)
            if damaged is None:
                return path
            damaged = f"{best.name}/{damaged}, which it needs,"
        _set_aside(path, damaged)
    return None


def best_checkpoint(path: Path) -> Path:
    """The checkpoint with the lowest validation loss up to this one; itself if the run chooses none."""
    state = path / STATE_FILE
    step = json.loads(state.read_text(encoding="utf-8")).get("best_global_step") if state.exists() else None
    return path.with_name(f"checkpoint-{step}") if step else path


def _remove_old_checkpoints(folder: Path) -> None:
    """Keep the newest one and the best one, or, if these are the same, the two newest."""
    *older, newest = checkpoints(folder)
    best = best_checkpoint(newest)
    kept = older[-1:] if best == newest else [best]
    for path in older:
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _damaged_file(path: Path) -> str | None:
    """The first file of a checkpoint that is damaged or missing."""
    try:
        sums = _read_checksums(path)
        return next((name for name, valid in sums.items() if _crc32(path / name) not in valid), None)
    except (OSError, ValueError, TypeError):
        return CHECKSUMS_FILE


def _crc32(file: Path) -> int | None:
    """None if the file cannot be read."""
    found = 0
    try:
        with file.open("rb") as content:
            while part := content.read(BLOCK):
                found = zlib.crc32(part, found)
    except OSError:
        return None
    return found


def _set_aside(path: Path, damaged: str) -> None:
    names = (f"damaged-{path.name}{'' if number == 1 else f'-{number}'}" for number in itertools.count(1))
    place = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    path.rename(place)
    print(f"warning: {damaged} of {path} is damaged or missing; the checkpoint was renamed to {place}", file=sys.stderr)

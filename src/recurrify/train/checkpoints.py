"""Which saved steps of a run are whole."""

import itertools
import json
import re
import shutil
import sys
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open


def last_whole_checkpoint(folder: Path) -> Path | None:
    """The newest complete `checkpoint-N`. Newer ones that a full disk or a kill left unfinished are removed; what was
    finished and has been damaged since is set aside."""
    found = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    for path in sorted(found, key=lambda path: int(path.name.split("-")[1]), reverse=True):
        if not _is_finished(path):
            shutil.rmtree(path, ignore_errors=True)
            continue
        damaged = _damaged_file(path)
        if damaged is None:
            return path
        _set_aside(path, damaged)
    return None


def _is_finished(path: Path) -> bool:
    """The state is written last, so that it says that the rest was written too."""
    try:
        return "global_step" in json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def _damaged_file(path: Path) -> str | None:
    weights = list(path.glob("model*.safetensors"))
    for file in weights or [path / "model.safetensors"]:
        try:
            with safe_open(file, framework="pt") as tensors:
                tensors.keys()
        except (OSError, SafetensorError):
            return file.name
    random = list(path.glob("rng_state*.pth")) or [path / "rng_state.pth"]
    for file in (path / "optimizer.pt", path / "scheduler.pt", *random):
        if not zipfile.is_zipfile(file):  # torch saves zip archives, whose index stands at the end
            return file.name
    return None


def _set_aside(path: Path, damaged: str) -> None:
    names = (f"damaged-{path.name}{'' if number == 1 else f'-{number}'}" for number in itertools.count(1))
    place = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    path.rename(place)
    print(f"note: {damaged} of {path} is damaged or gone: what is left of it stays in {place}", file=sys.stderr)

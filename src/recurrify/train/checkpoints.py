"""Which saved steps of a run are whole."""

import json
import re
import shutil
from pathlib import Path

from safetensors import SafetensorError, safe_open


def last_whole_checkpoint(folder: Path) -> Path | None:
    """The newest complete `checkpoint-N`; newer ones that a full disk or a kill left unfinished are removed."""
    found = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    for path in sorted(found, key=lambda path: int(path.name.split("-")[1]), reverse=True):
        if _is_whole(path):
            return path
        shutil.rmtree(path, ignore_errors=True)
    return None


def _is_whole(path: Path) -> bool:
    try:
        # Written last, so its presence says that the rest was written too.
        json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
        with safe_open(path / "model.safetensors", framework="pt") as weights:
            return bool(weights.keys()) and (path / "optimizer.pt").is_file()
    except (OSError, ValueError, SafetensorError):
        return False

"""Which saved steps of a run are whole."""

import json
import re
import shutil
import zipfile
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
        state = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
        weights = list(path.glob("model*.safetensors"))
        for file in weights:
            with safe_open(file, framework="pt") as tensors:
                tensors.keys()
        saved = [path / "optimizer.pt", path / "scheduler.pt", *path.glob("rng_state*.pth")]
        # torch saves zip archives, whose index stands at the end.
        return "global_step" in state and bool(weights) and len(saved) > 2 and all(map(zipfile.is_zipfile, saved))
    except (OSError, ValueError, TypeError, SafetensorError):
        return False

"""A run that trains a language model from scratch."""

from pathlib import Path
from typing import Any

from recurrify_papers.finetune import OUT, finished
from recurrify_papers.runner import Say, minutes_left
from recurrify_papers.scratch.run import train_scratch
from recurrify_papers.scratch.settings import ScratchSettings


def train_run(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any] | None:
    """Train as the settings say."""
    own = ScratchSettings(out=str(folder / OUT), max_minutes=minutes_left(), **settings)
    return finished(train_scratch(own, lambda text: say(f"{folder.name}: {text}")))

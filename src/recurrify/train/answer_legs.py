"""Old name of `recurrify.train.run_folder`; to be removed."""

from collections.abc import Mapping
from typing import Any

from recurrify.train.run_folder import made_with as made_with


def seconds_of(result: Mapping[str, Any]) -> float | None:
    """How long a finished run took."""
    found: float | None = result.get("training_seconds", result.get("seconds"))
    return found

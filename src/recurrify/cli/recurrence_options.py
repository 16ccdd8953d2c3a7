"""What a command's options say of recurrence."""

from typing import Any

from recurrify.cli import options
from recurrify.errors import UserError


def asked_recurrence(given: dict[str, Any]) -> dict[str, Any]:
    """Only what was asked for: a model that is recurrent already keeps the rest as it is."""
    names = ["window", "overlap", "bptt_windows", "checkpoint"]
    asked: dict[str, Any] = {}
    if given["mechanism"] != "none":
        names += ["pooling", "slots", "standardize", "tail", "pooled_slots", "neutral_start"]
        asked["insert_layer"] = _layer("--insert-layer", given["insert_layer"], "all")
        asked["until_layer"] = _layer("--until-layer", given["until_layer"], "top")
    asked |= {name: given[name] for name in names}
    asked = {name: value for name, value in asked.items() if value is not None}
    return {"mechanism": given["mechanism"]} | asked | options.mechanism_settings(given["settings"])


def _layer(option: str, text: str | None, word: str) -> Any:
    if text is None or text == word:
        return text
    try:
        return int(text)
    except ValueError as error:
        raise UserError(f"`{option}` must be a layer's number from 1 on, or {word}: got {text!r}.") from error

"""Where a model of this name is: a folder, a .gguf file, a model that recurrify ships, or the hub.

Nothing here imports torch, so that commands report a mistyped name at once.
"""

import json
import os
from pathlib import Path
from typing import Any

from recurrify.errors import UserError, did_you_mean
from recurrify.hub_access import hub_is_reachable, is_downloaded
from recurrify.named import MODELS, named_source
from recurrify.records import check_has_model

__all__ = ["check_model", "resolve_name", "shipped_names", "similar_model"]

SHIPPED = Path(__file__).parent / "shipped"
PREFIX = "shipped:"
NEEDS_NO_NETWORK = "the small decoder shipped:base needs no network"
TAKEN_BY = {
    "recurrify language model": "`recurrify scratch evaluate` and `recurrify scratch report` take its run",
    "recurrify forecaster": "`recurrify forecast evaluate` and `recurrify forecast predict` take its run",
}
"""Formats in config.json that are not transformers' own, and the commands that read them."""


def shipped_names() -> list[str]:
    return sorted(PREFIX + path.parent.name for path in SHIPPED.glob("*/config.json"))


def resolve_name(name: str) -> tuple[str, dict[str, Any]]:
    """What transformers loads for this name, and how; downloads a model of `named.MODELS` that is not there yet.

    Raises:
        UserError: There is no such model, or what is there is no model of transformers.
    """
    return _located(named_source(name))


def check_model(name: str) -> None:
    """Raise `UserError` if there is no such model, without loading or downloading anything."""
    if name not in MODELS or Path(name).exists():
        _located(name)


def _located(name: str) -> tuple[str, dict[str, Any]]:
    if name.startswith(PREFIX):
        path = SHIPPED / name.removeprefix(PREFIX)
        if not (path / "config.json").is_file():
            raise UserError(
                f"There is no model {name!r}{similar_model(name)}: shipped are {', '.join(shipped_names())}."
            )
        return str(path), {}
    path = Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UserError(f"There is no file {name!r}: check the path.")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_file():
        whole = f"its folder, {str(path.parent)!r}" if (path.parent / "config.json").is_file() else "a model's folder"
        raise UserError(f"{name!r} is a file, not a model: give {whole}, a .gguf file, or a model's name on the hub.")
    if path.is_dir():
        _must_be_regular(path)
    if path.is_dir() and not (path / "config.json").is_file():
        if (path / "model" / "config.json").is_file():  # the folder of a training run
            _must_be_regular(path / "model")
            _must_be_pretrained(name, path / "model")
            return str(path / "model"), {}
        check_has_model(name)
        raise UserError(f"The folder {name!r} holds no model: it has no config.json.")
    _must_be_pretrained(name, path)
    if not path.exists() and _looks_like_a_path(name):
        raise UserError(f"There is no folder {name!r}: check the path, or give a model's name on the hub.")
    if not path.exists():
        # The constant is also set where the hub did not answer.
        offline = os.environ.get("HF_HUB_OFFLINE")
        way_out = "unset HF_HUB_OFFLINE to ask the hub" if offline else "check the network connection"
        if not hub_is_reachable() and not is_downloaded(name):
            raise UserError(
                f"There is no folder {name!r}, and no model of that name was downloaded "
                f"before{similar_model(name)}: check the path, or {way_out}; {NEEDS_NO_NETWORK}."
            )
    return name, {}


def similar_model(name: str) -> str:
    """The model of recurrify that a mistyped name may have meant."""
    return did_you_mean(name, [*MODELS, *shipped_names()], cutoff=0.7)


def _must_be_regular(folder: Path) -> None:
    """Raise UserError for pipes and devices, which transformers would read without end."""
    for file in folder.iterdir():
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise UserError(f"{str(file)!r} is not a regular file: remove it, or give another model.")


def _must_be_pretrained(name: str, folder: Path) -> None:
    """Raise UserError for models of recurrify that are not transformers' own: these have no tokenizer."""
    try:
        described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no folder, or one of which transformers says more
        return
    kind = described.get("format") if isinstance(described, dict) else None
    if isinstance(kind, str) and kind in TAKEN_BY:
        raise UserError(f"{name!r} holds a {kind}, not a pretrained transformer: {TAKEN_BY[kind]}.")


def _looks_like_a_path(name: str) -> bool:
    """Whether it is a path rather than a name on the hub, which is `name` or `owner/name`."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return True
    return Path(Path(name).parts[0]).is_dir()

"""From a name to a model and its tokenizer: the hub, a folder, a .gguf file, or a model that recurrify ships."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from recurrify.errors import UserError
from recurrify.recurrence.heads import RecurrentForCausalLM, add_recurrence
from recurrify.recurrence.mechanism import NoRecurrence, RecurrenceConfig
from recurrify.recurrence.saving import is_recurrent

SHIPPED = Path(__file__).parent.parent / "shipped"
PREFIX = "shipped:"


def shipped_names() -> list[str]:
    return sorted(PREFIX + path.parent.name for path in SHIPPED.glob("*/config.json"))


def load_model(
    name: str, recurrence: RecurrenceConfig | None = None, dtype: torch.dtype | None = None
) -> tuple[RecurrentForCausalLM, Any]:
    """A recurrent (or plain, windowed) causal language model and its tokenizer.

    A base model gets the given `recurrence`; a model that recurrify saved keeps its own, with the given one's
    window settings. Without `recurrence`, a base model runs in plain windows as long as its positions allow.
    """
    source, kwargs = _resolve(name)
    tokenizer = _load_tokenizer(name, source, kwargs)
    model = _load_weights(name, source, dtype, kwargs)
    if isinstance(model, RecurrentForCausalLM):
        if recurrence is not None:
            model = _with_settings(model, recurrence, name)
        return model, tokenizer
    if recurrence is None:
        positions = getattr(model.config, "max_position_embeddings", None) or 1024
        recurrence = NoRecurrence(window=min(positions, 1024))
    return add_recurrence(model, recurrence), tokenizer


def _with_settings(model: RecurrentForCausalLM, recurrence: RecurrenceConfig, name: str) -> RecurrentForCausalLM:
    if recurrence.mechanism != model.recurrence.mechanism:
        if model.mechanism is None:
            return add_recurrence(model.base, recurrence)
        raise UserError(
            f"{name!r} has the mechanism {model.recurrence.mechanism!r} already, not {recurrence.mechanism!r}: "
            "name the same one, or start from its base model."
        )
    model.set_recurrence(
        window=recurrence.window,
        overlap=recurrence.overlap,
        bptt_windows=recurrence.bptt_windows,
        checkpoint=recurrence.checkpoint,
    )
    return model


def _resolve(name: str) -> tuple[str, dict[str, Any]]:
    if name.startswith(PREFIX):
        path = SHIPPED / name.removeprefix(PREFIX)
        if not (path / "config.json").is_file():
            raise UserError(f"There is no model {name!r}: shipped are {', '.join(shipped_names())}.")
        return str(path), {}
    path = Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UserError(f"There is no file {name!r}: check the path.")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir() and not (path / "config.json").is_file():
        if (path / "model" / "config.json").is_file():  # the folder of a training run
            return str(path / "model"), {}
        raise UserError(f"The folder {name!r} holds no model: it has no config.json.")
    return name, {}


def _load_tokenizer(name: str, source: str, kwargs: dict[str, Any]) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **kwargs)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UserError(f"Could not load a tokenizer from {name!r}: {_first_line(error)}") from error
    # Where the files are missing, transformers makes some tokenizers up, with an empty vocabulary.
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise UserError(f"{name!r} has no tokenizer beside the model: save one in the same folder.")
    return tokenizer


def _load_weights(name: str, source: str, dtype: torch.dtype | None, kwargs: dict[str, Any]) -> Any:
    if kwargs:  # GGUF holds no pickles, and no safetensors either
        options = dict(kwargs)
    else:
        options = {"use_safetensors": True}
    try:
        if Path(source).is_dir() and is_recurrent(source):
            return RecurrentForCausalLM.from_pretrained(source, dtype=dtype or torch.float32)
        return AutoModelForCausalLM.from_pretrained(source, dtype=dtype or torch.float32, **options)
    except UserError:
        raise
    except SafetensorError as error:
        raise UserError(f"The weights of {name!r} are damaged ({error}): save or download them again.") from error
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UserError(f"Could not load the model {name!r}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]

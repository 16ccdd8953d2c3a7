"""From a name to a model and its tokenizer: the hub, a folder, a .gguf file, or a model that recurrify ships."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from recurrify.errors import UserError, cut, first_line
from recurrify.families import family_of
from recurrify.hub_access import trusts_remote_code
from recurrify.mechanisms.choose import best_settings, default_window
from recurrify.mechanisms.config import BEST, MechanismConfig, NoRecurrence
from recurrify.mechanisms.registry import recurrence_config
from recurrify.model_names import NEEDS_NO_NETWORK, resolve_name, similar_model
from recurrify.modeling.config import RecurrentConfig
from recurrify.modeling.heads import RecurrentForCausalLM, add_recurrence
from recurrify.modeling.saving import is_recurrent, load_base


def load_model(
    name: str,
    recurrence: MechanismConfig | dict[str, Any] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    device_map: Any = None,
) -> tuple[RecurrentForCausalLM, Any]:
    """A recurrent (or plain, windowed) causal language model and its tokenizer.

    Args:
        name: A name on the hub, a folder, the folder of a run, a .gguf file, or a model that recurrify ships.
        recurrence: A config, or only some settings, such as {"mechanism": "carry", "window": 300};
            {"mechanism": "best"} selects the memory that works best for this kind of base. A base model gets this
            memory. A model that recurrify saved keeps its own mechanism and takes the window settings. None runs a
            base model in plain windows, as long as its positions allow, up to 1,024 tokens.
        dtype: Of the weights; float32 by default.
        device: Of the model; weights are read straight onto it. A new memory may run the base there once, to initialise
            its weights.
        device_map: As in transformers: spreads the base over several devices.

    Raises:
        UserError: The model cannot be loaded, or it was saved with other settings of its mechanism.
    """
    wanted = recurrence.to_dict() if isinstance(recurrence, MechanismConfig) else recurrence
    source, kwargs = resolve_name(name)
    tokenizer = tokenizer_of(name, source, kwargs)
    if not kwargs:
        _must_be_causal(name, source)
    if device_map is None and device is not None and "gguf_file" not in kwargs:
        device_map = {"": device}
    model = _load_weights(name, source, dtype, kwargs, device_map)
    if device_map is None:
        model = model.to(device)
    if isinstance(model, RecurrentForCausalLM):
        return (model if wanted is None else with_settings(model, wanted, name)), tokenizer
    if wanted is None:
        positions = getattr(model.config, "max_position_embeddings", None) or 1024
        return add_recurrence(model, NoRecurrence(window=min(positions, 1024))), tokenizer
    return _with_memory(model, wanted), tokenizer


def _with_memory(base: Any, wanted: dict[str, Any]) -> RecurrentForCausalLM:
    if wanted.get("mechanism") == BEST:
        wanted = best_settings(base.config, wanted)
    if "window" not in wanted:
        wanted = {**wanted, "window": default_window(base.config, wanted)}
    return add_recurrence(base, recurrence_config(wanted))


def model_tokenizer(name: str) -> Any:
    """The tokenizer that `load_model` gives with a model, without the model."""
    return tokenizer_of(name, *resolve_name(name))


def own_memory(name: str) -> dict[str, Any]:
    """The recurrence of a model saved by recurrify; empty for a base model, and for one in plain windows."""
    recurrence = own_recurrence(name)
    return {} if recurrence is None or isinstance(recurrence, NoRecurrence) else recurrence.to_dict()


def own_recurrence(name: str) -> MechanismConfig | None:
    """What a model saved by recurrify was made with; None for a base model."""
    source, _ = resolve_name(name)
    if not (Path(source).is_dir() and is_recurrent(source)):
        return None
    try:
        recurrence: MechanismConfig = RecurrentConfig.from_pretrained(source).recurrence_config
        return recurrence
    except UserError:
        raise
    except Exception as error:  # whatever a stranger's files make transformers raise
        raise UserError(f"Could not load the model {name!r}: {reason(error)}") from error


def with_settings(model: RecurrentForCausalLM, wanted: dict[str, Any], name: str) -> RecurrentForCausalLM:
    own = model.recurrence.to_dict()
    if wanted["mechanism"] != own["mechanism"] and model.mechanism is None:
        return _with_memory(model.base, wanted)
    shared = {field.name for field in fields(MechanismConfig)}
    for setting, value in wanted.items():
        if setting not in shared and value != own.get(setting):
            raise UserError(
                f"{name!r} is recurrent already, with {setting}={own.get(setting)!r}, not {value!r}: "
                "leave that option out to continue with it, or start from a base model."
            )
    model.set_recurrence(**{setting: value for setting, value in wanted.items() if setting in shared})
    return model


def _must_be_causal(name: str, source: str) -> None:
    """Raise UserError, before weights are read, if the config is that of a model that cannot predict the next token."""
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=trusts_remote_code())
    except Exception:  # whatever a stranger's files make transformers raise: loading the weights says it better
        return
    kinds = config.architectures or []
    if isinstance(config, RecurrentConfig):
        if kinds and RecurrentForCausalLM.__name__ not in kinds:
            raise UserError(
                f"{name!r} is a {kinds[0]}, but a causal language model is needed here: give another, or this one to "
                f"the command that made it (classify, qa), or to recurrify.{kinds[0]}.from_pretrained."
            )
        return
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(
            f"{name!r} is a {config.model_type.upper()} (an encoder with a decoder), to which recurrify adds no "
            "recurrence: give a causal language model, or use it with transformers as it is."
        )
    try:
        family = family_of(config)
    except UserError:
        return
    if not family.causal:
        masked = any(kind.endswith("ForMaskedLM") for kind in kinds)
        raise UserError(
            f"{name!r} is a {family.name} ({'a masked language model' if masked else 'an encoder'}), but a causal "
            "language model is needed here: give one, or train this one with `recurrify qa train` or `recurrify "
            "classify train`, or call recurrify.add_recurrence in Python."
        )


TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "spiece*", "merges.txt", "*.gguf")


def tokenizer_of(name: str, source: str, kwargs: dict[str, Any]) -> Any:
    folder = Path(source)
    if folder.is_dir() and not any(next(folder.glob(files), None) for files in TOKENIZER_FILES):
        raise _no_tokenizer(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trusts_remote_code(), **kwargs)
    except Exception as error:  # whatever a stranger's files make transformers raise
        meant = "" if folder.exists() else similar_model(name)
        message = f"Could not load a tokenizer from {name!r}{meant}: {reason(error)}"
        if isinstance(error.__cause__, LocalEntryNotFoundError):
            message = f"{message.rstrip('.')}; {NEEDS_NO_NETWORK}."
        raise UserError(message) from error
    # Where the files are missing, transformers makes some tokenizers up, with an empty vocabulary.
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise _no_tokenizer(name)
    return tokenizer


def _no_tokenizer(name: str) -> UserError:
    return UserError(
        f"{name!r} has no tokenizer in its folder: save one there with tokenizer.save_pretrained({name!r})."
    )


def _load_weights(
    name: str, source: str, dtype: torch.dtype | None, kwargs: dict[str, Any], device_map: Any = None
) -> Any:
    placed = {} if device_map is None else {"device_map": device_map}
    try:
        if Path(source).is_dir() and is_recurrent(source):
            model = RecurrentForCausalLM.from_pretrained(source, dtype=dtype or torch.float32, **placed)
        else:
            trust = trusts_remote_code()
            kwargs = {"dtype": dtype or torch.float32, "trust_remote_code": trust, **placed, **kwargs}
            model = load_base(AutoModelForCausalLM, source, **kwargs)
    except UserError:
        raise
    except Exception as error:  # whatever a stranger's files make transformers raise
        raise UserError(f"Could not load the model {name!r}: {reason(error)}") from error
    for parameter_name, parameter in model.named_parameters():
        if not parameter.is_meta and not bool(torch.isfinite(parameter).all()):
            raise UserError(
                f"The weights of {name!r} hold numbers that are not finite, in {parameter_name!r}: "
                "training went wrong or the file is damaged; take an earlier one."
            )
    return model


def reason(error: Exception) -> str:
    """Why a model or tokenizer could not be loaded, in a line."""
    text = str(error)
    if "contains custom code" in text:
        return "it contains Python code, which is not run: if you trust it, use `recurrify --trust-remote-code …`."
    if isinstance(error, OSError | ValueError | ImportError) and first_line(error):
        return cut(first_line(error), 300)
    # Errors meant for programmers say little without their type.
    return f"{type(error).__name__} ({cut(' '.join(text.split()), 300)})"

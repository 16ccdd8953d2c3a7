"""Every language model that is trained from scratch, by name: built from settings, saved to a folder, read back.

A setting is a field of the model's configuration; those of its recurrence are written `rsa.counts`, `rsa.dilations`, ….
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from recurrify.attention.config import RSAConfig
from recurrify.errors import UserError
from recurrify.results import write_whole
from recurrify_papers.models.block_recurrent import BlockRecurrentConfig, BlockRecurrentTransformer
from recurrify_papers.models.recurrent import RecurrentLanguageConfig, RecurrentLanguageModel
from recurrify_papers.models.transformer import Transformer, TransformerConfig
from recurrify_papers.models.transformer_xl import TransformerXL, TransformerXLConfig

CONFIG_FILE, WEIGHTS_FILE, FORMAT = "config.json", "model.safetensors", "recurrify language model"
RSA_PREFIX = "rsa."
ENWIK8_RECURRENCE: Mapping[str, Any] = {"counts": (0, 0, 0, 0, 2, 2), "dilations": (3, 6, 9, 12)}
"""The published heads for enwik8, which any other text gets too, but for text8."""
TEXT8_DILATIONS = (6, 6, 12, 12)
"""Where the published heads for text8 differ."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One name of `ARCHITECTURES`."""

    config: type[Any]
    """The class of its configuration."""
    model: type[nn.Module]
    """The class that takes it."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields that make it what it is, and no settings."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults where the configuration's own are meant for another name."""
    recurrence: Mapping[str, Any] | None = None
    """The defaults of its `RSAConfig`, less the heads, which are the model's; None: no recurrence."""

    def settings(self) -> dict[str, Any]:
        """Name and type of everything that can be set."""
        hints = get_type_hints(self.config)
        known = {name: hints[name] for name in self.config.__dataclass_fields__}
        for name in ("vocabulary", "rsa", *self.fixed):
            known.pop(name, None)
        if self.recurrence is None:
            known.pop("carry_recurrence", None)
        else:
            hints = get_type_hints(RSAConfig)
            names = [name for name in RSAConfig.__dataclass_fields__ if name != "heads"]
            known |= {RSA_PREFIX + name: hints[name] for name in names}
        return known


ARCHITECTURES: dict[str, Architecture] = {
    "xl": Architecture(config=TransformerXLConfig, model=TransformerXL),
    "rsa-xl": Architecture(config=TransformerXLConfig, model=TransformerXL, recurrence=ENWIK8_RECURRENCE),
    "brt": Architecture(config=BlockRecurrentConfig, model=BlockRecurrentTransformer),
    "rsa-brt": Architecture(config=BlockRecurrentConfig, model=BlockRecurrentTransformer, recurrence=ENWIK8_RECURRENCE),
    "lstm": Architecture(config=RecurrentLanguageConfig, model=RecurrentLanguageModel, fixed={"cell": "lstm"}),
    # Three matrices where an LSTM has four: wider, to be as large.
    "gru": Architecture(
        config=RecurrentLanguageConfig, model=RecurrentLanguageModel, fixed={"cell": "gru"}, defaults={"width": 1624}
    ),
    "transformer": Architecture(config=TransformerConfig, model=Transformer),
    "rsa": Architecture(config=TransformerConfig, model=Transformer, recurrence=ENWIK8_RECURRENCE),
}


def language_model(arch: str, vocabulary: int, **settings: Any) -> nn.Module:
    """A model with random weights; what is not set is as published."""
    architecture = _architecture(arch)
    known = architecture.settings()
    _check_type("vocabulary", vocabulary, int)
    for name, value in settings.items():
        _check_type(name, value, _setting_type(arch, name, known))
    values: dict[str, Any] = {**architecture.defaults, **architecture.fixed, "vocabulary": vocabulary}
    values |= {name: value for name, value in settings.items() if not name.startswith(RSA_PREFIX)}
    if architecture.recurrence is not None:
        heads = values.get("heads", architecture.config.heads)
        chosen = {name.removeprefix(RSA_PREFIX): settings[name] for name in settings if name.startswith(RSA_PREFIX)}
        values["rsa"] = _recurrence(architecture.recurrence, heads, chosen)
    return architecture.model(architecture.config(**values))


def _recurrence(defaults: Mapping[str, Any], heads: int, chosen: Mapping[str, Any]) -> RSAConfig:
    """The default dilations are those of the default heads: they say nothing of as many others."""
    values = {**defaults, **chosen}
    counts, known = values["counts"], len(defaults["dilations"])
    dilated = _dilated_heads(counts)
    if "dilations" not in chosen and dilated == 0:
        values["dilations"] = ()
    elif "dilations" not in chosen and dilated is not None and dilated != known:
        example = ",".join(str(3 * number) for number in range(1, dilated + 1))
        raise UserError(
            f"`rsa.counts` asks for {_several(dilated, 'dilated head')} ({_listed(counts)}: the last three numbers), "
            f"and the default dilations are for {known}: give one for each with --set rsa.dilations={example}."
        )
    if "counts" not in chosen and 1 <= heads < sum(counts):
        example = "0,1,1,0,0,0" if heads > 1 else "1,0,0,0,0,0"
        raise UserError(
            f"`heads` is {heads}, but the default `rsa.counts` ({_listed(counts)}) gives {sum(counts)} heads a "
            f"recurrence: give others with --set rsa.counts={example}, or more heads."
        )
    return RSAConfig(heads=heads, **values)


def _dilated_heads(counts: Sequence[int]) -> int | None:
    """None where the counts are none, of which `RSAConfig` says more."""
    return sum(counts[3:]) if len(counts) == 6 and min(counts) >= 0 else None


def _several(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _listed(values: Iterable[int]) -> str:
    return ",".join(map(str, values))


def text8_settings(arch: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is published for text8 where it is not the default; nothing for an architecture without recurrence, nor
    where the settings have another number of dilated heads."""
    known = ARCHITECTURES.get(arch)
    if known is None or known.recurrence is None:
        return {}
    counts = settings.get(f"{RSA_PREFIX}counts", known.recurrence["counts"])
    same = _dilated_heads(counts) == len(TEXT8_DILATIONS)
    return {f"{RSA_PREFIX}dilations": TEXT8_DILATIONS} if same else {}


def parse_settings(arch: str, assignments: Iterable[str]) -> dict[str, Any]:
    """From `name=value`, as on a command line, to what `language_model` takes; `none` is None, lists have commas."""
    known = _architecture(arch).settings()
    settings: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = (part.strip() for part in assignment.partition("="))
        if not equals:
            raise UserError(f"a setting must look like name=value: got {assignment!r}.")
        if name in settings:
            raise UserError(f"`{name}` must be set once only: got {assignment!r} after {name}={settings[name]}.")
        settings[name] = _read(name, text, _setting_type(arch, name, known))
    return settings


def count_parameters(model: nn.Module) -> int:
    """All trained numbers, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def architecture_name(model: nn.Module) -> str:
    """The name under which `ARCHITECTURES` has this model."""
    config: Any = getattr(model, "config", None)
    for name, architecture in ARCHITECTURES.items():
        if (
            isinstance(model, architecture.model)
            and (getattr(config, "rsa", None) is None) == (architecture.recurrence is None)
            and all(getattr(config, key) == value for key, value in architecture.fixed.items())
        ):
            return name
    raise UserError(f"`model` must be a language model of this package: got {type(model).__name__}.")


def save_language_model(model: nn.Module, folder: str | Path) -> None:
    """`model.safetensors` and `config.json`; the configuration is written last: a folder that has one is whole."""
    name = architecture_name(model)
    config: Any = model.config
    described = {"format": FORMAT, "architecture": name, "config": asdict(config)}
    weights = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    write_whole(Path(folder) / WEIGHTS_FILE, save(weights))
    write_whole(Path(folder) / CONFIG_FILE, (json.dumps(described, indent=2) + "\n").encode())


def is_language_model(folder: str | Path) -> bool:
    """Whether `save_language_model` wrote the folder, as far as its configuration says."""
    try:
        described = json.loads((Path(folder) / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(described, dict) and described.get("format") == FORMAT


def load_language_model(folder: str | Path) -> nn.Module:
    """What `save_language_model` wrote, on the CPU and with dropout off."""
    folder = Path(folder)
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"There is no language model in {str(folder)!r}: it has no {CONFIG_FILE}.")
    try:
        described = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        if described.get("format") != FORMAT:
            raise ValueError("it describes something else")
        architecture, values = _architecture(described["architecture"]), dict(described["config"])
        if values.get("rsa") is not None:
            values["rsa"] = RSAConfig(**values["rsa"])
        model = architecture.model(architecture.config(**values))
        model.load_state_dict(load_file(folder / WEIGHTS_FILE))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise UserError(f"The language model in {str(folder)!r} cannot be loaded: {error}.") from error
    return model.eval()


def _architecture(name: str) -> Architecture:
    if name not in ARCHITECTURES:
        raise UserError(f"`arch` must be one of {', '.join(ARCHITECTURES)}: got {name!r}.")
    return ARCHITECTURES[name]


def _setting_type(arch: str, name: str, known: Mapping[str, Any]) -> Any:
    if name in known:
        return known[name]
    if name.startswith(RSA_PREFIX) and ARCHITECTURES[arch].recurrence is None:
        raise UserError(f"{arch} has no recurrence to set `{name}` of: take one of {', '.join(_recurrent_names())}.")
    raise UserError(f"{arch} has no setting `{name}`: it has {', '.join(known)}.")


def _recurrent_names() -> list[str]:
    return [name for name, architecture in ARCHITECTURES.items() if architecture.recurrence is not None]


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types that a field may have, each alone."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _words(hint: Any) -> str:
    """A type as a sentence has it."""
    parts: list[str] = []
    for one in _alternatives(hint):
        if get_origin(one) is Literal:
            parts.extend(str(choice) for choice in get_args(one))
        elif get_origin(one) is tuple:
            parts.append("whole numbers with commas between")
        else:
            names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", NoneType: "none"}
            parts.append(names[one])
    return " or ".join(parts)


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple | list) and all(_fits(one, int) for one in value)
    if hint in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, int | float) if hint is float else isinstance(value, hint)


def _check_type(name: str, value: Any, hint: Any) -> None:
    if not any(_fits(value, one) for one in _alternatives(hint)):
        raise UserError(f"`{name}` must be {_words(hint)}: got {value!r}.")


def _read(name: str, text: str, hint: Any) -> Any:
    for one in _alternatives(hint):
        try:
            return _read_as(text, one)
        except ValueError:
            continue
    raise UserError(f"`{name}` must be {_words(hint)}: got {text!r}.")


def _read_as(text: str, hint: Any) -> Any:
    if hint is NoneType:
        if text.lower() == "none":
            return None
    elif hint is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
    elif get_origin(hint) is Literal:
        if text in get_args(hint):
            return text
    elif get_origin(hint) is tuple:
        return tuple(int(part) for part in text.split(",")) if text else ()
    else:
        return hint(text)
    raise ValueError(text)

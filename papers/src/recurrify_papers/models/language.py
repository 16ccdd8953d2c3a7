"""Every language model by name: built from settings, saved to a folder, loaded again.

A setting is a field of the model's configuration. Settings of its recurrence are `rsa.counts`, `rsa.dilations`, ….
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from recurrify import RSAConfig, UserError
from recurrify.results import write_whole
from recurrify.settings import check_choice, converted
from recurrify_papers.models.block_recurrent import BlockRecurrentConfig, BlockRecurrentTransformer
from recurrify_papers.models.recurrent import RecurrentLanguageConfig, RecurrentLanguageModel
from recurrify_papers.models.transformer import Transformer, TransformerConfig
from recurrify_papers.models.transformer_xl import TransformerXL, TransformerXLConfig

CONFIG_FILE, WEIGHTS_FILE, FORMAT = "config.json", "model.safetensors", "recurrify language model"
RSA_PREFIX = "rsa."
ENWIK8_RECURRENCE: Mapping[str, Any] = {"counts": (0, 0, 0, 0, 2, 2), "dilations": (3, 6, 9, 12)}
"""The heads published for enwik8, the default for every text."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One name of `ARCHITECTURES`."""

    config: type[Any]
    """The class of its configuration."""
    model: type[nn.Module]
    """The class that takes it."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields that define the architecture and cannot be set."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults that differ from those of the configuration."""
    recurrence: Mapping[str, Any] | None = None
    """Defaults of its `RSAConfig`, without the heads; None: no recurrence."""

    def settings(self) -> dict[str, Any]:
        """Name and type of everything that can be set."""
        hidden = {"vocabulary", "rsa", *self.fixed}
        hints = get_type_hints(self.config)
        known = {entry.name: hints[entry.name] for entry in fields(self.config) if entry.name not in hidden}
        if self.recurrence is not None:
            hints = get_type_hints(RSAConfig)
            known |= {
                RSA_PREFIX + entry.name: hints[entry.name] for entry in fields(RSAConfig) if entry.name != "heads"
            }
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
    """A model with random weights.

    Args:
        arch: A name of `ARCHITECTURES`.
        vocabulary: Number of symbols.
        **settings: Settings that differ from the published ones, such as `layers=2` or `**{"rsa.dilations": (2, 4)}`;
            also as text, as in `checked_settings`.

    Raises:
        UserError: For unknown names and invalid values.
    """
    architecture, settings = _architecture(arch), checked_settings(arch, settings)
    values: dict[str, Any] = {**architecture.defaults, **architecture.fixed}
    values["vocabulary"] = converted("vocabulary", int, vocabulary)
    values |= {name: value for name, value in settings.items() if not name.startswith(RSA_PREFIX)}
    if architecture.recurrence is not None:
        heads = values.get("heads", architecture.config.heads)
        chosen = {name.removeprefix(RSA_PREFIX): settings[name] for name in settings if name.startswith(RSA_PREFIX)}
        values["rsa"] = _recurrence(architecture.recurrence, heads, chosen)
    return architecture.model(architecture.config(**values))


def _recurrence(defaults: Mapping[str, Any], heads: int, chosen: Mapping[str, Any]) -> RSAConfig:
    """The default dilations belong to the default counts."""
    values = {**defaults, **chosen}
    counts, known = values["counts"], len(defaults["dilations"])
    dilated = sum(counts[3:])
    listed = ",".join(map(str, counts))
    if "dilations" not in chosen and dilated == 0:
        values["dilations"] = ()
    elif "dilations" not in chosen and len(counts) == 6 and dilated != known:
        example = ",".join(str(3 * number) for number in range(1, dilated + 1))
        raise UserError(
            f"`rsa.counts` has {dilated} dilated heads (the last three numbers of {listed}), but the default dilations "
            f"are for {known}: set one for each with --set rsa.dilations={example}."
        )
    if "counts" not in chosen and 1 <= heads < sum(counts):
        example = "0,1,1,0,0,0" if heads > 1 else "1,0,0,0,0,0"
        raise UserError(
            f"`heads` is {heads}, but the default `rsa.counts` ({listed}) gives {sum(counts)} heads a recurrence: use "
            f"--set rsa.counts={example}, or more heads."
        )
    return RSAConfig(heads=heads, **values)


def checked_settings(arch: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an architecture in the types of their fields.

    Values may be text, as on a command line: `none` is None, and numbers of a list have commas between them.

    Raises:
        UserError: For unknown names and values of another type.
    """
    return {name: _converted(name, _setting_type(arch, name), value) for name, value in given.items()}


def _converted(name: str, hint: Any, value: Any) -> Any:
    if get_origin(hint) is Literal:
        check_choice(name, value, *get_args(hint))
        return value
    if get_origin(hint) is tuple:
        try:
            parts = str(value).split(",") if isinstance(value, str | int) else value
            return tuple(int(str(part)) for part in parts if part != "")
        except (TypeError, ValueError) as error:
            raise UserError(f"`{name}` must be whole numbers with commas between them: got {value!r}.") from error
    return converted(name, hint, None if value == "none" else value)


def count_parameters(model: nn.Module) -> int:
    """All trained numbers, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def remembered_positions(model: nn.Module) -> int | None:
    """How many positions before a segment its model sees; None where the configuration has no such number."""
    config: Any = model.config
    lengths = [getattr(config, name, None) for name in ("memory_length", "window")]
    lengths.append(getattr(getattr(config, "rsa", None), "truncation", None))
    return max((length for length in lengths if length is not None), default=None)


def architecture_name(model: nn.Module) -> str:
    """The name of a model in `ARCHITECTURES`."""
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
    """Write `model.safetensors` and then `config.json`: a folder with a configuration is complete."""
    name = architecture_name(model)
    config: Any = model.config
    described = {"format": FORMAT, "architecture": name, "config": asdict(config)}
    weights = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    write_whole(Path(folder) / WEIGHTS_FILE, save(weights))
    write_whole(Path(folder) / CONFIG_FILE, (json.dumps(described, indent=2) + "\n").encode())


def is_language_model(folder: str | Path) -> bool:
    """Whether `save_language_model` wrote the folder, by its configuration."""
    try:
        described = json.loads((Path(folder) / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(described, dict) and described.get("format") == FORMAT


def load_language_model(folder: str | Path) -> nn.Module:
    """The model that `save_language_model` wrote, on the CPU and in evaluation mode."""
    folder = Path(folder)
    if not is_language_model(folder):
        raise UserError(f"There is no language model in {str(folder)!r}: use the folder of `recurrify scratch train`.")
    try:
        described = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        architecture, values = _architecture(described["architecture"]), dict(described["config"])
        if values.get("rsa") is not None:
            values["rsa"] = RSAConfig(**values["rsa"])
        model = architecture.model(architecture.config(**values))
        model.load_state_dict(load_file(folder / WEIGHTS_FILE))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise UserError(f"The language model in {str(folder)!r} cannot be loaded: {error}.") from error
    return model.eval()


def _architecture(name: str) -> Architecture:
    if name not in ARCHITECTURES:
        raise UserError(f"`arch` must be one of {', '.join(ARCHITECTURES)}: got {name!r}.")
    return ARCHITECTURES[name]


def _setting_type(arch: str, name: str) -> Any:
    known = _architecture(arch).settings()
    if name in known:
        return known[name]
    if name.startswith(RSA_PREFIX) and ARCHITECTURES[arch].recurrence is None:
        with_recurrence = [other for other, one in ARCHITECTURES.items() if one.recurrence is not None]
        raise UserError(f"{arch} has no recurrence, so no `{name}`: use one of {', '.join(with_recurrence)}.")
    raise UserError(f"{arch} has no setting `{name}`: it has {', '.join(known)}.")

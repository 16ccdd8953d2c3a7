"""recurrify: give pretrained transformers a memory.

Names are imported when they are first used: torch and transformers take seconds, which `--help` should not.
"""

from contextlib import suppress as _suppress
from importlib import import_module as _import_module
from importlib import metadata as _metadata
from typing import TYPE_CHECKING, Any

from recurrify.after_import import after_import as _after_import
from recurrify.errors import UserError
from recurrify.windows import Window, schedule

if TYPE_CHECKING:
    from recurrify.attention import RSAConfig
    from recurrify.evaluate import memory_cost
    from recurrify.families import Family, register_family
    from recurrify.mechanisms import (
        CacheMechanism,
        CarryConfig,
        CompressConfig,
        KVConfig,
        LookbackConfig,
        Mechanism,
        MechanismConfig,
        MemoryTokensConfig,
        NoRecurrence,
        Past,
        Recorder,
        RSARecurrenceConfig,
        SlotMechanism,
        SummaryConfig,
        TailConfig,
        WindowContext,
        mechanism_names,
        register_mechanism,
    )
    from recurrify.modeling import (
        RecurrenceConfig,
        RecurrentConfig,
        RecurrentForCausalLM,
        RecurrentForMaskedLM,
        RecurrentForQuestionAnswering,
        RecurrentForSequenceClassification,
        RecurrentForTokenClassification,
        RecurrentModel,
        add_recurrence,
        embed,
        load_model,
        register_with_transformers,
    )
    from recurrify.modeling.estimator import TextEmbedder
    from recurrify.state import State

try:
    __version__ = _metadata.version("recurrify")
except _metadata.PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "CacheMechanism",
    "CarryConfig",
    "CompressConfig",
    "Family",
    "KVConfig",
    "LookbackConfig",
    "Mechanism",
    "MechanismConfig",
    "MemoryTokensConfig",
    "NoRecurrence",
    "Past",
    "RSAConfig",
    "RSARecurrenceConfig",
    "Recorder",
    "RecurrenceConfig",
    "RecurrentConfig",
    "RecurrentForCausalLM",
    "RecurrentForMaskedLM",
    "RecurrentForQuestionAnswering",
    "RecurrentForSequenceClassification",
    "RecurrentForTokenClassification",
    "RecurrentModel",
    "SlotMechanism",
    "State",
    "SummaryConfig",
    "TailConfig",
    "TextEmbedder",
    "UserError",
    "Window",
    "WindowContext",
    "__version__",
    "add_recurrence",
    "embed",
    "load_model",
    "mechanism_names",
    "memory_cost",
    "register_family",
    "register_mechanism",
    "register_with_transformers",
    "schedule",
]
_HOMES = {
    "RSAConfig": "attention",
    "State": "state",
    "TextEmbedder": "modeling.estimator",
    "memory_cost": "evaluate",
    **dict.fromkeys(("CacheMechanism", "Past", "Recorder", "SlotMechanism", "WindowContext"), "mechanisms"),
}
"""The subpackages of the names that are not in `modeling`."""


def _load(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _import_module(f"{__name__}.{_HOMES.get(name, 'modeling')}")
    value = globals()[name] = getattr(home, name)
    return value


if not TYPE_CHECKING:  # or every name would seem to exist
    __getattr__ = _load


def __dir__() -> list[str]:
    return list(__all__)


def _register_models() -> None:
    with _suppress(ImportError):  # if one of its modules is being imported, and has imported transformers for it
        _import_module(f"{__name__}.modeling")


# After `import recurrify`, transformers' Auto classes find its models, whenever transformers is imported.
_after_import("transformers", _register_models)

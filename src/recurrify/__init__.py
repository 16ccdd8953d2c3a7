"""recurrify: give pretrained transformers a memory.

Names are loaded when they are first used: torch and transformers take seconds, which a page of help should not.
"""

from importlib import import_module as _import_module
from importlib import metadata as _metadata
from typing import TYPE_CHECKING, Any

from recurrify.after_import import after_import as _after_import
from recurrify.errors import UserError
from recurrify.windows import Window, schedule

if TYPE_CHECKING:
    from recurrify.attention import RSAConfig
    from recurrify.recurrence import (
        CarryConfig,
        CompressConfig,
        KVConfig,
        LookbackConfig,
        MemoryTokensConfig,
        NoRecurrence,
        RecurrentConfig,
        RecurrentForCausalLM,
        RecurrentForMaskedLM,
        RecurrentForQuestionAnswering,
        RecurrentForSequenceClassification,
        RecurrentForTokenClassification,
        RecurrentModel,
        RSARecurrenceConfig,
        SummaryConfig,
        TailConfig,
        add_recurrence,
        embed,
        register_with_transformers,
    )
    from recurrify.state import State

try:
    __version__ = _metadata.version("recurrify")
except _metadata.PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "CarryConfig",
    "CompressConfig",
    "KVConfig",
    "LookbackConfig",
    "MemoryTokensConfig",
    "NoRecurrence",
    "RSAConfig",
    "RSARecurrenceConfig",
    "RecurrentConfig",
    "RecurrentForCausalLM",
    "RecurrentForMaskedLM",
    "RecurrentForQuestionAnswering",
    "RecurrentForSequenceClassification",
    "RecurrentForTokenClassification",
    "RecurrentModel",
    "State",
    "SummaryConfig",
    "TailConfig",
    "UserError",
    "Window",
    "__version__",
    "add_recurrence",
    "embed",
    "register_with_transformers",
    "schedule",
]
_SUBMODULES = ("attention", "capturing", "kernels", "recurrence", "state")
"""That can be used without an import of their own."""


def _load(name: str) -> Any:
    if name in _SUBMODULES:
        return _import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = {"State": "state", "RSAConfig": "attention"}.get(name, "recurrence")
    value = globals()[name] = getattr(_import_module(f"{__name__}.{home}"), name)
    return value


if not TYPE_CHECKING:  # or every name would seem to be there
    __getattr__ = _load


def __dir__() -> list[str]:
    """What is for users: not also the modules that were loaded on the way."""
    return list(__all__)


# Who imports recurrify, and then only transformers, finds its models by their Auto classes.
_after_import("transformers", lambda: _import_module("recurrify.recurrence"))

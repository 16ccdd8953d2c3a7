"""recurrify: give pretrained transformers a memory.

Names are imported when they are first used: torch and transformers take seconds, which `--help` should not.
"""

from contextlib import suppress as _suppress
from importlib import import_module as _import_module
from importlib import metadata as _metadata
from typing import TYPE_CHECKING

from recurrify.after_import import after_import as _after_import
from recurrify.errors import UserError
from recurrify.lazy import lazily as _lazily
from recurrify.windows import Window, schedule

if TYPE_CHECKING:
    from recurrify.attention import RSAConfig
    from recurrify.evaluate import memory_cost
    from recurrify.mechanisms import CacheMechanism, CacheRecorder, Past, Recorder, SlotMechanism, WindowContext
    from recurrify.mechanisms.neutral import neutral_inputs
    from recurrify.modeling import (
        CarryConfig,
        CompressConfig,
        Family,
        FarConfig,
        KVConfig,
        LookbackConfig,
        Mechanism,
        MechanismConfig,
        MemoryTokensConfig,
        NoRecurrence,
        RecurrenceConfig,
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
        load_model,
        mechanism_names,
        register_family,
        register_mechanism,
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
    "CacheRecorder",
    "CarryConfig",
    "CompressConfig",
    "Family",
    "FarConfig",
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
    "neutral_inputs",
    "register_family",
    "register_mechanism",
    "register_with_transformers",
    "schedule",
]
if not TYPE_CHECKING:  # or every name would seem to exist
    __getattr__ = _lazily(__name__)


def __dir__() -> list[str]:
    return list(__all__)


def _register_models() -> None:
    with _suppress(ImportError):  # if one of its modules is being imported, and has imported transformers for it
        _import_module(f"{__name__}.modeling")


# After `import recurrify`, transformers' Auto classes find its models, whenever transformers is imported.
_after_import("transformers", _register_models)

"""Models that are trained from scratch, each in a file of its own."""

from recurrify_papers.models.block_recurrent import (
    BlockRecurrentConfig,
    BlockRecurrentOutput,
    BlockRecurrentState,
    BlockRecurrentTransformer,
)
from recurrify_papers.models.language import (
    ARCHITECTURES,
    Architecture,
    architecture_name,
    count_parameters,
    language_model,
    load_language_model,
    parse_settings,
    save_language_model,
)
from recurrify_papers.models.recurrent import (
    RecurrentLanguageConfig,
    RecurrentLanguageModel,
    RecurrentLanguageOutput,
    RecurrentLanguageState,
)
from recurrify_papers.models.transformer import Transformer, TransformerConfig, TransformerOutput, TransformerState
from recurrify_papers.models.transformer_xl import (
    TransformerXL,
    TransformerXLConfig,
    TransformerXLOutput,
    TransformerXLState,
)

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "BlockRecurrentConfig",
    "BlockRecurrentOutput",
    "BlockRecurrentState",
    "BlockRecurrentTransformer",
    "RecurrentLanguageConfig",
    "RecurrentLanguageModel",
    "RecurrentLanguageOutput",
    "RecurrentLanguageState",
    "Transformer",
    "TransformerConfig",
    "TransformerOutput",
    "TransformerState",
    "TransformerXL",
    "TransformerXLConfig",
    "TransformerXLOutput",
    "TransformerXLState",
    "architecture_name",
    "count_parameters",
    "language_model",
    "load_language_model",
    "parse_settings",
    "save_language_model",
]

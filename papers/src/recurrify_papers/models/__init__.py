"""Models that are trained from scratch, one file each."""

from recurrify_papers.models.block_recurrent import (
    BlockRecurrentConfig,
    BlockRecurrentState,
    BlockRecurrentTransformer,
)
from recurrify_papers.models.language import (
    ARCHITECTURES,
    language_model,
    load_language_model,
    save_language_model,
)
from recurrify_papers.models.parts import LanguageOutput
from recurrify_papers.models.recurrent import RecurrentLanguageConfig, RecurrentLanguageModel, RecurrentLanguageState
from recurrify_papers.models.transformer import Transformer, TransformerConfig, TransformerState
from recurrify_papers.models.transformer_xl import TransformerXL, TransformerXLConfig, TransformerXLState

__all__ = [
    "ARCHITECTURES",
    "BlockRecurrentConfig",
    "BlockRecurrentState",
    "BlockRecurrentTransformer",
    "LanguageOutput",
    "RecurrentLanguageConfig",
    "RecurrentLanguageModel",
    "RecurrentLanguageState",
    "Transformer",
    "TransformerConfig",
    "TransformerState",
    "TransformerXL",
    "TransformerXLConfig",
    "TransformerXLState",
    "language_model",
    "load_language_model",
    "save_language_model",
]

"""Recurrent models made of pretrained Hugging Face models."""

from recurrify.families import Family, family_of, register_family
from recurrify.mechanisms import (
    CarryConfig,
    CompressConfig,
    FarConfig,
    KVConfig,
    LookbackConfig,
    Mechanism,
    MechanismConfig,
    MemoryTokensConfig,
    NoRecurrence,
    RSARecurrenceConfig,
    SummaryConfig,
    TailConfig,
    mechanism_names,
    recurrence_config,
    register_mechanism,
)
from recurrify.model_names import shipped_names
from recurrify.modeling.config import RecurrentConfig
from recurrify.modeling.embedding import Embedding, embed
from recurrify.modeling.generation import RecurrentCache
from recurrify.modeling.heads import (
    RecurrentForCausalLM,
    RecurrentForMaskedLM,
    RecurrentModel,
    add_recurrence,
    register_with_transformers,
)
from recurrify.modeling.loading import load_model, model_tokenizer, own_memory, own_recurrence
from recurrify.modeling.model import RecurrentOutput, RecurrentPreTrainedModel
from recurrify.modeling.saving import is_recurrent, load_base
from recurrify.modeling.task_heads import (
    RecurrentAnswerOutput,
    RecurrentForQuestionAnswering,
    RecurrentForSequenceClassification,
    RecurrentForTokenClassification,
)
from recurrify.modeling.task_loading import PAPERS_ANSWERING, load_task_model
from recurrify.speed.head_loss import IGNORE

RecurrenceConfig = MechanismConfig
"""The name of `MechanismConfig` in recurrify 0.1."""
register_with_transformers()

__all__ = [
    "IGNORE",
    "PAPERS_ANSWERING",
    "CarryConfig",
    "CompressConfig",
    "Embedding",
    "Family",
    "FarConfig",
    "KVConfig",
    "LookbackConfig",
    "Mechanism",
    "MechanismConfig",
    "MemoryTokensConfig",
    "NoRecurrence",
    "RSARecurrenceConfig",
    "RecurrenceConfig",
    "RecurrentAnswerOutput",
    "RecurrentCache",
    "RecurrentConfig",
    "RecurrentForCausalLM",
    "RecurrentForMaskedLM",
    "RecurrentForQuestionAnswering",
    "RecurrentForSequenceClassification",
    "RecurrentForTokenClassification",
    "RecurrentModel",
    "RecurrentOutput",
    "RecurrentPreTrainedModel",
    "SummaryConfig",
    "TailConfig",
    "add_recurrence",
    "embed",
    "family_of",
    "is_recurrent",
    "load_base",
    "load_model",
    "load_task_model",
    "mechanism_names",
    "model_tokenizer",
    "own_memory",
    "own_recurrence",
    "recurrence_config",
    "register_family",
    "register_mechanism",
    "register_with_transformers",
    "shipped_names",
]

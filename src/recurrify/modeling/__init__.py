"""Recurrence for pretrained Hugging Face models."""

from recurrify.families import Family, register_family
from recurrify.mechanisms.base import (
    Mechanism,
    NoRecurrence,
    RecurrenceConfig,
    mechanism_names,
    recurrence_config,
    register_mechanism,
)
from recurrify.mechanisms.carry import CarryConfig
from recurrify.mechanisms.compress import CompressConfig
from recurrify.mechanisms.kv import KVConfig
from recurrify.mechanisms.lookback import LookbackConfig
from recurrify.mechanisms.memory_tokens import MemoryTokensConfig
from recurrify.mechanisms.rsa import RSARecurrenceConfig
from recurrify.mechanisms.summary import SummaryConfig
from recurrify.mechanisms.tail import TailConfig
from recurrify.modeling.config import RecurrentConfig
from recurrify.modeling.embedding import Embedding, embed
from recurrify.modeling.heads import (
    RecurrentForCausalLM,
    RecurrentForMaskedLM,
    RecurrentModel,
    add_recurrence,
    register_with_transformers,
)
from recurrify.modeling.loading import load_model, model_tokenizer, own_memory, own_recurrence, shipped_names
from recurrify.modeling.model import RecurrentOutput, RecurrentPreTrainedModel
from recurrify.modeling.saving import is_recurrent
from recurrify.modeling.task_heads import (
    RecurrentAnswerOutput,
    RecurrentForQuestionAnswering,
    RecurrentForSequenceClassification,
    RecurrentForTokenClassification,
)
from recurrify.modeling.task_loading import PAPERS_ANSWERING, load_task_model

register_with_transformers()

__all__ = [
    "PAPERS_ANSWERING",
    "CarryConfig",
    "CompressConfig",
    "Embedding",
    "Family",
    "KVConfig",
    "LookbackConfig",
    "Mechanism",
    "MemoryTokensConfig",
    "NoRecurrence",
    "RSARecurrenceConfig",
    "RecurrenceConfig",
    "RecurrentAnswerOutput",
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
    "is_recurrent",
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

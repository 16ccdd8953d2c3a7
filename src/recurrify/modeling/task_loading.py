"""From a name to a recurrent model for a task, and its tokenizer; a base model gets a new head where it has none."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from recurrify.errors import UserError
from recurrify.families import family_of
from recurrify.hub_access import trusts_remote_code
from recurrify.mechanisms.config import MechanismConfig
from recurrify.mechanisms.registry import recurrence_config
from recurrify.modeling.heads import add_recurrence
from recurrify.modeling.loading import reason, resolve_name, tokenizer_of, with_settings
from recurrify.modeling.model import RecurrentPreTrainedModel
from recurrify.modeling.saving import is_recurrent
from recurrify.modeling.task_heads import RecurrentForQuestionAnswering, TaskModel

PAPERS_ANSWERING: dict[str, Any] = {
    "mechanism": "carry",
    "pooled_layers": "last",
    "hidden_layers": 2,
    "hidden_size": 768,
    "insert_layer": 2,
}
"""The memory of the paper's question answering."""
LONGEST_WINDOW = 512
"""Default window: as many tokens as the paper's encoder has positions."""


def load_task_model(
    name: str,
    kind: type[TaskModel] = RecurrentForQuestionAnswering,
    recurrence: MechanismConfig | dict[str, Any] | None = None,
    trained_head: bool = False,
    **config_changes: Any,
) -> tuple[Any, Any]:
    """A recurrent model of this `kind` and its tokenizer.

    A base model gets `recurrence` (plain windows if None) and, if its weights have none for the task, a new random
    head; with `trained_head` that raises UserError. A model that recurrify saved keeps its own mechanism.
    `config_changes`, such as num_labels=3, go into the base model's config.
    """
    wanted = recurrence.to_dict() if isinstance(recurrence, MechanismConfig) else recurrence
    source, _ = resolve_name(name)
    tokenizer = tokenizer_of(name, source, {})
    if Path(source).is_dir() and is_recurrent(source):
        model = _of_kind(kind, source, name)
        return (model if wanted is None else with_settings(model, wanted, name)), tokenizer
    base = _base_with_head(kind, source, name, trained_head, config_changes)
    wanted = {"mechanism": "none"} if wanted is None else wanted
    if "window" not in wanted:
        positions = family_of(base.config).positions(base.config)
        wanted = {**wanted, "window": min(LONGEST_WINDOW, positions or LONGEST_WINDOW)}
    return add_recurrence(base, recurrence_config(wanted)), tokenizer


def _of_kind(kind: type[TaskModel], source: str, name: str) -> RecurrentPreTrainedModel:
    made = (AutoConfig.from_pretrained(source, trust_remote_code=trusts_remote_code()).architectures or ["?"])[0]
    if made != kind.__name__:
        raise UserError(
            f"{name!r} is a {made}, not a {kind.__name__}: give another model, or the base it was made from."
        )
    return kind.from_pretrained(source)


def _base_with_head(kind: type[TaskModel], source: str, name: str, trained: bool, changes: dict[str, Any]) -> Any:
    try:
        model, info = kind.auto_base.from_pretrained(
            source,
            output_loading_info=True,
            use_safetensors=True,
            dtype=torch.float32,
            trust_remote_code=trusts_remote_code(),
            **changes,
        )
    except Exception as error:  # whatever a stranger's files make transformers raise
        raise UserError(f"Could not load the model {name!r}: {reason(error)}") from error
    missing = sorted(info["missing_keys"])
    backbone = f"{model.base_model_prefix}."
    # A pooler belongs to the head: only classification uses it, and masked language models are saved without.
    lost = [key for key in missing if key.startswith(backbone) and ".pooler." not in key]
    if lost or (trained and missing):
        raise UserError(
            f"The weights of {name!r} lack {len(lost or missing)} tensors, such as {(lost or missing)[0]!r}: "
            + ("download them again." if lost else f"train it first, it has no head for {kind.__name__}.")
        )
    return model

"""The saved form of a recurrent model's make-up: the base model's config and the recurrence's."""

from typing import Any

from transformers import AutoConfig, PretrainedConfig

from recurrify.errors import UserError
from recurrify.mechanisms.config import MechanismConfig
from recurrify.mechanisms.registry import recurrence_config
from recurrify.modeling.card import auto_map

FORMAT = 1
ANY_LENGTH = 2**31 - 1
"""The limit that tools read, which cut texts to it."""
ANSWERED_BY_BASE = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "initializer_range",
    "final_logit_softcapping",
)
"""Sizes of the base that tools look for. Its limits of length are not the recurrent model's."""


class RecurrentConfig(PretrainedConfig):
    """`base_config` is the base model's own config, `recurrence` the mechanism's. Saved, and among the arguments, the
    former is `text_config`; but tools take the length of an attribute of that name for the model's."""

    model_type = "recurrify"
    sub_configs = {"base_config": AutoConfig}  # noqa: RUF012 - the name and form that transformers looks for
    keys_to_ignore_at_inference = ["past_key_values", "state"]  # noqa: RUF012 - likewise

    def __init__(
        self,
        text_config: PretrainedConfig | dict[str, Any] | None = None,
        recurrence: dict[str, Any] | None = None,
        base_name_or_path: str | None = None,
        added_only: bool = False,
        format: int = FORMAT,
        **kwargs: Any,
    ) -> None:
        if format > FORMAT:
            raise UserError(
                f"This model was saved in format {format} by a newer recurrify; this one reads up to format "
                f"{FORMAT}: upgrade with `pip install -U recurrify`."
            )
        if isinstance(text_config, dict):
            text_config = AutoConfig.for_model(**text_config)
        self.base_config: Any = text_config
        self.recurrence = recurrence
        self.base_name_or_path = base_name_or_path
        self.added_only = added_only
        self.format = format
        if text_config is not None:
            for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
                kwargs.setdefault(name, getattr(text_config, name, None))
            kwargs.setdefault("tie_word_embeddings", getattr(text_config, "tie_word_embeddings", True))
        super().__init__(**kwargs)

    def to_dict(self) -> dict[str, Any]:
        """As it is saved. The base's path is left out unless loading needs it."""
        values = super().to_dict()
        base = values.pop("base_config", None)
        if isinstance(base, dict):
            base.pop("_name_or_path", None)
        values["text_config"] = base
        values["auto_map"] = auto_map()
        if not self.added_only:
            values.pop("base_name_or_path", None)
        return values

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Nothing to copy when it is saved: `auto_map` leads to this package."""

    def __getattr__(self, name: str) -> Any:
        base = self.__dict__.get("base_config")
        if name in ANSWERED_BY_BASE and base is not None:
            return getattr(base, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def vocab_size(self) -> int:
        return self.base_config.vocab_size

    @vocab_size.setter
    def vocab_size(self, size: int) -> None:
        self.base_config.vocab_size = size  # as `resize_token_embeddings` does

    @property
    def max_position_embeddings(self) -> int:
        """Recurrent models read texts of any length."""
        return ANY_LENGTH

    @property
    def recurrence_config(self) -> MechanismConfig:
        if self.recurrence is None:
            raise UserError("This config has no `recurrence` part: make the model with recurrify.add_recurrence.")
        return recurrence_config(self.recurrence)

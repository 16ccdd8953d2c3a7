"""The saved form of a recurrent model's make-up: the base model's config and the recurrence's."""

from typing import Any

from transformers import AutoConfig, PretrainedConfig

from recurrify.errors import UserError
from recurrify.mechanisms.config import MechanismConfig
from recurrify.mechanisms.registry import recurrence_config

FORMAT = 1


class RecurrentConfig(PretrainedConfig):
    """`text_config` is the base model's own config, `recurrence` the mechanism's."""

    model_type = "recurrify"
    sub_configs = {"text_config": AutoConfig}  # noqa: RUF012 - the name and form that transformers looks for
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
        self.text_config = text_config
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
        if isinstance(values.get("text_config"), dict):
            values["text_config"].pop("_name_or_path", None)
        if not self.added_only:
            values.pop("base_name_or_path", None)
        return values

    @property
    def recurrence_config(self) -> MechanismConfig:
        if self.recurrence is None:
            raise UserError("This config has no `recurrence` part: make the model with recurrify.add_recurrence.")
        return recurrence_config(self.recurrence)

"""The recurrent models by task, and the function that makes them: `add_recurrence`."""

import copy
from typing import Any

from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

from recurrify.after_import import after_import
from recurrify.attention.config import RSAConfig
from recurrify.errors import UserError
from recurrify.families import check_attention, family_of
from recurrify.mechanisms.choose import best_settings
from recurrify.mechanisms.config import MechanismConfig
from recurrify.mechanisms.registry import ensure_registered, recurrence_config
from recurrify.mechanisms.rsa import RSARecurrenceConfig
from recurrify.modeling.adapters import check_no_adapters, give_peft_defaults
from recurrify.modeling.arguments import STANDARD, check_standard_arguments, takes_standard_arguments
from recurrify.modeling.config import RecurrentConfig
from recurrify.modeling.generation import RecurrentCache, one_step
from recurrify.modeling.model import RecurrentOutput, RecurrentPreTrainedModel
from recurrify.modeling.sampling import needs_no_host, sample
from recurrify.modeling.task_heads import (
    RecurrentForQuestionAnswering,
    RecurrentForSequenceClassification,
    RecurrentForTokenClassification,
    labels_of,
)
from recurrify.state import State
from recurrify.vocabulary import check_ids


class Backbone:
    """A decoder without its head, as TRL calls it to score long texts in parts."""

    _tp_plan = _pp_plan = None  # read by transformers to distribute a model

    def __init__(self, model: "RecurrentForCausalLM") -> None:
        self.model = model

    def __call__(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, use_cache: bool | None = None, **standard: Any
    ) -> RecurrentOutput:
        check_standard_arguments(standard, attention_mask)
        run = self.model.forward_windows(input_ids, attention_mask, None, None, keep_hidden=True)
        assert run.windows.hidden is not None
        return RecurrentOutput(last_hidden_state=run.packed.collect(run.windows.hidden), state=run.windows.state)


class RecurrentForCausalLM(RecurrentPreTrainedModel, GenerationMixin):
    """A decoder that predicts the next token, window after window."""

    auto_base = AutoModelForCausalLM

    def __init__(self, config: RecurrentConfig, base: PreTrainedModel | None = None) -> None:
        super().__init__(config, base)
        if base is not None and base.generation_config is not None:
            self.generation_config = base.generation_config

    @property
    def base_model(self) -> Backbone:
        """The hidden states of a text, without logits."""
        return Backbone(self)

    @takes_standard_arguments
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        state: State | None = None,
        targets: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        return_logits: bool | None = None,
        return_losses: bool = False,
        return_state: bool = True,
        num_items_in_batch: Tensor | int | None = None,
    ) -> RecurrentOutput:
        """Run text of any length, continuing from `state`.

        - `labels` (rows, tokens) are the inputs themselves with -100 where nothing is scored, as everywhere in
          transformers; `targets` instead names the token after each input, also after the last.
        - `state` is what an earlier call returned; None begins a document in every row.
        - `return_logits`: by default logits are returned except in a training step with labels, where those of
          the whole text never exist at once.
        - `return_losses` adds the loss of each prediction.
        - `past_key_values` and `use_cache` serve `generate`: an unfinished window's keys and values.
        """
        labelled = labels is not None or targets is not None
        cache = past_key_values if isinstance(past_key_values, RecurrentCache) else None
        if cache is not None:
            if state is not None:
                raise UserError("Pass either `state` or `past_key_values`, which holds a state of its own, not both.")
            cache.widen(len(input_ids))
            state = cache.state
        if cache is not None and not labelled and self._is_one_step(input_ids, attention_mask):
            check_ids(input_ids, self.get_input_embeddings())
            logits = one_step(self, input_ids, cache, self.head)
            return RecurrentOutput(logits=logits, state=cache.state if return_state else None, past_key_values=cache)
        keeps = self.returns_logits(labelled, return_logits, logits_to_keep)
        shift = targets is None
        run = self.forward_windows(
            input_ids, attention_mask, state, labels if shift else targets, keeps, shift, summed=not return_losses
        )
        output = self.head_output(run, num_items_in_batch, logits_to_keep, return_losses, return_state)
        if use_cache:
            seen = input_ids.shape[1] + (cache.seen if cache is not None else 0)
            output.past_key_values = RecurrentCache(run.windows.state.detach(), seen)
        return output

    def head(self, hidden: Tensor) -> Tensor:
        """The logits of hidden states."""
        return self.family.head(self.base, hidden)

    @staticmethod
    def _is_one_step(input_ids: Tensor, attention_mask: Tensor | None) -> bool:
        return input_ids.shape[1] == 1 and (attention_mask is None or bool(attention_mask[:, -1].all()))

    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *args: Any,
        state: State | None = None,
        **kwargs: Any,
    ) -> Any:
        """transformers' `generate`; with `state` it continues where an earlier call stopped."""
        if state is not None:
            kwargs["past_key_values"] = RecurrentCache(state.detach(), seen=0)
        # A prompt is read in windows anyway.
        kwargs.pop("prefill_chunk_size", None)
        if generation_config is None:
            kwargs["prefill_chunk_size"] = None
        elif generation_config.prefill_chunk_size is not None:
            generation_config = copy.deepcopy(generation_config)
            generation_config.prefill_chunk_size = None
        return super().generate(inputs, generation_config, *args, **kwargs)

    def _sample(
        self,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: BaseStreamer | None = None,
        **others: Any,
    ) -> Any:
        """Called by `generate` for greedy decoding and sampling."""
        request = logits_processor, stopping_criteria, generation_config
        if self.graphs_generation and not synced_gpus and needs_no_host(*request, others):
            return sample(self, input_ids, *request, streamer, others)
        return super()._sample(input_ids, *request, synced_gpus=synced_gpus, streamer=streamer, **others)

    def init_continuous_batching(self, *_: Any, **__: Any) -> Any:
        raise UserError(
            "`generate_batch` (continuous batching) is not supported: it keeps keys and values of whole texts; use "
            "`generate` with a padded batch."
        )

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        use_cache: bool | None = True,
        **others: Any,
    ) -> dict[str, Any]:
        cache = past_key_values if isinstance(past_key_values, RecurrentCache) else None
        return {
            "input_ids": input_ids[:, cache.seen if cache is not None else 0 :],
            "attention_mask": attention_mask,
            "past_key_values": cache,
            "use_cache": use_cache,
            "logits_to_keep": 1,
            **{name: others[name] for name in STANDARD if name in others},
            # `generate` would take an output of this name for a cache of its own and feed it back.
            "return_state": False,
        }


class RecurrentForMaskedLM(RecurrentPreTrainedModel):
    """An encoder that fills in masked tokens, window after window."""

    auto_base = AutoModelForMaskedLM

    @takes_standard_arguments
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        state: State | None = None,
        token_type_ids: Tensor | None = None,
        return_logits: bool | None = None,
        return_losses: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> RecurrentOutput:
        """As in `RecurrentForCausalLM`, with labels in the places of the tokens they name. A state remembers the
        tokens of an open window but not their types: the next call takes them for type 0."""
        keeps = self.returns_logits(labels is not None, return_logits, 0)
        run = self.forward_windows(
            input_ids, attention_mask, state, labels, keeps, token_type_ids=token_type_ids, summed=not return_losses
        )
        return self.head_output(run, num_items_in_batch, 0, return_losses)


class RecurrentModel(RecurrentPreTrainedModel):
    """A bare backbone: contextual embeddings of text of any length."""

    auto_base = AutoModel

    @takes_standard_arguments
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        state: State | None = None,
        token_type_ids: Tensor | None = None,
    ) -> RecurrentOutput:
        packed, _, run = self.forward_windows(
            input_ids, attention_mask, state, None, keep_hidden=True, token_type_ids=token_type_ids
        )
        assert run.hidden is not None
        return RecurrentOutput(last_hidden_state=packed.collect(run.hidden), state=run.state)


_TASKS: tuple[tuple[type[RecurrentPreTrainedModel], Any], ...] = (
    (RecurrentForCausalLM, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    (RecurrentForMaskedLM, MODEL_FOR_MASKED_LM_MAPPING_NAMES),
    (RecurrentForTokenClassification, MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES),
    (RecurrentForSequenceClassification, MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES),
    (RecurrentForQuestionAnswering, MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES),
    (RecurrentModel, MODEL_MAPPING_NAMES),
)
_LABELLED = (RecurrentForTokenClassification, RecurrentForSequenceClassification)
_ENCODERS_ONLY = (RecurrentForMaskedLM, RecurrentForTokenClassification, RecurrentForQuestionAnswering)


def add_recurrence(model: PreTrainedModel, config: MechanismConfig | RSAConfig | None = None) -> Any:
    """Give a pretrained Hugging Face model a memory.

    Args:
        model: The base. Its weights are shared with the result, and trained with it. A model that runs in plain windows
            gives its base.
        config: The mechanism, such as `CarryConfig(window=300)`; None chooses the one that works best for this kind of
            base. An `RSAConfig` is used as an `RSARecurrenceConfig` with default windows.

    Returns:
        A `PreTrainedModel`: `RecurrentForCausalLM` or another class of this module, by the task of `model`.

    Raises:
        UserError: The base is not supported, or the config does not fit it.
    """
    if isinstance(model, RecurrentPreTrainedModel) and model.mechanism is None:
        model = model.base
    if isinstance(model, RecurrentPreTrainedModel):
        raise UserError("This model is recurrent already: pass its base, `model.base`, to add something else.")
    check_no_adapters(model)
    if not isinstance(model, PreTrainedModel):
        raise UserError(f"`model` must be a transformers PreTrainedModel: got {type(model).__name__}.")
    family = family_of(model.config)
    if config is None:
        config = recurrence_config(best_settings(model.config, {}))
    if isinstance(config, RSAConfig):
        config = RSARecurrenceConfig.of_layer(config, model.config)
    if not isinstance(config, MechanismConfig):
        raise UserError(f"`config` must be a config such as CarryConfig(window=300): got {type(config).__name__}.")
    ensure_registered(config)
    check_attention(model.config)
    kind = _task_of(model, family.causal)
    full = RecurrentConfig(
        text_config=model.config,
        recurrence=config.to_dict(),
        base_name_or_path=getattr(model.config, "_name_or_path", None) or None,
        architectures=[kind.__name__],
        dtype=model.dtype,
        # A config chooses attention for all configs inside it: name the base's own, or it would be reset.
        attn_implementation=model.config._attn_implementation,
        **labels_of(model.config) if issubclass(kind, _LABELLED) else {},
    )
    recurrent = kind(full, model)
    quantiser = getattr(model, "hf_quantizer", None)
    if quantiser is not None:  # which knows how to save its weights
        recurrent.hf_quantizer = quantiser
        full.quantization_config = model.config.quantization_config
    for name, part in recurrent.named_children():
        if name != "base":
            part.to(model.device, model.dtype)
    return recurrent.train(model.training)


def _task_of(model: PreTrainedModel, causal: bool) -> type[RecurrentPreTrainedModel]:
    name, model_type = type(model).__name__, model.config.model_type
    for kind, mapping in _TASKS:
        known = mapping.get(model_type)
        if name == known or (isinstance(known, tuple | list) and name in known):
            if (kind is RecurrentForCausalLM and not causal) or (kind in _ENCODERS_ONLY and causal):
                continue
            return kind
    offered = [kind.auto_base.__name__ for kind, _ in _TASKS if kind not in _ENCODERS_ONLY or not causal]
    raise UserError(f"{name} is not supported: supported are {model_type} models by {', '.join(offered)}.")


def register_with_transformers() -> None:
    """Let AutoConfig and the Auto models know recurrent models; runs once recurrify and transformers are imported."""
    AutoConfig.register(RecurrentConfig.model_type, RecurrentConfig, exist_ok=True)
    for kind, names in _TASKS:
        kind.auto_base.register(RecurrentConfig, kind, exist_ok=True)
        # Trainer's label smoothing, pipelines and others look for a class's name among these.
        names[RecurrentConfig.model_type] = kind.__name__
    after_import("peft", give_peft_defaults)

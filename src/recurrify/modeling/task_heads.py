"""Recurrent classifiers, taggers and question answerers.

Tokens come as one stream (rows, tokens) that is cut wherever a window is full, or, for classifiers and question
answerers, as windows made beforehand (examples, windows, tokens) that each begin as their model expects: with [CLS],
or with the question. Shapes: E examples or rows, W windows, T tokens of a window, N tokens, K width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.loss.loss_utils import ForSequenceClassificationLoss
from transformers.utils import ModelOutput

from recurrify.errors import UserError
from recurrify.modeling.arguments import takes_standard_arguments
from recurrify.modeling.config import RecurrentConfig
from recurrify.modeling.model import IGNORE, ForwardRun, RecurrentOutput, RecurrentPreTrainedModel, token_losses
from recurrify.state import State
from recurrify.windows import schedule

ANSWER_KINDS = ("span", "yes", "no")
"""The three classes of `RecurrentAnswerOutput.kind_logits`."""


def labels_of(config: PretrainedConfig) -> dict[str, Any]:
    """What a pipeline reads from the outermost config."""
    return {"id2label": config.id2label, "label2id": config.label2id, "problem_type": config.problem_type}


class TaskModel(RecurrentPreTrainedModel):
    """What the heads that are trained for one task share."""

    def save_pretrained(
        self, save_directory: Any, added_only: bool = False, about: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if added_only:
            raise UserError(
                f"The head of a {type(self).__name__} is trained along, so the added weights alone would not bring it "
                "back: save the whole model."
            )
        super().save_pretrained(save_directory, about=about, **kwargs)


class RecurrentForTokenClassification(TaskModel):
    """An encoder that labels each token of a text of any length."""

    auto_base = AutoModelForTokenClassification

    @takes_standard_arguments
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        state: State | None = None,
        token_type_ids: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> RecurrentOutput:
        """`labels` (rows, tokens) are classes, -100 where nothing is scored; `state` is an earlier call's."""
        run = self.forward_windows(
            input_ids, attention_mask, state, labels, keep_hidden=True, token_type_ids=token_type_ids
        )
        return self.head_output(run, num_items_in_batch, 0, return_losses=False, head=self.family.tagger)


class RecurrentForSequenceClassification(TaskModel):
    """One label for a whole text.

    An encoder classifies by the first token of its windows, each dimension's largest value over all of them, as the
    paper pools for question answering. A decoder classifies by the last token, which has read everything. The base
    model's own head does the rest, so that a text of one window gets the base model's own answer.
    """

    auto_base = AutoModelForSequenceClassification
    accepts_loss_kwargs = False

    @takes_standard_arguments
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        language_weight: float | None = None,
    ) -> RecurrentOutput:
        """`labels` as in transformers: classes, or numbers for regression and several labels at once.

        `input_ids` may also be (examples, windows, tokens), see `flat_windows`. In a stream, the first token of a
        window is any token. `language_weight` adds so many times the loss of predicting each next token,
        which helps a decoder to stay one (GPT, Radford et al. 2018); None takes `config.language_weight`, or 0.
        """
        weight = getattr(self.config, "language_weight", 0.0) if language_weight is None else language_weight
        if weight and not self.family.causal:
            raise UserError(
                f"`language_weight` is {weight}, but a {self.base.config.model_type} model sees the next token while "
                "predicting it: only decoders can learn so; set it to 0."
            )
        if input_ids.ndim == 3:
            input_ids, attention_mask, token_type_ids = flat_windows(self, input_ids, attention_mask, token_type_ids)
        targets = None
        if weight and labels is not None:
            targets = input_ids if attention_mask is None else input_ids.masked_fill(attention_mask == 0, IGNORE)
        run = self.forward_windows(
            input_ids, attention_mask, None, targets, keep_hidden=True, shift=True, token_type_ids=token_type_ids
        )
        logits = self.family.classifier(self.base, self._pooled(run))
        loss = None
        if labels is not None:
            loss = ForSequenceClassificationLoss(labels, logits, self.base.config)
            if run.targets is not None:
                loss = loss + weight * self._language_loss(run)
        return RecurrentOutput(loss=loss, logits=logits)

    def _pooled(self, run: ForwardRun) -> Tensor:
        """(E, K): one vector for each text."""
        hidden = run.windows.hidden
        assert hidden is not None
        lengths = torch.tensor(run.packed.lengths, device=hidden.device)
        if self.family.causal:
            return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]
        spans = schedule(hidden.shape[1], self.recurrence.window, self.recurrence.overlap)
        columns = torch.tensor([span.first for span in spans], device=hidden.device)
        return largest(hidden[:, columns], columns[None] < lengths[:, None])

    def _language_loss(self, run: ForwardRun) -> Tensor:
        assert run.windows.hidden is not None
        targets = run.targets
        assert targets is not None

        def total(hidden: Tensor) -> Tensor:
            return token_losses(self.family.language(self.base, hidden), targets).sum()

        # The scores of a whole vocabulary at every token are not kept but computed again.
        summed = checkpoint(total, run.windows.hidden, use_reentrant=False)
        return summed / (targets != IGNORE).sum().clamp(min=1)


@dataclass
class RecurrentAnswerOutput(ModelOutput):
    """The scores of a question answerer for each example."""

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    """(E, W, T), or (E, T) for one window: each token's score as an answer's first; padding has the lowest number."""
    end_logits: Tensor | None = None
    """Likewise as its last."""
    kind_logits: Tensor | None = None
    """(E, 3): for the answer being a span, "yes" or "no"."""


class RecurrentForQuestionAnswering(TaskModel):
    """Answers out of a context that takes several windows, each of which begins with the question.

    As in the paper's section 5.4: the start and the end of the answer are chosen among the tokens of all windows,
    and whether it is a span, "yes" or "no" by the first token's embedding, max-pooled across windows. The paper's
    memory for it is CarryConfig(pooled_layers="last", hidden_layers=2, hidden_size=768, insert_layer=2); its
    baseline is NoRecurrence.
    """

    auto_base = AutoModelForQuestionAnswering
    accepts_loss_kwargs = False

    def __init__(self, config: RecurrentConfig, base: PreTrainedModel | None = None) -> None:
        super().__init__(config, base)
        self.answer_kind = nn.Linear(self.base.config.hidden_size, len(ANSWER_KINDS))

    @takes_standard_arguments
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        kinds: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        span_mask: Tensor | None = None,
    ) -> RecurrentAnswerOutput:
        """`input_ids` (examples, windows, tokens), or (examples, tokens) where one window holds everything.

        - `span_mask`, of the same shape, marks the tokens that can belong to an answer; None: all real ones.
        - `start_positions`, `end_positions` (examples,) count tokens through all windows, window × tokens + token;
          -100 where the answer is no span. `kinds` (examples,) are indices into span, yes, no.
        """
        shape = input_ids.shape
        if input_ids.ndim == 2:
            input_ids = input_ids[:, None]
            attention_mask = None if attention_mask is None else attention_mask[:, None]
            token_type_ids = None if token_type_ids is None else token_type_ids[:, None]
        ids, mask, types = flat_windows(self, input_ids, attention_mask, token_type_ids)
        packed, _, run = self.forward_windows(ids, mask, None, None, keep_hidden=True, token_type_ids=types)
        assert run.hidden is not None
        hidden = packed.collect(run.hidden)
        firsts = hidden[:, :: shape[-1]]
        real = torch.ones(ids.shape, dtype=torch.bool, device=ids.device) if mask is None else mask.bool()
        kind_logits = self.answer_kind(largest(firsts, real[:, :: shape[-1]]))
        allowed = real if span_mask is None else real & span_mask.flatten(1).bool()
        scores = self.family.spans(self.base, hidden)
        scores = scores.masked_fill(~allowed[..., None], torch.finfo(scores.dtype).min)
        loss = None
        if start_positions is not None or end_positions is not None:
            if start_positions is None or end_positions is None:
                raise UserError("`start_positions` and `end_positions` belong together: give both.")
            loss = _span_loss(scores, start_positions, end_positions)
        if kinds is not None:
            kind_loss = nn.functional.cross_entropy(kind_logits.float(), kinds)
            loss = kind_loss if loss is None else loss + kind_loss
        return RecurrentAnswerOutput(
            loss=loss,
            start_logits=scores[..., 0].view(shape),
            end_logits=scores[..., 1].view(shape),
            kind_logits=kind_logits,
        )


def _span_loss(scores: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """Half the loss of the start and half that of the end, over the examples whose answer is a span."""
    losses = [
        nn.functional.cross_entropy(scores[..., side].float(), where, ignore_index=IGNORE, reduction="sum")
        for side, where in enumerate((starts, ends))
    ]
    # A batch without any span has a loss of 0 and not one over nothing.
    return (losses[0] + losses[1]) / 2 / (starts != IGNORE).sum().clamp(min=1)


def largest(vectors: Tensor, real: Tensor) -> Tensor:
    """(E, K): each dimension's maximum over the real ones of (E, W, K) vectors."""
    lowest = torch.finfo(vectors.dtype).min
    return vectors.masked_fill(~real[..., None], lowest).amax(1)


def flat_windows(
    model: RecurrentPreTrainedModel, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Windows (E, W, T) one after the other, (E, W·T), so that the loop over windows cuts them exactly there.

    That needs every window but an example's last to be full, and padding to come last: then the
    memory is written from the windows' real tokens alone.
    """
    window, overlap = model.recurrence.window, model.recurrence.overlap
    shape = tuple(input_ids.shape)
    if input_ids.ndim != 3 or 0 in shape:
        raise UserError(f"`input_ids` must be (examples, windows, tokens), each at least one: got {shape}.")
    if overlap:
        raise UserError(
            f"Windows that were made beforehand cannot overlap, but the model has overlap={overlap}: "
            "call set_recurrence(overlap=0)."
        )
    if shape[1] > 1 and shape[2] != window:
        raise UserError(
            f"`input_ids` has windows of {shape[2]} tokens, but the model has window={window}: make them so long, "
            "or call set_recurrence."
        )
    if shape[2] > window:
        raise UserError(
            f"`input_ids` has {shape[2]} tokens in its window, but the model has window={window}: "
            "cut it into windows (examples, windows, tokens), or call set_recurrence."
        )
    for name, value in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
        if value is not None and value.shape != input_ids.shape:
            raise UserError(f"`{name}` must have the shape of `input_ids`, {shape}: got {tuple(value.shape)}.")
    mask, types = (None if value is None else value.flatten(1) for value in (attention_mask, token_type_ids))
    if mask is not None and (bool((mask.diff(dim=1) > 0).any()) or not bool(mask[:, 0].all())):
        raise UserError(
            "`attention_mask` has padding in front of real tokens: every window but an example's last must be full, "
            "and padding comes last."
        )
    return input_ids.flatten(1), mask, types

"""A pretrained model that runs over windows of text and carries a memory from each to the next.

Shapes: B rows, N input columns, P packed columns, K width, V vocabulary.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - everyone's name for it
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import Cache, PreTrainedModel
from transformers.utils import ModelOutput

from recurrify.errors import UserError
from recurrify.families import attach, check_fits, family_of, plain_head
from recurrify.mechanisms.config import MechanismConfig, NoRecurrence
from recurrify.modeling.arguments import check_shapes
from recurrify.modeling.config import RecurrentConfig
from recurrify.modeling.rows import shift_left
from recurrify.modeling.saving import SavingMixin, versions_of
from recurrify.modeling.sharding import name_unit
from recurrify.modeling.window_loop import WindowLoop
from recurrify.packing import Packed, open_windows, pack
from recurrify.speed.head_loss import IGNORE, summed_losses
from recurrify.speed.products import product_dtype
from recurrify.state import State
from recurrify.vocabulary import check_ids

FEW_LOGITS = 2**24
"""So many logits, 64 MiB in float32, are computed at once, and up to so many of a text are kept for the backward pass
instead of being recomputed."""


@dataclass
class RecurrentOutput(ModelOutput):
    """The result of a forward pass; parts that were not requested are None."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    token_losses: Tensor | None = None
    """(B, N): the loss of predicting what follows each input, 0 where nothing is scored."""
    last_hidden_state: Tensor | None = None
    state: State | None = None
    past_key_values: Cache | None = None


class WindowsRun(NamedTuple):
    hidden: Tensor | None
    """(B, P, K); None if only losses are requested."""
    losses: Tensor | None
    """(B, P), if there are targets and hidden states are not requested."""
    state: State


class ForwardRun(NamedTuple):
    packed: Packed
    targets: Tensor | None
    """(B, P): what each packed input should predict."""
    windows: WindowsRun


class RecurrentPreTrainedModel(WindowLoop, SavingMixin, PreTrainedModel):
    """Shared by all heads: the base model, the mechanism, and what is made of the windows' results."""

    config_class = RecurrentConfig
    config: RecurrentConfig
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _supports_sdpa = True
    _supports_context_parallel = False
    # Running statistics move in steps too small for half precision.
    _keep_in_fp32_modules_strict = ["running_mean", "running_variance"]  # noqa: RUF012 - transformers' own form
    auto_base: Any = None
    """The transformers Auto class that builds and loads this model's base."""

    def __init__(self, config: RecurrentConfig, base: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        self._comes_trained = base is not None
        if base is None:
            base = self.auto_base.from_config(config.base_config)
        self.base = base
        config.base_config = base.config
        self.family = family_of(base.config)
        self.recurrence: MechanismConfig = config.recurrence_config
        layers = len(self.family.layers_of(base))
        self.mechanism = self.recurrence.build(layers, base.config.hidden_size)
        if self.mechanism is None and not isinstance(self.recurrence, NoRecurrence):
            raise UserError(f"{type(self.recurrence).__name__}.build returned None: return the mechanism's module.")
        if self.mechanism is not None:
            self.mechanism.fit(base)
            if outside := [layer for layer in self.mechanism.slots() if not 0 <= layer < layers]:
                raise UserError(
                    f"The memory {self.recurrence.mechanism!r} uses layer {outside[0] + 1}, but the model has {layers} "
                    f"layers: choose 1 to {layers}."
                )
            if self.mechanism.config != self.recurrence:  # with settings that were left to the base
                self.recurrence = self.mechanism.config
                config.recurrence = self.recurrence.to_dict()
        # Now: sharded parameters cannot be read at all times.
        self.state_size = 0 if self.mechanism is None else self.mechanism.state_size()
        self._check_fits(self.recurrence)
        self.versions_of_base = versions_of(base)
        """Of its weights when the memory was added."""
        self.compiled_window: Any = None
        """Set by `recurrify.speed.compile_windows`: runs the windows that training repeats."""
        self.graphed_steps: Any = None
        """Set by `recurrify.speed.graph_steps`: runs the steps that training repeats."""
        self.compared: Any = None
        """Set by `recurrify.speed.verify.Compared` during a training step: which compiled code may run."""
        self.graphs_generation = False
        """Set by `recurrify.speed.graph_generation`."""
        attach(base)
        can_compute = base.device.type != "meta"
        if self._comes_trained and self.mechanism is not None and not config.added_only and can_compute:
            self.mechanism.start(base)
        self.post_init()
        name_unit(self)

    def init_weights(self) -> None:
        """Called by post_init; a base that was handed in is trained, and tied as its owner wants it."""
        if not self._comes_trained:
            super().init_weights()

    def _init_weights(self, module: torch.nn.Module) -> None:
        """The added modules initialise themselves; transformers' rule for linear layers is not theirs."""

    def _check_fits(self, recurrence: MechanismConfig) -> None:
        slots = first = 0
        if self.mechanism is not None:
            slots = max(self.mechanism.slots().values(), default=0) + self.mechanism.inputs_behind
            first = self.mechanism.first_position
        check_fits(self.base.config, recurrence.window, slots, first)

    def set_recurrence(self, **changes: int | bool | None) -> None:
        """Change `window`, `overlap`, `bptt_windows` or `checkpoint`: how text is cut and how gradients travel. The
        weights stay the same.

        Raises:
            UserError: Another setting is named, or the base or the mechanism cannot work with the values.
        """
        shared = [field.name for field in dataclasses.fields(MechanismConfig)]
        for name in changes:
            if name not in shared:
                raise UserError(f"`{name}` cannot be changed on a finished model: only {', '.join(shared)} can.")
        recurrence = dataclasses.replace(self.recurrence, **changes)  # type: ignore[arg-type]
        self._check_fits(recurrence)
        if self.mechanism is not None:
            self.mechanism.resize(recurrence)
        self.recurrence = recurrence
        self.config.recurrence = recurrence.to_dict()

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict | None = None, **_: Any) -> None:
        """Keep only the memory between windows, and recompute windows in the backward pass."""
        self.set_recurrence(checkpoint=True)

    def gradient_checkpointing_disable(self) -> None:
        self.set_recurrence(checkpoint=False)

    @property
    def is_activation_checkpointing(self) -> bool:
        return self.recurrence.checkpoint

    is_gradient_checkpointing = is_activation_checkpointing  # its name before transformers 5.20

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.base.get_input_embeddings()

    def set_input_embeddings(self, value: torch.nn.Module) -> None:
        self.base.set_input_embeddings(value)

    def get_output_embeddings(self) -> torch.nn.Module | None:
        return self.base.get_output_embeddings()

    def set_output_embeddings(self, value: torch.nn.Module) -> None:
        self.base.set_output_embeddings(value)

    def added_parameters(self) -> dict[str, torch.nn.Parameter]:
        """The mechanism's parameters, by name."""
        return {name: value for name, value in self.named_parameters() if name.startswith("mechanism.")}

    # ---- what is made of windows ---------------------------------------------------------------------

    def run_windows(
        self,
        packed: Packed,
        state: State,
        targets: Tensor | None,
        keep_hidden: bool,
        token_types: Tensor | None = None,
        summed: bool = False,
    ) -> WindowsRun:
        """Run packed rows window by window.

        `targets` (B, P) are what each packed input should predict. Without `keep_hidden` the losses are computed
        inside the windows, and neither hidden states nor logits of the whole text exist at once. `summed`: only the sum
        of the losses matters, and only its gradients.
        """
        outputs: list[Tensor] = []
        summaries: list[Tensor] = []
        memory, live = state.memory, state.live
        # One large product is quicker than many small ones, as long as the logits of all windows are few.
        late = targets is not None and not keep_hidden and self._has_few_logits(packed.tokens)
        wanted = None if keep_hidden or late else targets
        for done in self.each_window(packed, state, wanted, token_types, summed):
            outputs.append(done.output)
            memory, live = done.memory, done.live
            if done.summary is not None:
                whole = bool(done.finished.all())  # then there is nothing to pick, which would wait for the device
                rows = done.summary if whole else done.summary[done.finished.to(done.summary.device)]
                summaries.append(rows.detach())
        if self.training and torch.is_grad_enabled() and summaries:
            self.learn_statistics(summaries)
        joined = torch.cat(outputs, dim=1) if outputs else None
        if late and joined is not None and targets is not None:
            if summed and joined.device.type == "cpu" and self.makes_gradients_at_once(joined):
                joined = self.summed_losses(joined, targets)  # in parts that the cache of a CPU holds
            else:
                joined = token_losses(self.family.head(self.base, joined), targets)
        if joined is not None and self._shares_gradients():
            joined = joined + self._no_part()
        tokens, lengths = open_windows(packed, self.recurrence.window, self.recurrence.overlap)
        return WindowsRun(
            hidden=joined if keep_hidden else None,
            losses=None if keep_hidden else joined,
            state=State(memory, live, tokens, torch.tensor(lengths), self.recurrence.memory_settings),
        )

    @staticmethod
    def _shares_gradients() -> bool:
        return torch.is_grad_enabled() and torch.distributed.is_available() and torch.distributed.is_initialized()

    def _no_part(self) -> Tensor | float:
        """Zero, with a gradient of zero for the memory's weights: processes that share gradients wait for those of all
        weights, but a memory that no window reads has none."""
        return sum(weight.flatten()[:0].sum() for weight in self.added_parameters().values() if weight.requires_grad)

    def learn_statistics(self, summaries: list[Tensor]) -> None:
        """Give the mechanism the summaries of finished windows, unless it is frozen: then it is not saved with what is
        trained, such as adapters."""
        if self.mechanism is not None and any(weight.requires_grad for weight in self.mechanism.parameters()):
            self.mechanism.learn_statistics(summaries)

    def _has_few_logits(self, tokens: Tensor) -> bool:
        if self.recurrence.checkpoint or self.compiled_window is not None:
            return False  # nothing of all windows is to be kept, or windows are compiled with their head
        return tokens.numel() * self.base.config.vocab_size <= FEW_LOGITS

    def _losses(self, hidden: Tensor, targets: Tensor, summed: bool) -> Tensor:
        if summed and self.makes_gradients_at_once(hidden):
            return self.summed_losses(hidden, targets)

        def losses(hidden: Tensor, targets: Tensor) -> Tensor:
            return token_losses(self.family.head(self.base, hidden), targets)

        if self.recurrence.checkpoint or torch.compiler.is_compiling():
            return losses(hidden, targets)
        # The logits of a large vocabulary outweigh everything else that is kept: recompute them instead, part by part.
        run = partial(checkpoint, losses, use_reentrant=False) if torch.is_grad_enabled() else losses
        at_once = max(1, FEW_LOGITS // self.base.config.vocab_size)
        parts = zip(hidden.flatten(0, 1)[None].split(at_once, 1), targets.reshape(1, -1).split(at_once, 1), strict=True)
        return torch.cat([run(*part) for part in parts], dim=1).view_as(targets)

    def makes_gradients_at_once(self, hidden: Tensor) -> bool:
        """Whether the gradients of the head are made with its losses: not in a pass that is run a second time for
        them, not of heads that are more than a linear map, and not in float16, which is too narrow for a sum."""
        learning = self.training and torch.is_grad_enabled() and not self.recurrence.checkpoint
        return learning and self.has_summable_head(product_dtype(hidden))

    def head_weight(self) -> Tensor | None:
        """The weights (V, K) of a head that is only a linear map; None for any other."""
        return plain_head(self.base, self.family)

    def has_summable_head(self, products: torch.dtype) -> bool:
        weight = self.head_weight()
        return weight is not None and torch.float16 not in (products, weight.dtype)

    def summed_losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        weight = self.head_weight()
        assert weight is not None
        return summed_losses(hidden.flatten(0, 1), weight, targets.flatten()).view_as(targets)

    def forward_windows(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        state: State | None,
        labels: Tensor | None,
        keep_hidden: bool,
        shift: bool = False,
        token_type_ids: Tensor | None = None,
        summed: bool = False,
    ) -> ForwardRun:
        """Pack the input behind the state and run it. With `shift`, labels name the inputs themselves and are
        moved to the real token before each; otherwise they are already at the predicting position."""
        check_shapes(input_ids, attention_mask, labels)
        if state is None:
            state = State.fresh(len(input_ids), input_ids.device)
        if not isinstance(state, State):
            raise UserError(f"`state` must be the `state` of an earlier output, or None: got {type(state).__name__}.")
        if state.rows != len(input_ids):
            raise UserError(
                f"`state` has {state.rows} rows, but `input_ids` has {len(input_ids)}: "
                "pick rows with state.select, or start new documents with state=None."
            )
        state.check_readable(self.recurrence.memory_settings, self.state_size)
        if attention_mask is not None:
            attention_mask = attention_mask[:, -input_ids.shape[1] :]
        packed = pack(input_ids, attention_mask, state)
        check_ids(packed.tokens, self.get_input_embeddings())  # without padding, of which any id is right
        targets = None if labels is None else packed.spread(labels, IGNORE)
        if targets is not None and shift:
            targets = shift_left(targets)
            # What an earlier call read is not scored again by this one.
            before = torch.arange(targets.shape[1])[None] < state.lengths[:, None]
            targets = targets.masked_fill(before.to(targets.device), IGNORE)
        types = None if token_type_ids is None else packed.spread(token_type_ids, 0)
        run = partial(self._replay_or_run, packed, state, targets, keep_hidden, types, summed)
        return ForwardRun(packed, targets, run() if self.compared is None else self.compared.run(run))

    def _replay_or_run(
        self,
        packed: Packed,
        state: State,
        targets: Tensor | None,
        keep_hidden: bool,
        types: Tensor | None,
        summed: bool,
    ) -> WindowsRun:
        graphed = self.graphed_steps
        if graphed is not None and targets is not None and not keep_hidden and graphed.takes(packed, state, summed):
            replayed = graphed(packed, state, targets, summed)
            if replayed is not None:
                return WindowsRun(None, *replayed)
        return self.run_windows(packed, state, targets, keep_hidden, types, summed)

    def head_output(
        self,
        forward: ForwardRun,
        num_items_in_batch: Tensor | int | None,
        logits_to_keep: int,
        return_losses: bool,
        return_state: bool = True,
        head: Callable[[Any, Tensor], Tensor] | None = None,
    ) -> RecurrentOutput:
        """Logits where hidden states were kept, and the loss where there are labels; `head` is the family's."""
        packed, targets, run = forward
        logits = losses = loss = None
        if run.hidden is not None:
            logits = (head or self.family.head)(self.base, packed.collect(run.hidden, logits_to_keep))
        if targets is not None:
            aligned = packed.collect(targets, blank=IGNORE)
            if logits is not None:
                losses = token_losses(logits, aligned)
            else:
                assert run.losses is not None
                losses = packed.collect(run.losses, blank=0)
            scored: Tensor | int = (aligned != IGNORE).sum()
            if num_items_in_batch is not None:
                scored = num_items_in_batch
            total = losses.sum()
            loss = total / (scored.to(total.device) if isinstance(scored, Tensor) else scored)
        return RecurrentOutput(
            loss=loss,
            logits=logits,
            token_losses=losses if return_losses else None,
            state=run.state if return_state else None,
        )

    def returns_logits(self, labelled: bool, asked: bool | None, logits_to_keep: int) -> bool:
        """Logits of a whole text are large: a training step gets its loss without them unless it asks."""
        if logits_to_keep and labelled:
            raise UserError("`logits_to_keep` cannot be combined with labels: every labelled token needs its logits.")
        return asked if asked is not None else not (labelled and self.training)


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """(B, N) cross entropies in float32 or better, 0 where the target is to be ignored."""
    logits = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE, reduction="none").view_as(targets)

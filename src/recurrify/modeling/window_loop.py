"""The loop over windows of packed rows: one function runs a window, or neighbouring windows in parallel.

Shapes: B rows, P packed columns, K width.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from recurrify.context import Past, WindowContext, WindowJob
from recurrify.errors import UserError
from recurrify.families import Family, checkpoints_layers, run_backbone
from recurrify.mechanisms.base import Mechanism
from recurrify.mechanisms.config import MechanismConfig
from recurrify.modeling.rows import in_rows, overwrite, past_of, row_mask
from recurrify.modeling.sharding import gather_unit
from recurrify.packing import Packed
from recurrify.state import State
from recurrify.windows import Window, completed, schedule

TRAINED_TIMES = 16
"""Training keeps what all windows compute in any case, so that parallel windows take no more memory."""


class WindowDone(NamedTuple):
    """One window, or several that were read in parallel."""

    output: Tensor
    """Hidden states or losses of the tokens that it scores."""
    memory: Tensor | None
    live: Tensor
    summary: Tensor | None
    finished: Tensor
    """(B,) bool, on the CPU: which rows filled it, or one of them."""
    scored: slice
    """Places of the tokens that it scores."""
    memories: Sequence[Tensor] = ()
    """Behind each window, if all are wanted."""


class WindowLoop:
    """The part of a recurrent model that runs its windows."""

    tokens_at_once: int = 16_384
    """Neighbouring windows are read in parallel up to so many tokens, without a memory and where
    `Mechanism.in_parallel`; 0: one window at a time. Training takes `TRAINED_TIMES` as many."""
    base: Any
    family: Family
    recurrence: MechanismConfig
    mechanism: Mechanism | None
    compiled_window: Any
    graphed_steps: Any
    compared: Any
    device: Any

    def each_window(
        self,
        packed: Packed,
        state: State,
        targets: Tensor | None,
        token_types: Tensor | None = None,
        summed: bool = False,
        compiles: bool = False,
        all_memories: bool = False,
    ) -> Iterator[WindowDone]:
        """Run packed rows and yield the results of each window: its losses or, without targets, its hidden states.
        Statistics are read but not updated. Windows without losses are compiled only with `compiles`: training does
        not repeat them. With `all_memories`, for rows that fill all their windows, results of windows read in parallel
        have the memory behind each."""
        window, overlap = self.recurrence.window, self.recurrence.overlap
        memory, live = state.memory, state.live
        filled = torch.tensor([completed(length, window, overlap) for length in packed.lengths])
        statistics: tuple[Tensor, ...] = ()
        if self.mechanism is not None:
            self._check_cache()
            gather_unit(self.mechanism)
            statistics = self.mechanism.statistics()
        spans = schedule(packed.tokens.shape[1], window, overlap)
        index = 0
        while index < len(spans):
            count = 1 if token_types is not None else self._windows_at_once(packed, spans, index, live)
            read = (filled - index).clamp(0, count)  # how many of these windows each row fills
            finished = read > 0
            limit = self.recurrence.bptt_windows
            if limit is not None and memory is not None and index and index % limit == 0:
                memory = memory.detach()
            first, last = spans[index], spans[index + count - 1]
            scored = slice(first.first, last.stop)
            job = WindowJob(
                tokens=packed.tokens[:, first.start : last.stop],
                targets=None if targets is None else targets[:, scored],
                first=first.first - first.start,
                writes=bool(finished.any()),
                summed=summed,
                mask=None if self.family.causal else row_mask(packed, first),
                token_types=None if token_types is None else token_types[:, first.start : first.stop],
            )
            if count > 1:
                job = in_rows(job, count, window, None if all_memories else (read - 1).clamp(min=0))
            # Rows that have ended before they had a memory are not used.
            has_memory = live if count == 1 else torch.ones_like(live)
            output, written, summary = self._run_job(job, memory, has_memory, statistics, compiles)
            memories: Sequence[Tensor] = ()
            if count > 1:
                output = output.unflatten(0, (-1, count)).flatten(1, 2)[:, : scored.stop - scored.start]
            if count > 1 and all_memories and written is not None:
                memories, written = written.unbind(1), written[:, -1]
            if written is not None:
                memory = overwrite(memory, written, finished)
                live = live | finished  # not in place: a checkpointed window keeps the old one for its second run
            yield WindowDone(output, memory, live, summary, finished, scored, memories)
            index += count

    def _windows_at_once(self, packed: Packed, spans: Sequence[Window], index: int, live: Tensor) -> int:
        """How many windows from this one on are read in parallel."""
        mechanism: Any = self.mechanism
        limit, window = self.recurrence.bptt_windows, self.recurrence.window
        learns = torch.is_grad_enabled()
        first_differs = index == 0 and self.recurrence.overlap > 0  # it scores all of its tokens
        if not self.family.causal or first_differs or (self.recurrence.checkpoint and learns):
            return 1
        if mechanism is not None:
            goes_on = torch.tensor(packed.lengths) > spans[index].start
            if not (mechanism.in_parallel and bool(live.any()) and bool(live[goes_on].all())):
                return 1
            # Keys in front take memory, too: an average layer's, if they outnumber the window's own.
            window = max(window, mechanism.slot_pairs(window) // (window * len(mechanism.slots())))
        tokens = self.tokens_at_once * (TRAINED_TIMES if learns else 1)
        most = max(1, tokens // (len(packed.lengths) * window))
        left = len(spans) - index
        if mechanism is not None and limit is not None and learns:
            most, left = min(most, limit), min(left, limit - index % limit)
        parts = -(-left // most)
        return -(-left // parts)  # parts of about one length

    def _check_cache(self) -> None:
        assert self.mechanism is not None
        if self.mechanism.keys_only and self.base.training and checkpoints_layers(self.base):
            raise UserError(
                "The base checkpoints its own layers, and transformers then takes the cache away from them, and with "
                "it the kept keys: call `model.base.gradient_checkpointing_disable()`, and "
                "`model.set_recurrence(checkpoint=True)` instead."
            )

    def _run_job(
        self,
        job: WindowJob,
        memory: Tensor | None,
        live: Tensor,
        statistics: tuple[Tensor, ...],
        compiles: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """`run_job`, compiled if training repeats such windows, and checkpointed if the model is."""
        compiled = self.compiled_window
        others = self.graphed_steps is None or self.graphed_steps.compiles_others()
        repeated = ((job.targets is not None and others) or compiles) and job.token_types is None
        if not repeated or compiled is None or not compiled.takes(job, live):
            compiled = None

        def step(memory: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
            past = past_of(memory, live, self.device)
            if compiled is not None:
                if self.compared is not None:
                    self.compared.check(_kind_of(job, past.memory))
                return compiled(job, past.memory, statistics)
            return self.run_job(job, past, statistics)

        if self.recurrence.checkpoint and torch.is_grad_enabled():
            return checkpoint(step, memory, use_reentrant=False)
        return step(memory)

    def run_job(
        self, job: WindowJob, past: Past, statistics: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """One window, or several in parallel: the losses of its new tokens, or without targets their hidden states; the
        memory and the summary if it is written. Compiled and captured windows call this, too."""
        inputs: dict[str, Any] = {"input_ids": job.tokens}
        if self.family.causal:
            inputs["use_cache"] = False
        else:
            inputs["attention_mask"] = job.mask
        if job.token_types is not None:
            inputs["token_type_ids"] = job.token_types
        hidden, written, summary = self._through_base(inputs, past, statistics, job.writes, job.windows, job.chosen)
        top = hidden[:, job.first :]
        if job.targets is not None:
            top = self._losses(top, job.targets, job.summed)
        return top, written, summary

    def run_one_window(
        self,
        inputs: dict[str, Any],
        memory: Tensor | None,
        live: Tensor,
        statistics: tuple[Tensor, ...] = (),
        writes: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The base model over one window: its hidden states, and the memory and summary if it `writes`.

        Args:
            inputs: The base's own, such as `input_ids` (rows, tokens).
            memory: What earlier windows left, or None.
            live: (rows,) bool on the CPU: the rows to which `memory` belongs.
            statistics: `mechanism.statistics()` of the call.
            writes: Whether the window is full, so that its memory is computed.
        """
        return self._through_base(inputs, past_of(memory, live, self.device), statistics, writes)

    def _through_base(
        self,
        inputs: dict[str, Any],
        past: Past,
        statistics: tuple[Tensor, ...],
        writes: bool,
        windows: int = 1,
        chosen: int | Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        mechanism: Any = self.mechanism  # other tools may wrap it
        if mechanism is None:
            return run_backbone(self.base, WindowContext(), inputs, self.family.causal), None, None
        recorder = mechanism.recorder(self.recurrence.stride) if writes or windows > 1 else None
        if recorder is not None:
            recorder.windows = windows
        context = WindowContext(past, recorder=recorder)
        inputs = mechanism.open(context, self.base, inputs)
        hidden = run_backbone(self.base, context, inputs, self.family.causal)
        if not writes or recorder is None:
            return hidden, None, None
        if windows > 1:
            return hidden, mechanism.write_parallel(recorder, past, chosen), None
        return hidden, mechanism.write(recorder, past, statistics), recorder.summary()

    def _losses(self, hidden: Tensor, targets: Tensor, summed: bool) -> Tensor:
        raise NotImplementedError


def _kind_of(job: WindowJob, memory: Tensor | None) -> tuple[Any, ...]:
    """What windows have in common that run the same compiled code."""
    chosen = job.chosen if isinstance(job.chosen, int) else type(job.chosen)
    learns = None if memory is None else memory.requires_grad
    return len(job.tokens), job.targets is None, job.first, job.writes, job.summed, job.windows, chosen, learns

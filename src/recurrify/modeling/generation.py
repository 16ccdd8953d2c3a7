"""Generation, one token at a time: a key-value cache of one window, and the change to the next window.

Each row has its own place in its own window, so rows of a padded batch reach window borders at different steps. The
buffers have the window's size, so the thousandth token costs as much as the first. When a row's window is full, it runs
again as a whole to write its memory, and the row starts its next window. Between these borders a step waits for nothing
on the device.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import Cache, DynamicCache

from recurrify.context import Past, WindowContext
from recurrify.errors import UserError
from recurrify.families import run_backbone
from recurrify.masks import aligned, as_mask
from recurrify.modeling.model import RecurrentPreTrainedModel
from recurrify.speed.graphed_generation import DecodingGraphs, Finish
from recurrify.state import State


class OpenWindows(NamedTuple):
    """The open windows on the device, until one of them is full."""

    tokens: Tensor
    """(rows, window): with room for the rest of them."""
    places: Tensor
    """(rows,): the place of each row's newest token."""


class RecurrentCache(Cache):
    """The cache of `generate`: the state, and the keys and values of the open windows."""

    def __init__(self, state: State, seen: int) -> None:
        super().__init__(layers=[])
        self.state = state
        self.seen = seen
        self.buffers: WindowBuffers | None = None
        self.filled = torch.zeros(state.rows, dtype=torch.bool)
        """Rows whose open window is in the buffers; the others are run from their window's start at the next step."""
        self.open: OpenWindows | None = None
        self.graphs = DecodingGraphs()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def widen(self, rows: int) -> None:
        """Follow `generate`, which repeats each row for its beams or return sequences before the first step."""
        repeats, left = divmod(rows, self.state.rows)
        if repeats > 1 and left == 0 and self.seen == 0:
            self.batch_repeat_interleave(repeats)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.state = self.state.select(beam_idx)
        self.filled = self.filled[beam_idx.cpu()]
        self.open = None
        if self.buffers is not None:
            self.buffers.select(beam_idx)
        self.graphs = DecodingGraphs()  # the old graphs read the old buffers

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.reorder_cache(torch.arange(self.state.rows).repeat_interleave(repeats))

    def crop(self, max_length: int) -> None:
        raise UserError(
            "A recurrent model cannot remove tokens from its memory: assisted and prompt-lookup decoding, which need "
            "that, are not supported; use greedy, sampling or beam search."
        )

    @property
    def is_compileable(self) -> bool:
        return False


class WindowBuffers(Cache):
    """Keys and values of one window for every row; a row's token at place p is at index `slots + p`."""

    def __init__(self, window: int, slots: dict[int, int], rows: int) -> None:
        super().__init__(layers=[])
        self.window, self.slots, self.rows = window, slots, rows
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.index: dict[int, Tensor] = {}
        """Where the coming tokens go (rows, 1, 1, 1), by the number of slots in front."""

    def fill(self, rows: Tensor, captured: DynamicCache, tokens: int) -> None:
        """Store the keys and values of the first `tokens` tokens of these rows' windows."""
        for layer, part in enumerate(captured.layers):
            for store, given in ((self.keys, part.keys), (self.values, part.values)):
                front = self.slots.get(layer, 0)
                if layer not in store:
                    shape = (self.rows, given.shape[1], front + self.window, given.shape[3])
                    store[layer] = given.new_zeros(shape)
                # Without a memory to read there were no extra inputs; their places stay empty and masked.
                start = front + tokens - given.shape[2]
                store[layer][rows, :, start : front + tokens] = given.to(store[layer].dtype)

    def point_at(self, places: Tensor) -> None:
        """Choose the places of the coming tokens, one per row, in all layers at once."""
        self.index = {count: (places + count)[:, None, None, None] for count in {0, *self.slots.values()}}

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """One new token for each row; gives all keys and values."""
        index = self.index[self.slots.get(layer_idx, 0)].expand_as(key_states)
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys.scatter_(2, index, key_states.to(keys.dtype))
        values.scatter_(2, index, value_states.to(values.dtype))
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def select(self, rows: Tensor) -> None:
        self.rows = len(rows)
        for store in (self.keys, self.values):
            for layer, part in store.items():
                store[layer] = part[rows.to(part.device)]


def one_step(model: RecurrentPreTrainedModel, tokens: Tensor, cache: RecurrentCache, finish: Finish) -> Tensor:
    """Feed one token (B, 1) to every row and move the cache on; returns what `finish` makes of the hidden states."""
    state, window = cache.state, model.recurrence.window
    opened = cache.open = _append(cache, tokens, window)
    lengths = state.lengths + 1
    state = state._replace(tokens=opened.tokens[:, : int(lengths.max())], lengths=lengths)
    if cache.buffers is None:
        slots = model.mechanism.slots() if model.mechanism is not None else {}
        cache.buffers = WindowBuffers(window, slots, state.rows)
    buffers = cache.buffers
    if not bool(cache.filled.all()):
        _fill_from_start(model, state, buffers, ~cache.filled)

    def step(tokens: Tensor, places: Tensor, memory: Tensor | None) -> Tensor:
        return finish(_one_token(model, tokens, places, memory, state.live, buffers))

    found = cache.graphs.take(model, state, tokens, opened.places, step, finish)
    if found is None:
        found = step(tokens, opened.places, state.memory)
    full = lengths == window
    cache.filled = ~full
    if bool(full.any()):
        state, cache.open = _roll_over(model, state, full), None
    cache.state = state
    cache.seen += 1
    return found


def _append(cache: RecurrentCache, tokens: Tensor, window: int) -> OpenWindows:
    """The open windows with the newest tokens. What earlier states hold of them stays as it is."""
    opened = cache.open
    if opened is None:
        held = cache.state.tokens
        opened = OpenWindows(held.new_zeros(len(held), window), cache.state.lengths.to(held.device, copy=True))
        opened.tokens[:, : held.shape[1]] = held
    else:
        opened.places.add_(1)
    opened.tokens.scatter_(1, opened.places[:, None], tokens.to(opened.tokens.dtype))
    return opened


def _one_token(
    model: RecurrentPreTrainedModel,
    tokens: Tensor,
    places: Tensor,
    memory: Tensor | None,
    live: Tensor,
    buffers: WindowBuffers,
) -> Tensor:
    """The hidden states (B, 1, K) of tokens (B, 1) at these places of the windows; `live` is on the CPU."""
    buffers.point_at(places)
    allowed = torch.arange(buffers.window, device=model.device)[None] <= places[:, None]
    # Additive, though a boolean mask would do: fused attention would convert it again in each layer.
    mask = aligned(as_mask(allowed, True, model.dtype)[:, None, None])
    if not bool(live.any()):  # made on the device: a graph cannot wait for the host
        past = Past(None, torch.zeros(len(tokens), dtype=torch.bool, device=model.device))
    else:
        past = Past(memory, None if bool(live.all()) else live.to(model.device))
    context = WindowContext(past, places)
    inputs: dict[str, Any] = {
        "input_ids": tokens,
        "position_ids": places[:, None],
        "attention_mask": mask,
        "past_key_values": buffers,
        "use_cache": True,
    }
    if model.mechanism is not None:
        inputs = model.mechanism.open(context, model.base, inputs)
    return run_backbone(model.base, context, inputs, causal=True, cached_slots=buffers.slots)


def _fill_from_start(model: RecurrentPreTrainedModel, state: State, buffers: WindowBuffers, rows: Tensor) -> None:
    """Run the open windows of these rows from their first token on, to store their keys and values."""
    chosen = state.select(rows.nonzero()[:, 0])
    longest = int(chosen.lengths.max())
    captured = DynamicCache()
    inputs = {"input_ids": chosen.tokens[:, :longest], "past_key_values": captured, "use_cache": True}
    model.run_one_window(inputs, chosen.memory, chosen.live)
    buffers.fill(rows.nonzero()[:, 0].to(model.device), captured, longest)


def _roll_over(model: RecurrentPreTrainedModel, state: State, full: Tensor) -> State:
    """Write the memory of rows whose window is full and open their next one with the overlap."""
    rows = full.nonzero()[:, 0]
    on_device = rows.to(model.device)
    chosen = state.select(rows)
    memory, live = state.memory, state.live.clone()
    if model.mechanism is not None:
        inputs = {"input_ids": chosen.tokens[:, : model.recurrence.window], "use_cache": False}
        _, written, _ = model.run_one_window(
            inputs, chosen.memory, chosen.live, model.mechanism.statistics(), writes=True
        )
        assert written is not None
        if memory is None:
            memory = written.new_zeros(state.rows, *written.shape[1:])
        memory = memory.index_copy(0, on_device, written.to(memory.dtype))
        live[rows] = True
    overlap, stride = model.recurrence.overlap, model.recurrence.stride
    tokens, lengths = state.tokens.clone(), state.lengths.clone()
    tokens[on_device, :overlap] = chosen.tokens[:, stride : stride + overlap]
    lengths[rows] = overlap
    return State(memory, live, tokens[:, : int(lengths.max())], lengths, model.recurrence.memory_settings)

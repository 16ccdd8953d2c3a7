"""Generation, one token at a time: a key-value cache of one window, and the change to the next window.

Each row has its own place in its own window, so rows of a padded batch reach window borders at different steps. The
buffers have the window's size, so the thousandth token costs as much as the first. When a row's window is full, it runs
again as a whole to write its memory, and the row starts its next window.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache

from recurrify.context import Past, WindowContext
from recurrify.errors import UserError
from recurrify.families import run_backbone
from recurrify.masks import aligned, as_mask
from recurrify.modeling.model import RecurrentPreTrainedModel
from recurrify.speed.graphed_generation import DecodingGraphs
from recurrify.state import State


class RecurrentCache(Cache):
    """The cache of `generate`: the state, and the keys and values of the open windows."""

    def __init__(self, state: State, seen: int) -> None:
        super().__init__(layers=[])
        self.state = state
        self.seen = seen
        self.buffers: WindowBuffers | None = None
        self.filled = torch.zeros(state.rows, dtype=torch.bool)
        """Rows whose open window is in the buffers; the others are run from their window's start at the next step."""
        self.room: Tensor | None = None
        """The tokens of the open windows, with room for the rest of them, as long as all rows are at one place."""
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
        self.room = None
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
        self.active: Tensor | None = None
        self.places: Tensor | None = None

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

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """One new token for each active row; gives all keys and values of those rows."""
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        assert self.active is not None
        assert self.places is not None
        index = self.places + self.slots.get(layer_idx, 0)
        keys[self.active, :, index] = key_states[:, :, 0].to(keys.dtype)
        values[self.active, :, index] = value_states[:, :, 0].to(values.dtype)
        if len(self.active) == self.rows:
            return keys, values
        return keys[self.active], values[self.active]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def select(self, rows: Tensor) -> None:
        self.rows = len(rows)
        for store in (self.keys, self.values):
            for layer, part in store.items():
                store[layer] = part[rows.to(part.device)]


def one_step(model: RecurrentPreTrainedModel, tokens: Tensor, cache: RecurrentCache) -> Tensor:
    """Feed one token (B, 1) to every row; returns the hidden states (B, 1, K) and moves the cache on."""
    state = cache.state
    tokens_now = _append(cache, tokens, model.recurrence.window)
    state = state._replace(tokens=tokens_now, lengths=state.lengths + 1)
    if cache.buffers is None:
        slots = model.mechanism.slots() if model.mechanism is not None else {}
        cache.buffers = WindowBuffers(model.recurrence.window, slots, state.rows)
    continued, restarted = cache.filled, ~cache.filled
    if bool(continued.all()):
        hidden = _decode_all(model, state, tokens, cache)
    elif bool(restarted.all()):
        hidden = _run_from_start(model, state, cache.buffers, restarted)
    else:
        part = _decode(model, state, cache.buffers, continued)
        hidden = part.new_zeros(state.rows, 1, part.shape[2])
        hidden[continued.to(hidden.device)] = part
        hidden[restarted.to(hidden.device)] = _run_from_start(model, state, cache.buffers, restarted).to(part.dtype)
    full = state.lengths == model.recurrence.window
    cache.filled = ~full
    if bool(full.any()):
        state, cache.room = _roll_over(model, state, full), None
    cache.state = state
    cache.seen += 1
    return hidden


def _append(cache: RecurrentCache, tokens: Tensor, window: int) -> Tensor:
    """The tokens of the open windows with the newest. What earlier states hold of them stays as it is."""
    held, lengths = cache.state.tokens, cache.state.lengths
    place = int(lengths.max())
    if int(lengths.min()) == place:
        if cache.room is None:
            cache.room = tokens.new_zeros(len(tokens), window)
            cache.room[:, :place] = held[:, :place]
        cache.room[:, place] = tokens[:, 0]
        return cache.room[:, : place + 1]
    cache.room = None
    missing = place + 1 - held.shape[1]
    held = torch.cat([held, tokens.new_zeros(len(held), missing)], dim=1) if missing > 0 else held.clone()
    held[torch.arange(len(held), device=tokens.device), lengths.to(tokens.device)] = tokens[:, 0]
    return held


def _decode_all(model: RecurrentPreTrainedModel, state: State, tokens: Tensor, cache: RecurrentCache) -> Tensor:
    buffers, live = cache.buffers, state.live
    assert buffers is not None

    def decode(tokens: Tensor, places: Tensor, memory: Tensor | None) -> Tensor:
        return _one_token(model, tokens, places, memory, live, torch.arange(len(tokens), device=tokens.device), buffers)

    replayed = cache.graphs.take(model, state, tokens, decode)
    return _decode(model, state, buffers, cache.filled) if replayed is None else replayed


def _decode(model: RecurrentPreTrainedModel, state: State, buffers: WindowBuffers, rows: Tensor) -> Tensor:
    """The newest token of these rows, against what their windows hold so far."""
    active = rows.nonzero()[:, 0]
    places = (state.lengths[active] - 1).to(model.device)
    active = active.to(model.device)
    memory = None if state.memory is None else state.memory[active]
    tokens = state.tokens[active].gather(1, places[:, None])
    return _one_token(model, tokens, places, memory, state.live[rows], active, buffers)


def _one_token(
    model: RecurrentPreTrainedModel,
    tokens: Tensor,
    places: Tensor,
    memory: Tensor | None,
    live: Tensor,
    active: Tensor,
    buffers: WindowBuffers,
) -> Tensor:
    """Tokens (A, 1) at these places of the active rows' windows; `live` is on the CPU."""
    buffers.active, buffers.places = active, places
    allowed = torch.arange(buffers.window, device=model.device)[None] <= places[:, None]
    # Additive, though a boolean mask would do: fused attention would convert it again in each layer.
    mask = aligned(as_mask(allowed, True, model.dtype)[:, None, None])
    if not bool(live.any()):  # made on the device: a graph cannot wait for the host
        past = Past(None, torch.zeros(len(active), dtype=torch.bool, device=model.device))
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


def _run_from_start(model: RecurrentPreTrainedModel, state: State, buffers: WindowBuffers, rows: Tensor) -> Tensor:
    """The open windows of these rows from their first token on, their keys and values caught for later steps."""
    chosen = state.select(rows.nonzero()[:, 0])
    longest = int(chosen.lengths.max())
    captured = DynamicCache()
    inputs = {"input_ids": chosen.tokens[:, :longest], "past_key_values": captured, "use_cache": True}
    hidden, _, _ = model.run_one_window(inputs, chosen.memory, chosen.live)
    buffers.fill(rows.nonzero()[:, 0].to(model.device), captured, longest)
    last = (chosen.lengths - 1).to(hidden.device)
    return hidden[torch.arange(len(last), device=hidden.device), last][:, None]


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

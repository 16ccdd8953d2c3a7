"""What a mechanism is: a config, and a module that puts memory into a window and takes it out again.

`SlotMechanism` adds inputs to layers, `CacheMechanism` keeps keys and values; docs/extending/mechanism.md has a whole
example. Layers are counted from 0 in code, and from 1 in configs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache, DynamicLayer, PreTrainedModel

from recurrify.context import Past, Recorder, WindowContext
from recurrify.masks import as_mask
from recurrify.speed.products import product_dtype

__all__ = ["CacheMechanism", "CacheRecorder", "Mechanism", "Past", "Recorder", "SlotMechanism", "WindowContext"]

Leave = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps a layer's keys and values of a window (rows, heads, positions, size) to those that the next window sees."""


class Mechanism(nn.Module, ABC):
    """What is read into a window (`open`) and what is written from it (`recorder`, `write`)."""

    keys_only: ClassVar[bool] = False
    """Whether `slots` are keys and values in the base's cache, and not inputs of its layers."""
    changes_attention: ClassVar[bool] = False
    """Whether `open` sets `WindowContext.change_attention`."""
    in_parallel: ClassVar[bool] = False
    """Whether neighbouring windows of a text can be read at once: no layer of a window reads what a later layer of an
    earlier window computes."""
    inputs_behind: int = 0
    """Extra inputs behind a window that is written to memory."""
    first_position: int = 0
    """The highest position that a window's first token can have."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def fit(self, base: PreTrainedModel) -> None:
        """Called once with the base, before weights are loaded. Raises UserError if the two do not fit; creates what
        depends on the base's config. `self.config` may get values that were left to the base."""

    def start(self, base: PreTrainedModel) -> None:
        """Called once if the mechanism is added to a trained base: initialises weights from what the base computes.
        `neutral.neutral_inputs` gives inputs that the base mostly ignores."""

    def resize(self, config: Any) -> None:
        """Called if a model's `window`, `overlap`, `bptt_windows` or `checkpoint` changes. Raises UserError if the
        mechanism cannot work with them."""
        self.config = config

    @abstractmethod
    def slots(self) -> dict[int, int]:
        """{layer: count}: how many extra inputs, or kept keys, each layer has; layers without any may be left out."""

    @abstractmethod
    def state_size(self) -> int:
        """How many numbers the memory of one row has."""

    def open(self, window: WindowContext, base: PreTrainedModel, inputs: dict[str, Any]) -> dict[str, Any]:
        """Put the memory `window.past` into the coming window or token; returns the base's own inputs."""
        return inputs

    @abstractmethod
    def recorder(self, stride: int) -> Recorder:
        """A new recorder of one full window. The next window sees positions from `stride` on again, so only earlier
        ones belong into the memory."""

    @abstractmethod
    def write(self, recorder: Any, past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        """The memory (rows, …) that the next window reads, in the dtype of the mechanism's weights. `past` is what this
        window itself read, `statistics` those of the call."""

    def statistics(self) -> tuple[Tensor, ...]:
        """Copies of running statistics that `write` reads. Taken once per call, so that a window that is recomputed in
        the backward pass sees the same ones."""
        return ()

    def learn_statistics(self, summaries: list[Tensor]) -> None:
        """Called after a training forward pass with the recorders' summaries of finished windows, outside the graph."""


class SlotMechanism(Mechanism):
    """Adds inputs in front of a window's in some layers, and on request behind it."""

    @abstractmethod
    def read(self, memory: Tensor) -> dict[int, Tensor]:
        """{layer: (rows, count, width)}: the inputs that layers of the coming window get in front of their own. A layer
        of `slots` that is left out gets the outputs of the previous layer's extra inputs."""

    def ask(self, past: Past, rows: int) -> Tensor | None:
        """The `inputs_behind` (rows, count, width) of the first layer. They see the whole window and pass through all
        layers; the recorder's `see_behind` gets each layer's outputs."""
        return None

    def open(self, window: WindowContext, base: PreTrainedModel, inputs: dict[str, Any]) -> dict[str, Any]:
        if window.past.memory is not None and window.places is None:
            window.front = {**dict.fromkeys(self.slots()), **self.read(window.past.memory)}
        if window.recorder is not None:
            window.behind = self.ask(window.past, len(inputs["input_ids"]))
        return inputs


class CacheMechanism(Mechanism):
    """Puts kept keys and values (rows, layers, 2, heads, count, size) in front of a window's own. With opened attention
    (`families.open_attention` in `fit`), windows in which all rows have a memory need no mask."""

    keys_only: ClassVar[bool] = True

    def kept(self, memory: Tensor) -> Tensor:
        """The keys and values that the coming window sees in front of its own."""
        return memory

    def sees_slots(self, places: Tensor) -> Tensor | None:
        """(tokens, count): which kept keys are seen from these places of a window; None: all of them."""
        return None

    def first_positions(self, past: Past) -> int | Tensor:
        """The position of a window's first token, for all rows or (rows, 1)."""
        return self.first_position

    def slot_pairs(self, window: int) -> int:
        """How many pairs of a token and a kept key attention computes in a window, in all layers together."""
        return window * sum(self.slots().values())

    def kept_flops(self) -> int:
        """Operations per window that the mechanism itself spends on what it keeps."""
        return 0

    def leaves(self, base: PreTrainedModel, like: Tensor, stride: int) -> Sequence[Leave]:
        """For `in_parallel`: what each layer of a window that has read a memory leaves to the next window, of positions
        before `stride`. It takes the place of the last of the `kept` keys and values; those in front of them stay.
        `like` has the device and dtype of keys."""
        raise NotImplementedError

    def recorder(self, stride: int) -> "CacheRecorder":
        return CacheRecorder(stride)

    def write_parallel(self, recorder: Any, past: Past, chosen: int | Tensor | None) -> Tensor:
        """The memory behind the chosen window of each text or, without a choice, behind each window (texts, windows,
        …)."""
        memory = past.memory
        assert memory is not None, "windows in parallel need a memory"
        assert recorder.cache is not None, "no window was opened"
        parts = torch.stack([layer.left_behind(chosen) for layer in recorder.cache.layers], dim=-5)
        first = memory[..., : memory.shape[-2] - parts.shape[-2], :]
        if chosen is None:
            first = first[:, None].expand(-1, parts.shape[1], *first.shape[1:])
        return torch.cat([first.to(parts.dtype), parts], dim=-2)

    def open(self, window: WindowContext, base: PreTrainedModel, inputs: dict[str, Any]) -> dict[str, Any]:
        past = window.past
        if window.places is not None:  # the keys are in the cache already
            window.seen_slots = self.sees_slots(window.places)
            return {**inputs, "position_ids": inputs["position_ids"] + self.first_positions(past)}
        ids: Tensor = inputs["input_ids"]
        cache, mask = inputs.get("past_key_values"), None
        if cache is None:
            cache = DynamicCache()
        if past.memory is not None:
            kept = self.kept(past.memory)
            # One split of all: its gradient is one copy.
            parts = kept.flatten(1, 2).unbind(1)
            pairs = list(zip(parts[::2], parts[1::2], strict=True))
            if isinstance(window.recorder, CacheRecorder) and window.recorder.windows > 1:
                leaves = self.leaves(base, kept, window.recorder.stride)
                cache.layers = [ParallelLayer(*one) for one in zip(pairs, leaves, strict=True)]
            else:
                for layer, (keys, values) in enumerate(pairs):
                    put_into(cache, layer, keys, values)
            mask = self._mask(base, ids, past.live, kept.shape[-2])
        if isinstance(window.recorder, CacheRecorder):
            window.recorder.cache, window.recorder.base = cache, base
        places = torch.arange(ids.shape[1], device=ids.device)[None].expand(len(ids), -1) + self.first_positions(past)
        return {**inputs, "position_ids": places, "attention_mask": mask, "past_key_values": cache, "use_cache": True}

    def _mask(self, base: PreTrainedModel, ids: Tensor, live: Tensor | None, count: int) -> Tensor | None:
        """What each position sees of the kept keys and of its own window; None where it is everything before it."""
        rows, length = ids.shape
        front = self.sees_slots(torch.arange(length, device=ids.device))
        if front is None:
            if live is None:
                return None
            return torch.cat([live[:, None].expand(-1, count), torch.ones_like(ids)], dim=1)
        front = front.expand(rows, -1, -1)
        if live is not None:
            front = front & live[:, None, None]
        own = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
        allowed = torch.cat([front, own.expand(rows, -1, -1)], dim=2)[:, None]
        return as_mask(allowed, base.config._attn_implementation == "eager", base.dtype)


def put_into(cache: DynamicCache, layer: int, keys: Tensor, values: Tensor) -> None:
    """What `cache.update` does in an empty layer, without a copy."""
    cache.update(keys[:, :, :0], values[:, :, :0], layer)
    cache.layers[layer].keys, cache.layers[layer].values = keys, values


class ParallelLayer(DynamicLayer):
    """A layer's cache of neighbouring windows of each text, whose rows follow each other: what each window leaves is in
    front of the next one's keys and values."""

    def __init__(self, front: tuple[Tensor, Tensor], leave: Leave) -> None:
        """`front`: keys and values (texts, heads, count, size) that the first windows see."""
        super().__init__()
        self.front, self.leave = front, leave

    def get_seq_length(self) -> int:
        return self.front[0].shape[2]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.left = self.leave(key_states, value_states)
        own = key_states, value_states
        keys, values = (_behind_left(*parts) for parts in zip(self.front, self.left, own, strict=True))
        return keys, values

    def left_behind(self, chosen: int | Tensor | None) -> Tensor:
        """(texts, 2, heads, count, size) of the chosen windows, or of each (texts, windows, …)."""
        parts = [part.unflatten(0, (len(self.front[0]), -1)) for part in self.left]
        return torch.stack([pick_windows(part, chosen) for part in parts], dim=-4)


def pick_windows(values: Tensor, chosen: int | Tensor | None) -> Tensor:
    """The chosen ones of (texts, windows, …), or all of them."""
    if chosen is None:
        return values
    if isinstance(chosen, int):
        return values[:, chosen]
    return values[torch.arange(len(values), device=values.device), chosen]


def _behind_left(front: Tensor, left: Tensor, own: Tensor) -> Tensor:
    """A window's own keys or values behind those that the window before it left."""
    texts = len(front)
    before, own = (part.unflatten(0, (texts, -1)).to(product_dtype(own)) for part in (left, own))
    front = front[:, None].to(own.dtype)
    stays = front[..., : front.shape[3] - before.shape[3], :]
    before = torch.cat([front[..., stays.shape[3] :, :], before[:, :-1]], dim=1)
    return torch.cat([stays.expand(-1, own.shape[1], -1, -1, -1), before, own], dim=3).flatten(0, 1)


class CacheRecorder(Recorder):
    """The keys and values that the layers of a window put into the cache."""

    def __init__(self, stride: int) -> None:
        self.stride = stride
        self.cache: DynamicCache | None = None
        self.base: PreTrainedModel | None = None

    def layers(self, before: int, first: int, end: int) -> list[tuple[Tensor, Tensor]]:
        """For each layer, keys and values (rows, heads, positions, size) of the window's own positions from `first` to
        `end`, which stand behind the first `before` in the cache."""
        assert self.cache is not None, "no window was opened"
        # One slice: the gradient of each is as large as what it is cut from.
        span = slice(before + first, before + end)
        return [(part.keys[:, :, span], part.values[:, :, span]) for part in self.cache.layers]

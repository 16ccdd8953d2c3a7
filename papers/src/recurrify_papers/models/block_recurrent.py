"""Block-Recurrent Transformer (Hutchins et al., 2022) for language modelling, and RSA-BRT where `rsa` is set.

Every position attends to a window of the last positions, so the cost is linear in the length of the text. One layer is
recurrent: it has S state vectors. Its tokens read the states (the vertical direction). After each block of tokens the
states read that block and one another, and a gate updates them (the horizontal direction). Both directions share keys
and values: one pair from the tokens, one from the states.

Choices: positions enter as T5's bias by distance, as in the paper; one mask serves a whole batch in a fused kernel.
States read the tokens of the block, each token once. Blocks may be shorter than the window. They must be where a
training segment is no longer than the window: the state leaves a segment without gradient, so segments of one block
would never teach the states what to write. The initial states are zeros, not learned: the text is one stream, which
begins only once.

Shapes: B batch, Q positions of the segment, M positions of memory, K = M + Q, W width, H heads, D head width,
S states, P positions of an unfinished block, L layers, V vocabulary; 2 stands for keys and values.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrify import RSAConfig, UserError
from recurrify.attention import RecurrenceEncoding, mix_recurrence
from recurrify.settings import setting
from recurrify_papers.kernels.relative import relative_attention, relative_kernels_run
from recurrify_papers.models.parts import (
    INITIAL_STD,
    DecoderConfig,
    FeedForward,
    LanguageOutput,
    check_state,
    embed,
    initialize,
    join_heads,
    split_heads,
)

GATE_STD = 0.1
"""Standard deviation of the initial logits of a fixed gate, which keeps about half at first."""
DISTANCE_BUCKETS, LAST_BUCKET_DISTANCE = 32, 128
"""As in T5: every distance below 16 has its own bias, larger ones share biases, and all from 128 on share one."""
BIAS_SCALE = 32.0
"""Factor of the biases in the table. Only biases of 5 and more separate near from far, and Adam's steps are as long as
the learning rate: at 2.5e-4 the model would ignore positions for 20,000 steps. The published optimizer,
Adafactor, moves a weight by a share of its size, a hundredth or more."""


@dataclass(frozen=True, kw_only=True)
class BlockRecurrentConfig(DecoderConfig):
    """The defaults are about as large as the published 14-layer Transformer-XL for characters."""

    has_waves: ClassVar[bool] = False

    window: int = setting(512, at_least=2)
    """Positions that each position sees: itself and those before it."""
    block: int = setting(128, at_least=1)
    """Positions between two updates of the states; in the paper as many as in the window. A training segment has two
    blocks or more."""
    states: int = setting(512, at_least=1)
    """State vectors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target_length < 2 * self.block or self.target_length % self.block != 0:
            raise UserError(
                f"`target_length`, a run's --length, must be two or more whole blocks, or the states never learn what "
                f"to write: got target_length={self.target_length}, block={self.block}; {self._ways_out()}."
            )

    def _ways_out(self) -> str:
        """Options of the command line that fit together."""
        longer = self.block * max(2, math.ceil(self.target_length / self.block))
        half, odd = divmod(self.target_length, 2)
        return f"use --length {longer}" + ("" if odd or half < 1 else f" or --set block={half}")

    @property
    def recurrence(self) -> RSAConfig | None:
        """`rsa`, truncated at the window."""
        return self.truncated_rsa(self.window - 1)

    @property
    def recurrent_index(self) -> int:
        """The layer with the states, counted from 0: five sixths of the way up, as the paper's 10th of 12."""
        return max(1, round(self.layers * 5 / 6)) - 1


class BlockRecurrentState(NamedTuple):
    """State between segments, without gradient."""

    memory: Tensor
    """Last keys and values of every layer, (L, 2, B, H, M, D); M is at most the window."""
    states: Tensor
    """State vectors after the last whole block, (B, S, W)."""
    pending: Tensor
    """The recurrent layer's keys and values of an unfinished block, (2, B, H, P, D)."""


class DistanceBias(nn.Module):
    """T5's learned bias of each head for the distance between query and key, and −∞ outside the window."""

    one_hot: Tensor

    def __init__(self, config: BlockRecurrentConfig) -> None:
        super().__init__()
        self.window = config.window
        self.table = nn.Parameter(torch.empty(config.heads, DISTANCE_BUCKETS))
        buckets = torch.tensor([distance_bucket(distance) for distance in range(config.window)])
        one_hot = functional.one_hot(buckets, DISTANCE_BUCKETS).T.to(self.table.dtype)
        self.register_buffer("one_hot", one_hot, persistent=False)

    def by_distance(self, keys: int) -> Tensor:
        """Biases of the distances K − 1, …, 0, and 0 outside the window: (H, K)."""
        # A product, not a look-up, whose gradient would add thousands of pairs one by one.
        return functional.pad(BIAS_SCALE * self.table @ self.one_hot, (0, keys - self.window)).flip(1)

    def forward(self, queries: int, dtype: torch.dtype) -> Tensor:
        """The mask of queries with a whole window of keys before them: (H, Q, window + Q)."""
        keys = self.window + queries
        by_distance = self.by_distance(keys)
        # From columns of distance to columns of keys, as in `align_distances` of Transformer-XL.
        rows = functional.pad(by_distance[:, None].expand(-1, queries, -1), (1, 0))
        by_key = rows.reshape(-1, keys + 1, queries)[:, 1:].reshape(-1, queries, keys)
        query = torch.arange(self.window, keys, device=rows.device)[:, None]
        distance = query - torch.arange(keys, device=rows.device)
        outside = (distance < 0) | (distance >= self.window)
        return by_key.masked_fill(outside, -math.inf).to(dtype)


def distance_bucket(distance: int) -> int:
    """The index of the bias of a distance: its own at first, then shared on a logarithmic scale."""
    exact = DISTANCE_BUCKETS // 2
    if distance < exact:
        return distance
    share = math.log(distance / exact) / math.log(LAST_BUCKET_DISTANCE / exact)
    return min(DISTANCE_BUCKETS - 1, exact + int(share * (DISTANCE_BUCKETS - exact)))


class WindowAttention(nn.Module):
    """Attention of each position to the window that ends with it, with recurrence if configured."""

    def __init__(self, config: BlockRecurrentConfig) -> None:
        super().__init__()
        self.window, self.head_width = config.window, config.each_head
        self.projection = nn.Linear(config.width, 3 * config.all_heads, bias=False)
        self.bias = DistanceBias(config)
        self.encoding = None if config.recurrence is None else RecurrenceEncoding(config.recurrence)

    def forward(self, normed_BQW: Tensor, past_2BHMD: Tensor) -> tuple[Tensor, Tensor]:
        """The heads' outputs (B, H, Q, D), and the segment's own keys and values (2, B, H, Q, D)."""
        parts = self.projection(normed_BQW).unflatten(-1, (3, -1, self.head_width)).permute(2, 0, 3, 1, 4)
        query_BHQD, fresh_2BHQD = parts[0], parts[1:]
        seen_2BHKD = torch.cat([past_2BHMD.to(fresh_2BHQD.dtype), fresh_2BHQD], dim=3)
        attended_BHQD = self._in_windows(query_BHQD, seen_2BHKD)
        if self.encoding is not None:
            attended_BHQD = mix_recurrence(attended_BHQD, seen_2BHKD[1], self.encoding, causal=True).output
        return attended_BHQD, fresh_2BHQD

    def _in_windows(self, query_BHQD: Tensor, seen_2BHKD: Tensor) -> Tensor:
        """At most a window of queries at once, or the cost would be quadratic in the length of the segment."""
        queries, memory = query_BHQD.shape[2], seen_2BHKD.shape[3] - query_BHQD.shape[2]
        at_once = min(queries, self.window)
        fused = relative_kernels_run(query_BHQD, self.window + at_once)
        mask = None if fused else self.bias(at_once, query_BHQD.dtype)
        pieces = []
        for start in range(0, queries, self.window):
            stop = min(start + self.window, queries)
            before = min(memory + start, self.window)
            key, value = seen_2BHKD[..., memory + start - before : memory + stop, :]
            pieces.append(self._attend(query_BHQD[:, :, start:stop], key, value, mask))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=2)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """The last keys are the queries' own. Without a mask, by the fused kernel."""
        queries, keys = query.shape[2], key.shape[2]
        if mask is None:
            # The kernel scales it down again, together with the products of queries and keys.
            bias_HK = self.bias.by_distance(keys) * math.sqrt(self.head_width)
            return relative_attention(query, bias_HK[None, :, None], key, value, span=self.window)
        # The mask depends on distances alone, so fewer queries or keys need a part of it.
        seen_mask = mask[:, :queries, self.window + queries - keys : self.window + queries]
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=seen_mask[None])


class WindowLayer(nn.Module):
    """A transformer layer with normalisation before each part."""

    def __init__(self, config: BlockRecurrentConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.attention = WindowAttention(config)
        self.output = nn.Linear(config.all_heads, config.width, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.feed_forward = FeedForward(config, norm_first=True)

    def forward(self, hidden_BQW: Tensor, past_2BHMD: Tensor) -> tuple[Tensor, Tensor]:
        attended_BHQD, fresh_2BHQD = self.attention(self.norm(hidden_BQW), past_2BHMD)
        hidden_BQW = hidden_BQW + self.dropout(self.output(join_heads(attended_BHQD)))
        return self.feed_forward(hidden_BQW), fresh_2BHQD


class Gate(nn.Module):
    """Updates the states with z = W x + b: g · state + (1 − g) · z, with a learned g for each channel."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.candidate = nn.Linear(inputs, width)
        self.logit = nn.Parameter(torch.empty(width))

    def forward(self, states_BSW: Tensor, inputs: Tensor) -> Tensor:
        candidate_BSW = self.candidate(inputs)
        return torch.lerp(candidate_BSW.to(states_BSW.dtype), states_BSW, torch.sigmoid(self.logit))


class StateCell(nn.Module):
    """The horizontal direction: from the states of one block to those of the next.

    It is the paper's best cell, with a fixed gate and without a feed-forward part.
    """

    def __init__(self, config: BlockRecurrentConfig) -> None:
        super().__init__()
        self.head_width = config.each_head
        inside = config.all_heads
        # Without ids of their own, all states would start equal and stay equal.
        self.ids = nn.Parameter(torch.empty(config.states, config.width))
        self.norm = nn.LayerNorm(config.width)
        self.key_value = nn.Linear(config.width, 2 * inside, bias=False)
        self.queries = nn.Linear(config.width, 2 * inside, bias=False)
        self.gate = Gate(2 * inside, config.width)

    def named(self, states_BSW: Tensor) -> Tensor:
        """The states, normalised and with their ids."""
        return self.norm(states_BSW) + self.ids

    def keys_values(self, named_BSW: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the states, each (B, H, S, D)."""
        key, value = self.key_value(named_BSW).chunk(2, dim=-1)
        return split_heads(key, self.head_width), split_heads(value, self.head_width)

    def forward(self, states_BSW: Tensor, named_BSW: Tensor, own: tuple[Tensor, Tensor], block_2BHND: Tensor) -> Tensor:
        """The next states, from the states, their keys and values, and those of a block of tokens."""
        own_query, block_query = (
            split_heads(part, self.head_width) for part in self.queries(named_BSW).chunk(2, dim=-1)
        )
        from_states = functional.scaled_dot_product_attention(own_query, *own)
        from_tokens = functional.scaled_dot_product_attention(block_query, block_2BHND[0], block_2BHND[1])
        seen = torch.cat([join_heads(from_states), join_heads(from_tokens)], dim=-1)
        updated_BSW: Tensor = self.gate(states_BSW, seen)
        return updated_BSW


class RecurrentLayer(nn.Module):
    """A window layer whose tokens also read the states, which are updated after each block."""

    def __init__(self, config: BlockRecurrentConfig) -> None:
        super().__init__()
        self.block, self.head_width = config.block, config.each_head
        inside = config.all_heads
        self.norm = nn.LayerNorm(config.width)
        self.attention = WindowAttention(config)
        self.state_query = nn.Linear(config.width, inside, bias=False)
        self.cell = StateCell(config)
        self.output = nn.Linear(2 * inside, config.width, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.feed_forward = FeedForward(config, norm_first=True)

    def forward(
        self, hidden_BQW: Tensor, past_2BHMD: Tensor, states_BSW: Tensor, pending_2BHPD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The layer's output, the segment's keys and values, the next states, and the unfinished block."""
        normed_BQW = self.norm(hidden_BQW)
        attended_BHQD, fresh_2BHQD = self.attention(normed_BQW, past_2BHMD)
        query_BHQD = split_heads(self.state_query(normed_BQW), self.head_width)
        pending_2BHPD = pending_2BHPD.to(fresh_2BHQD.dtype)
        read, start = [], 0
        while start < hidden_BQW.shape[1]:
            stop = min(start + self.block - pending_2BHPD.shape[3], hidden_BQW.shape[1])
            named_BSW = self.cell.named(states_BSW)
            own = self.cell.keys_values(named_BSW)
            read.append(functional.scaled_dot_product_attention(query_BHQD[:, :, start:stop], *own))
            pending_2BHPD = torch.cat([pending_2BHPD, fresh_2BHQD[..., start:stop, :]], dim=3)
            if pending_2BHPD.shape[3] == self.block:
                states_BSW = self.cell(states_BSW, named_BSW, own, pending_2BHPD)
                pending_2BHPD = pending_2BHPD[..., :0, :]
            start = stop
        both = torch.cat([join_heads(attended_BHQD), join_heads(torch.cat(read, dim=2))], dim=-1)
        hidden_BQW = hidden_BQW + self.dropout(self.output(both))
        return self.feed_forward(hidden_BQW), fresh_2BHQD, states_BSW, pending_2BHPD


class BlockRecurrentTransformer(nn.Module):
    """Predicts the next symbol at each position; softmax and embedding share their weights."""

    def __init__(self, config: BlockRecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(
            RecurrentLayer(config) if index == config.recurrent_index else WindowLayer(config)
            for index in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width)
        self.output_bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.dropout = nn.Dropout(config.dropout)
        self.apply(_initialize)

    def first_state(self, batch: int) -> BlockRecurrentState:
        """The state before the first segment: no memory, and states of zeros."""
        config, weight = self.config, self.embedding.weight
        nothing = (2, batch, config.heads, 0, config.each_head)
        return BlockRecurrentState(
            memory=weight.new_empty(config.layers, *nothing),
            states=weight.new_zeros(batch, config.states, config.width),
            pending=weight.new_empty(nothing),
        )

    def forward(self, ids_BQ: Tensor, state: BlockRecurrentState | None = None) -> LanguageOutput:
        batch = ids_BQ.shape[0]
        memory_L2BHMD, states_BSW, pending_2BHPD = self.first_state(batch) if state is None else state
        check_state(memory_L2BHMD, self.config.layers, batch, batch_dimension=2)
        states_BSW, pending_2BHPD = states_BSW.detach(), pending_2BHPD.detach()
        hidden_BQW = self.dropout(embed(self.embedding, ids_BQ))
        kept = []
        for layer, past_2BHMD in zip(self.layers, memory_L2BHMD.detach(), strict=True):
            if isinstance(layer, RecurrentLayer):
                hidden_BQW, fresh_2BHQD, states_BSW, pending_2BHPD = layer(
                    hidden_BQW, past_2BHMD, states_BSW, pending_2BHPD
                )
            else:
                hidden_BQW, fresh_2BHQD = layer(hidden_BQW, past_2BHMD)
            kept.append(self._keep(past_2BHMD, fresh_2BHQD.detach()))
        logits_BQV = functional.linear(self.dropout(self.norm(hidden_BQW)), self.embedding.weight, self.output_bias)
        left = BlockRecurrentState(torch.stack(kept), states_BSW.detach(), pending_2BHPD.detach())
        return LanguageOutput(logits_BQV, left)

    def _keep(self, past_2BHMD: Tensor, fresh_2BHQD: Tensor) -> Tensor:
        seen_2BHKD = torch.cat([past_2BHMD.to(fresh_2BHQD.dtype), fresh_2BHQD], dim=3)
        return seen_2BHKD[..., max(0, seen_2BHKD.shape[3] - self.config.window) :, :]


def _initialize(module: nn.Module) -> None:
    initialize(module)
    if isinstance(module, DistanceBias):
        nn.init.normal_(module.table, std=INITIAL_STD)
    if isinstance(module, StateCell):
        # As large as the normalised states that they are added to.
        nn.init.normal_(module.ids)
    if isinstance(module, Gate):
        nn.init.normal_(module.logit, std=GATE_STD)

"""Block-Recurrent Transformer (Hutchins et al., 2022) for language modelling, and RSA-BRT where `rsa` is set.

Every position attends to a window of the last positions, so the cost grows linearly with the text. One layer is
recurrent: S state vectors run along the text beside it. Its tokens read the states (the vertical direction), and after
each block of tokens the states read that block and one another and are written anew through a gate (the horizontal
direction). Both directions share keys and values: one pair from the tokens, one from the states.

Where there was a choice: positions enter as T5's bias by distance, as in the paper; it does not depend on the content,
so one mask serves a whole batch in a fused kernel. States read the block's own tokens, each token once. Blocks may be
shorter than the window, as they must be where a training segment is no longer than it: the state leaves a segment
without gradient, so segments of one block would never teach the states what to write. The first states are zeros, not
learned: the text is read as one stream, which begins but once.

Shapes: B batch, Q positions of the segment, M positions of memory, K = M + Q, W width, H heads, D head width,
S states, P positions of an unfinished block, L layers, V vocabulary; 2 stands for keys and values.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrify.attention.config import RSAConfig
from recurrify.attention.encoding import RecurrenceEncoding
from recurrify.attention.rsa import mix_recurrence
from recurrify.errors import UserError
from recurrify.vocabulary import embed
from recurrify_papers.kernels.relative import relative_attention, relative_kernels_run
from recurrify_papers.models.head_widths import HeadWidths

START_SPREAD = 0.02
"""The standard deviation of the first weights."""
GATE_SPREAD = 0.1
"""The standard deviation of a fixed gate's first logits: it starts by keeping about half."""
DISTANCE_BUCKETS, LAST_BUCKET_DISTANCE = 32, 128
"""T5's: every distance below 16 has its own bias; beyond, they share one with their like, and all from 128 on."""
BIAS_PACE = 32.0
"""How many times its number in the table a bias is. Nothing else tells near from far, which takes biases of 5 and more,
and steps of Adam are as long as the learning rate: at 2.5e-4 the model would stay blind to places for 20,000 steps
(LOG.md). The published optimiser, Adafactor, moves a weight by a share of its size, a hundredth or more."""


@dataclass(frozen=True, kw_only=True)
class BlockRecurrentConfig(HeadWidths):
    """The defaults are about as large as the published 14-layer Transformer-XL for characters."""

    vocabulary: int
    """Symbols."""
    layers: int = 14
    """Layers, each attention and a feed-forward part."""
    width: int = 512
    """Width of the hidden states and of the state vectors."""
    heads: int = 8
    """Attention heads."""
    head_width: int | None = None
    """Width of a head; None: width / heads."""
    inner: int = 2048
    """Width inside the feed-forward part."""
    dropout: float = 0.1
    """Dropout on the embeddings, each part's output, inside the feed-forward, and before the softmax; never on what
    passes from state to state."""
    target_length: int = 512
    """Positions of a training segment, a whole number of blocks; the model itself takes any length."""
    window: int = 512
    """Positions that each position sees: itself and those before it."""
    block: int = 128
    """Positions after which the states are written anew; in the paper as many as the window has."""
    states: int = 512
    """State vectors."""
    recurrent_layer: int | None = None
    """The layer with the states, counted from 1; None: five sixths of the way up, as the paper's 10th of 12."""
    gate: Literal["fixed", "lstm"] = "fixed"
    """How states are written: with a learned share of the old, always the same, or with an LSTM's gates."""
    skip: bool = True
    """Leave out the states' feed-forward part and its gate, the paper's best cell; False has both."""
    rsa: RSAConfig | None = None
    """Adds recurrence to the window attention of every layer, cut at the window; None is the plain model."""

    def __post_init__(self) -> None:
        for name in ("vocabulary", "layers", "width", "heads", "inner", "block", "states"):
            if getattr(self, name) < 1:
                raise UserError(f"`{name}` must be at least 1: got {getattr(self, name)}.")
        self.settle_head_width()
        if self.window < 2:
            raise UserError(f"`window` must be at least 2, or nobody sees a neighbour: got {self.window}.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"`dropout` must be at least 0 and below 1: got {self.dropout}.")
        if self.target_length < 2 * self.block or self.target_length % self.block != 0:
            raise UserError(
                f"`target_length`, a run's --length, must be a whole number of blocks, at least two, or the states "
                f"never learn what to write: got target_length={self.target_length}, block={self.block}; "
                f"{self._ways_out()}."
            )
        if self.recurrent_layer is not None and not 1 <= self.recurrent_layer <= self.layers:
            raise UserError(
                f"`recurrent_layer` must be one of the layers: got recurrent_layer={self.recurrent_layer}, "
                f"layers={self.layers}."
            )
        if self.gate not in ("fixed", "lstm"):
            raise UserError(f"`gate` must be fixed or lstm: got {self.gate!r}.")
        if self.rsa is not None and self.rsa.heads != self.heads:
            raise UserError(
                f"the heads of `rsa` must be those of the model: got rsa.heads={self.rsa.heads}, heads={self.heads}."
            )

    def _ways_out(self) -> str:
        """Other lengths or blocks that go together, for a run's command line."""
        longer = self.block * max(2, math.ceil(self.target_length / self.block))
        half, odd = divmod(self.target_length, 2)
        return f"give --length {longer}" + ("" if odd or half < 1 else f" or --set block={half}")

    @property
    def recurrence(self) -> RSAConfig | None:
        """`rsa`, cut where the window ends."""
        if self.rsa is None:
            return None
        span = self.window - 1
        return replace(self.rsa, truncation=min(span, self.rsa.truncation or span))

    @property
    def recurrent_index(self) -> int:
        """The recurrent layer, counted from 0."""
        return (self.recurrent_layer or max(1, round(self.layers * 5 / 6))) - 1


class BlockRecurrentState(NamedTuple):
    """What a segment leaves for the next one, without gradient."""

    memory: Tensor
    """(L, 2, B, H, M, D): the last keys and values of every layer, M at most the window."""
    states: Tensor
    """(B, S, W): the state vectors, written after the last whole block."""
    pending: Tensor
    """(2, B, H, P, D): the recurrent layer's keys and values of an unfinished block; P is 0 after whole ones."""


class BlockRecurrentOutput(NamedTuple):
    logits: Tensor
    """(B, Q, V)."""
    state: BlockRecurrentState


def _split_heads(joined: Tensor, head_width: int) -> Tensor:
    return joined.unflatten(-1, (-1, head_width)).transpose(1, 2)


def _join_heads(split_BHQD: Tensor) -> Tensor:
    return split_BHQD.transpose(1, 2).flatten(2)


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
        """(H, K): for the distances K − 1, …, 0; those outside the window have none, which is 0."""
        # A product, not a look-up: thousands of pairs share a bucket, and their gradients would be added one by one.
        return functional.pad(BIAS_PACE * self.table @ self.one_hot, (0, keys - self.window)).flip(1)

    def forward(self, queries: int, dtype: torch.dtype) -> Tensor:
        """(H, Q, window + Q): the mask for queries that have a whole window of keys before them."""
        keys = self.window + queries
        by_distance = self.by_distance(keys)
        # Columns of falling distance become columns of keys: one column of padding, and a mere change of shape moves
        # every row by its own amount. What slides in from the neighbouring rows lies in the future, which is masked.
        rows = functional.pad(by_distance[:, None].expand(-1, queries, -1), (1, 0))
        by_key = rows.reshape(-1, keys + 1, queries)[:, 1:].reshape(-1, queries, keys)
        query = torch.arange(self.window, keys, device=rows.device)[:, None]
        distance = query - torch.arange(keys, device=rows.device)
        outside = (distance < 0) | (distance >= self.window)
        return by_key.masked_fill(outside, -math.inf).to(dtype)


def distance_bucket(distance: int) -> int:
    """Which bias a distance has: its own at first, then logarithmically fewer."""
    exact = DISTANCE_BUCKETS // 2
    if distance < exact:
        return distance
    share = math.log(distance / exact) / math.log(LAST_BUCKET_DISTANCE / exact)
    return min(DISTANCE_BUCKETS - 1, exact + int(share * (DISTANCE_BUCKETS - exact)))


class WindowAttention(nn.Module):
    """Attention of each position to the window that ends with it, with recurrence where that is configured."""

    def __init__(self, config: BlockRecurrentConfig) -> None:
        super().__init__()
        self.window, self.head_width = config.window, config.each_head
        self.projection = nn.Linear(config.width, 3 * config.all_heads, bias=False)
        self.bias = DistanceBias(config)
        self.encoding = None if config.recurrence is None else RecurrenceEncoding(config.recurrence)

    def forward(self, normed_BQW: Tensor, past_2BHMD: Tensor) -> tuple[Tensor, Tensor]:
        """What the heads saw (B, H, Q, D), and the segment's own keys and values (2, B, H, Q, D)."""
        parts = self.projection(normed_BQW).unflatten(-1, (3, -1, self.head_width)).permute(2, 0, 3, 1, 4)
        query_BHQD, fresh_2BHQD = parts[0], parts[1:]
        seen_2BHKD = torch.cat([past_2BHMD.to(fresh_2BHQD.dtype), fresh_2BHQD], dim=3)
        attended_BHQD = self._in_windows(query_BHQD, seen_2BHKD)
        if self.encoding is not None:
            attended_BHQD = mix_recurrence(attended_BHQD, seen_2BHKD[1], self.encoding, causal=True).output
        return attended_BHQD, fresh_2BHQD

    def _in_windows(self, query_BHQD: Tensor, seen_2BHKD: Tensor) -> Tensor:
        """As many queries at once as a window has, or cost would grow with the square of the segment."""
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
        """Of the last keys each is a query's own. Without a mask, by the fused kernel."""
        queries, keys = query.shape[2], key.shape[2]
        if mask is None:
            # Scaled down again with the products of queries and keys.
            bias_HK = self.bias.by_distance(keys) * math.sqrt(self.head_width)
            return relative_attention(query, bias_HK[None, :, None], key, value, span=self.window)
        # The mask depends on distances alone, so that for fewer queries or keys it is a part of the whole.
        seen_mask = mask[:, :queries, self.window + queries - keys : self.window + queries]
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=seen_mask[None])


class FeedForward(nn.Module):
    def __init__(self, config: BlockRecurrentConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.inner = nn.Linear(config.width, config.inner)
        self.output = nn.Linear(config.inner, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_BQW: Tensor) -> Tensor:
        inner = self.dropout(torch.relu(self.inner(self.norm(hidden_BQW))))
        return hidden_BQW + self.dropout(self.output(inner))


class WindowLayer(nn.Module):
    """A transformer layer with normalisation in front of each part."""

    def __init__(self, config: BlockRecurrentConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.attention = WindowAttention(config)
        self.output = nn.Linear(config.all_heads, config.width, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.feed_forward = FeedForward(config)

    def forward(self, hidden_BQW: Tensor, past_2BHMD: Tensor) -> tuple[Tensor, Tensor]:
        attended_BHQD, fresh_2BHQD = self.attention(self.norm(hidden_BQW), past_2BHMD)
        hidden_BQW = hidden_BQW + self.dropout(self.output(_join_heads(attended_BHQD)))
        return self.feed_forward(hidden_BQW), fresh_2BHQD


class Gate(nn.Module):
    """Writes the states: z = W x + b, then g · state + (1 − g) · z with a learned g for each channel ("fixed"), or
    f · state + i · tanh z with forget and input gates that depend on x ("lstm")."""

    def __init__(self, kind: str, inputs: int, width: int) -> None:
        super().__init__()
        self.candidate = nn.Linear(inputs, width)
        self.logit = nn.Parameter(torch.empty(width)) if kind == "fixed" else None
        self.input_forget = nn.Linear(inputs, 2 * width) if kind == "lstm" else None

    def forward(self, states_BSW: Tensor, inputs: Tensor) -> Tensor:
        candidate_BSW = self.candidate(inputs)
        if self.input_forget is None:
            assert self.logit is not None
            return torch.lerp(candidate_BSW.to(states_BSW.dtype), states_BSW, torch.sigmoid(self.logit))
        let_in, keep = self.input_forget(inputs).chunk(2, dim=-1)
        # Biased to remember, as in the paper.
        return torch.sigmoid(keep + 1) * states_BSW + torch.sigmoid(let_in - 1) * torch.tanh(candidate_BSW)


class StateCell(nn.Module):
    """The horizontal direction: from one block's states to the next one's."""

    def __init__(self, config: BlockRecurrentConfig) -> None:
        super().__init__()
        self.head_width = config.each_head
        inside = config.all_heads
        # Without names of their own all states would start alike and stay so.
        self.ids = nn.Parameter(torch.empty(config.states, config.width))
        self.norm = nn.LayerNorm(config.width)
        self.key_value = nn.Linear(config.width, 2 * inside, bias=False)
        self.queries = nn.Linear(config.width, 2 * inside, bias=False)
        self.attention_gate = Gate(config.gate, 2 * inside, config.width)
        self.inner_norm = None if config.skip else nn.LayerNorm(config.width)
        self.inner = None if config.skip else nn.Linear(config.width, config.inner)
        self.inner_gate = None if config.skip else Gate(config.gate, config.inner, config.width)

    def named(self, states_BSW: Tensor) -> Tensor:
        """The states, normalised and told apart."""
        return self.norm(states_BSW) + self.ids

    def keys_values(self, named_BSW: Tensor) -> tuple[Tensor, Tensor]:
        """What tokens and states see of the states, each (B, H, S, D)."""
        key, value = self.key_value(named_BSW).chunk(2, dim=-1)
        return _split_heads(key, self.head_width), _split_heads(value, self.head_width)

    def forward(self, states_BSW: Tensor, named_BSW: Tensor, own: tuple[Tensor, Tensor], block_2BHND: Tensor) -> Tensor:
        """The next states, from the states, what is seen of them, and the keys and values of a block of tokens."""
        own_query, block_query = (
            _split_heads(part, self.head_width) for part in self.queries(named_BSW).chunk(2, dim=-1)
        )
        from_states = functional.scaled_dot_product_attention(own_query, *own)
        from_tokens = functional.scaled_dot_product_attention(block_query, block_2BHND[0], block_2BHND[1])
        seen = torch.cat([_join_heads(from_states), _join_heads(from_tokens)], dim=-1)
        states_BSW = self.attention_gate(states_BSW, seen)
        if self.inner_gate is None:
            return states_BSW
        assert self.inner_norm is not None
        assert self.inner is not None
        return self.inner_gate(states_BSW, torch.relu(self.inner(self.inner_norm(states_BSW))))


class RecurrentLayer(nn.Module):
    """A window layer whose tokens read the states as well, and write them after each block."""

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
        self.feed_forward = FeedForward(config)

    def forward(
        self, hidden_BQW: Tensor, past_2BHMD: Tensor, states_BSW: Tensor, pending_2BHPD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The layer's output, the segment's keys and values, the next states, and the unfinished block."""
        normed_BQW = self.norm(hidden_BQW)
        attended_BHQD, fresh_2BHQD = self.attention(normed_BQW, past_2BHMD)
        query_BHQD = _split_heads(self.state_query(normed_BQW), self.head_width)
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
        both = torch.cat([_join_heads(attended_BHQD), _join_heads(torch.cat(read, dim=2))], dim=-1)
        hidden_BQW = hidden_BQW + self.dropout(self.output(both))
        return self.feed_forward(hidden_BQW), fresh_2BHQD, states_BSW, pending_2BHPD


class BlockRecurrentTransformer(nn.Module):
    """Symbols in, scores for each next symbol out; the softmax shares its weights with the embedding."""

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
        self.apply(_start_weights)

    def first_state(self, batch: int) -> BlockRecurrentState:
        """The state of those who have read nothing: no memory, and states of zeros, told apart by their ids alone."""
        config, weight = self.config, self.embedding.weight
        nothing = (2, batch, config.heads, 0, config.each_head)
        return BlockRecurrentState(
            memory=weight.new_empty(config.layers, *nothing),
            states=weight.new_zeros(batch, config.states, config.width),
            pending=weight.new_empty(nothing),
        )

    def forward(self, ids_BQ: Tensor, state: BlockRecurrentState | None = None) -> BlockRecurrentOutput:
        batch = ids_BQ.shape[0]
        memory_L2BHMD, states_BSW, pending_2BHPD = self.first_state(batch) if state is None else state
        if memory_L2BHMD.shape[:3] != (self.config.layers, 2, batch):
            raise UserError(
                f"the state must hold {self.config.layers} layers of a batch of {batch}: "
                f"got memory of shape {tuple(memory_L2BHMD.shape)}."
            )
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
        return BlockRecurrentOutput(logits_BQV, left)

    def _keep(self, past_2BHMD: Tensor, fresh_2BHQD: Tensor) -> Tensor:
        seen_2BHKD = torch.cat([past_2BHMD.to(fresh_2BHQD.dtype), fresh_2BHQD], dim=3)
        return seen_2BHKD[..., max(0, seen_2BHKD.shape[3] - self.config.window) :, :]


def _start_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=START_SPREAD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, DistanceBias):
        nn.init.normal_(module.table, std=START_SPREAD)
    if isinstance(module, StateCell):
        # As large as the normalised states that they are added to, or the names would drown.
        nn.init.normal_(module.ids)
    if isinstance(module, Gate) and module.logit is not None:
        nn.init.normal_(module.logit, std=GATE_SPREAD)

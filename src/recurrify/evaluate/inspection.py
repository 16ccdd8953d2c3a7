"""How a recurrent model reads one text: losses, state norms, attention to the memory, and gradients through it.

Everything here reads a single text in the model's own windows. Shapes: N tokens, W windows, T positions of a window, K
windows back, H heads.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from recurrify.data.corpora import find_corpus
from recurrify.data.documents import load_documents
from recurrify.data.records import Document
from recurrify.data.texts import Say, pick_device
from recurrify.data.tokens import TokenizedDocument, checksum
from recurrify.errors import UserError
from recurrify.evaluate.flops import memory_cost
from recurrify.evaluate.perplexity import (
    BatchRow,
    check_counts,
    check_finite,
    evaluation_mode,
    read_batch,
    read_in_parallel,
    scoring,
)
from recurrify.mechanisms.config import NoRecurrence
from recurrify.modeling.heads import RecurrentForCausalLM, add_recurrence
from recurrify.modeling.loading import load_model
from recurrify.modeling.model import RecurrentOutput
from recurrify.results import provenance
from recurrify.state import State
from recurrify.windows import schedule

REACH = 8
"""The number of windows back that gradients are followed."""
STARTS = 16
"""The most windows whose losses are differentiated."""
PLACES = 16
"""Parts of a memory that attention is shown for."""


CHUNK = 512
"""Tokens of a full context that are read at once."""


@dataclass(frozen=True)
class Reading:
    """One pass over a text."""

    losses: np.ndarray
    """(N − 1,) float64: of predicting each token but the first."""
    norms: list[float]
    """Of the memory after each full window; empty without memory."""
    changes: list[float | None]
    """The norm of the change since the window before; None for the first."""


@dataclass(frozen=True)
class SlotAttention:
    """The share of attention that a window's tokens give to the memory."""

    layers: list[int]
    """The layers that see slots, counted from 0."""
    slots: list[int]
    """The number of slots in each of these layers."""
    windows: int
    """The number of windows with a memory: all but the first."""
    mass: np.ndarray
    """(layers, T): the mean over these windows and all heads; NaN at positions that no such window has."""
    by_token: np.ndarray
    """(N − 1, layers): the share of the memory at the position before each token; NaN in the first window."""
    places: np.ndarray
    """(N − 1, at most 16): the same share by place in the memory, oldest first, mean over the layers that see most."""


@dataclass(frozen=True)
class GradientProfile:
    """How strongly a window's loss depends on the inputs of the windows before it."""

    windows: list[int]
    """The windows whose losses were taken, counted from 0."""
    norms: np.ndarray
    """(windows, K + 1) float64: column k is the norm of d mean loss / d input embeddings of the window k before."""


def read_text(
    model: RecurrentForCausalLM, text: TokenizedDocument, advance: Callable[[int], None] = lambda tokens: None
) -> Reading:
    """The loss of every token, as `evaluate_documents` scores it, and the memory's size after every window; `advance`
    is called with the tokens of each window."""
    losses: list[np.ndarray] = []
    norms: list[float] = []
    changes: list[float | None] = []

    def see(row: BatchRow, before: State, output: RecurrentOutput) -> None:
        assert output.token_losses is not None
        assert output.state is not None
        found = output.token_losses[0].cpu().double().numpy()
        check_finite(found, text, row.start, "loss")
        losses.append(found)
        advance(len(found))
        old, new = before.memory, output.state.memory
        if new is not None and new is not old:
            norms.append(_norm(new))
            changes.append(None if old is None else _norm(new - old))

    with scoring(model, [text], None, None, bf16=False) as reader:
        _each_window(reader, text, see)
    return Reading(np.concatenate(losses), norms, changes)


@torch.inference_mode()
def full_context_losses(base: Any, ids: np.ndarray, advance: Callable[[int], None] = lambda tokens: None) -> np.ndarray:
    """(N − 1,) float64: the loss of each token but the first, given all tokens before it.

    The base reads chunks with its own cache: the logits of a whole text would take gigabytes.
    """
    tokens = torch.as_tensor(ids, dtype=torch.long, device=base.device)[None]
    cache, losses = None, []
    with evaluation_mode(base):
        for first in range(0, len(ids) - 1, CHUNK):
            stop = min(first + CHUNK, len(ids) - 1)
            output = base(tokens[:, first:stop], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            losses.append(cross_entropy(output.logits[0].float(), tokens[0, first + 1 : stop + 1], reduction="none"))
            advance(stop - first)
    return torch.cat(losses).double().cpu().numpy()


def slot_attention(model: RecurrentForCausalLM, text: TokenizedDocument) -> SlotAttention | None:
    """Attention to the slots or kept keys by layer and position; None without them, or for a text of one window."""
    mechanism = model.mechanism
    slots = {} if mechanism is None else mechanism.slots()
    if mechanism is None or not slots:
        return None
    layers = sorted(slots)
    sums, counts = np.zeros((len(layers), model.recurrence.window)), np.zeros(model.recurrence.window, dtype=np.int64)
    most = max(slots.values())
    parts = np.arange(most) * min(PLACES, most) // most
    by_token = np.full((len(text.ids) - 1, len(layers)), np.nan)
    places = np.full((len(text.ids) - 1, parts[-1] + 1), np.nan)

    def see(row: BatchRow, before: State, output: RecurrentOutput) -> None:
        if not bool(before.live[0]):
            return
        length = int(before.lengths[0]) + row.stop - row.start
        behind = mechanism.inputs_behind if length == model.recurrence.window else 0
        new = slice(row.start, row.stop)
        spread = []
        for index, layer in enumerate(layers):
            first = 0 if mechanism.keys_only else slots[layer]
            shares = _shares(weights.get(layer), layer, slots[layer], first, length, behind)
            sums[index, :length] += shares.sum(-1)
            by_token[new, index] = shares[row.start - row.stop :].sum(-1)
            if slots[layer] == most:
                spread.append(shares[row.start - row.stop :])
        for part in range(places.shape[1]):
            places[new, part] = np.mean(spread, axis=0)[:, parts == part].sum(-1)
        counts[:length] += 1

    with scoring(model, [text], None, None, bf16=False) as reader, watched_attention(reader, layers) as weights:
        _each_window(reader, text, see)
    windows = int(counts[0])
    if not windows:
        return None
    mass = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    return SlotAttention(layers, [slots[layer] for layer in layers], windows, mass, by_token, places)


def _shares(weights: Tensor | None, layer: int, slots: int, first: int, length: int, behind: int) -> np.ndarray:
    """(length, slots): what the window's tokens, queries from `first` on, give to each of the keys in front."""
    if weights is None or weights.shape[2:] != (first + length + behind, slots + length + behind):
        raise UserError(f"Layer {layer + 1} does not show its attention: this model cannot be inspected.")
    return weights[0, :, first : first + length, :slots].double().mean(0).cpu().numpy()


@contextmanager
def watched_attention(model: RecurrentForCausalLM, layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """The attention weights (rows, H, queries, keys) of each of these layers' last run.

    Fused attention does not return them, so the base uses eager attention meanwhile.
    """
    seen: dict[int, Tensor] = {}

    def keep(module: nn.Module, args: Any, output: Any, layer: int) -> None:
        if isinstance(output, tuple) and len(output) > 1 and isinstance(output[1], Tensor):
            seen[layer] = output[1].detach()

    own = model.base.config._attn_implementation
    hooks = [
        module.register_forward_hook(partial(keep, layer=layer))
        for layer in layers
        for module in model.family.layers_of(model.base)[layer].modules()
        if type(module).__name__.endswith("Attention")
    ]
    model.base.set_attn_implementation("eager")
    try:
        yield seen
    finally:
        model.base.set_attn_implementation(own)
        for hook in hooks:
            hook.remove()


def gradient_profile(
    model: RecurrentForCausalLM, text: TokenizedDocument, reach: int = REACH, starts: int = STARTS
) -> GradientProfile:
    """Norms of the gradients of windows' losses at the input embeddings of up to `reach` windows before.

    The losses are those of the first `starts` windows that have `reach` windows before them. Overlapping windows embed
    a token separately, so gradients of earlier windows come through the memory alone. Gradients pass through all
    windows, even if the model is trained with truncated backpropagation.
    """
    check_counts(reach=reach, starts=starts)
    recurrence = model.recurrence
    spans = schedule(len(text.ids) - 1, recurrence.window, recurrence.overlap)
    reach = min(reach, len(spans) - 1)
    spans = spans[: reach + starts]
    embedded: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    ids = torch.as_tensor(text.ids[: spans[-1].stop + 1], dtype=torch.long, device=model.device)[None]
    hook = model.get_input_embeddings().register_forward_hook(keep)
    # A checkpointed window would be embedded again in the backward pass, and windows in parallel together.
    model.set_recurrence(checkpoint=False, bptt_windows=None)
    model.tokens_at_once, at_once = 0, model.tokens_at_once
    try:
        with evaluation_mode(model), torch.enable_grad():
            output = model(ids[:, :-1], targets=ids[:, 1:], return_logits=False, return_losses=True)
    finally:
        hook.remove()
        model.tokens_at_once = at_once
        model.set_recurrence(checkpoint=recurrence.checkpoint, bptt_windows=recurrence.bptt_windows)
    ends = list(range(reach, len(spans)))
    norms = np.zeros((len(ends), reach + 1))
    for row, end in enumerate(ends):
        loss = output.token_losses[0, spans[end].first : spans[end].stop].mean()
        inputs = embedded[end - reach : end + 1][::-1]
        found = torch.autograd.grad(loss, inputs, retain_graph=end != ends[-1], allow_unused=True)
        norms[row] = [0.0 if gradient is None else _norm(gradient) for gradient in found]
    return GradientProfile(ends, norms)


def _each_window(
    model: RecurrentForCausalLM, text: TokenizedDocument, see: Callable[[BatchRow, State, RecurrentOutput], None]
) -> None:
    """Read the text window by window; `see` gets the row with the new inputs, the state before it and the output."""

    def read(batch_rows: Sequence[BatchRow], state: State) -> State:
        output = read_batch(model, batch_rows, state)
        see(batch_rows[0], state, output)
        assert output.state is not None
        return output.state

    read_in_parallel(model, [text], read, rows=1, windows_per_call=1, progress=None)


def _norm(values: Tensor) -> float:
    return float(values.detach().double().norm())


# ---- the result behind a page ----------------------------------------------------------------------------


class TextChoice(NamedTuple):
    """Which text to read."""

    source: str
    """A file, a folder or a data source."""
    split: str | None = None
    """None: all of a file or folder, and the test split of anything else."""
    text_field: str = "text"
    document: int = 1
    """Which of its documents, counted from 1."""
    tokens: int = 3000
    """The most tokens to read."""


def inspect_text(
    name: str,
    choice: TextChoice,
    say: Say,
    plain: str | None = None,
    reach: int = REACH,
    device: str = "auto",
    compare: Sequence[str] = (),
) -> dict[str, Any]:
    """The data of an inspection page: losses, attention, gradients and states of a model on one text.

    Args:
        name: The model with memory.
        choice: The text.
        say: Called with progress messages.
        plain: A model without memory to compare with, in the same windows; by default the same base.
        reach: The number of windows back that gradients are followed.
        device: auto, cpu, cuda or cuda:N.
        compare: More models, with or without memory, whose losses the page offers for comparison.
    """
    started = time.time()
    where = pick_device(device)
    model, tokenizer = load_model(name)
    if model.mechanism is None:
        raise UserError(
            f"{name!r} has no memory to inspect: give a recurrent model, such as shipped:recurrent or a run of "
            "`recurrify train`; a model without memory goes to --plain."
        )
    document = _choose(choice)
    text, pieces = text_pieces(document, tokenizer, choice.tokens)
    twin = _plain(model, document, text, plain, choice.tokens)
    others = {one: _of_same_tokens(one, document, text, choice.tokens) for one in compare}
    first = "the first " if len(text.ids) == choice.tokens else ""
    say(f"{document.name}: {first}{len(text.ids):,} tokens, windows of {model.recurrence.window}")
    cost = memory_cost(model)
    say(str(cost))
    model, twin = model.to(where), twin.to(where)
    reading, other = read_text(model, text), read_text(twin, text)
    full = _full_context(twin, text)
    say("losses computed; computing attention and gradients")
    more = {one: [None, *read_text(other.to(where), text).losses.tolist()] for one, other in others.items()}
    config = {
        "model": name,
        "plain": plain,
        "compare": compare,
        "device": where.type,
        "reach": reach,
        **choice._asdict(),
    }
    return {
        "kind": "inspection",
        "model": name,
        "plain": plain,
        "mechanism": model.recurrence.mechanism,
        "recurrence": model.recurrence.to_dict(),
        "memory": cost._asdict(),
        "document": document.name,
        "tokens": {
            "text": pieces,
            "plain": [None, *other.losses.tolist()],
            "recurrent": [None, *reading.losses.tolist()],
            **more,
            **({} if full is None else {"full context": [None, *full.tolist()]}),
        },
        "windows": _window_rows(model, reading, other),
        "slot_attention": _attention_row(slot_attention(model, text)),
        "gradients": _gradient_row(gradient_profile(model, text, reach)),
        "states": {"norm": reading.norms, "change": reading.changes},
        "provenance": provenance(config, data_checksum=checksum([document]), started=started),
    }


def _choose(choice: TextChoice) -> Document:
    split = choice.split
    if split is None:
        local = find_corpus(choice.source) is None and Path(choice.source).expanduser().exists()
        split = "all" if local else "test"
    documents = load_documents(choice.source, split, text_field=choice.text_field, limit=choice.document)
    if len(documents) < choice.document:
        raise UserError(
            f"{choice.source} ({split}) has only {len(documents)} document(s): "
            f"`document` must be 1 to {len(documents)}, got {choice.document}."
        )
    return documents[choice.document - 1]


def text_pieces(document: Document, tokenizer: Any, most: int | None = None) -> tuple[TokenizedDocument, list[str]]:
    """The document's first tokens, and the part of its text that each of them stands for."""
    fast = bool(tokenizer.is_fast)
    encoded = tokenizer(document.text, add_special_tokens=False, return_offsets_mapping=fast, verbose=False)
    ids = encoded["input_ids"][:most]
    if len(ids) < 2:
        raise UserError(f"{document.name!r} gives {len(ids)} token(s), too few to predict any: give a longer text.")
    pieces: list[str] = []
    if fast:
        # Each piece begins where the token before ends, so that blanks without a token are kept. A character of several
        # tokens is shown with the first.
        done = 0
        for _, stop in encoded["offset_mapping"][:most]:
            pieces.append(document.text[done:stop])
            done = max(done, stop)
    else:
        pieces = [tokenizer.decode([token], clean_up_tokenization_spaces=False) for token in ids]
    return TokenizedDocument(document.name, np.asarray(ids)), pieces


def _plain(
    model: RecurrentForCausalLM, document: Document, text: TokenizedDocument, name: str | None, most: int
) -> RecurrentForCausalLM:
    window, overlap = model.recurrence.window, model.recurrence.overlap
    if name is None:
        return add_recurrence(model.base, NoRecurrence(window=window, overlap=overlap))
    twin = _of_same_tokens(name, document, text, most)
    if twin.mechanism is not None:
        raise UserError(
            f"`--plain` is for a model without memory, but {name!r} has {twin.recurrence.mechanism!r}: "
            "name one trained with --mechanism none, or a base model."
        )
    twin.set_recurrence(window=window, overlap=overlap)
    return twin


def _of_same_tokens(name: str, document: Document, text: TokenizedDocument, most: int) -> RecurrentForCausalLM:
    model, tokenizer = load_model(name)
    if not np.array_equal(text_pieces(document, tokenizer, most)[0].ids, text.ids):
        raise UserError(
            f"{name!r} cuts the text into other tokens than the recurrent model: name a model with the same tokenizer."
        )
    return model


def _full_context(plain: RecurrentForCausalLM, text: TokenizedDocument) -> np.ndarray | None:
    """Losses of the base in windows as long as its positions and the text allow; None where these are the memory's."""
    positions = getattr(plain.base.config, "max_position_embeddings", None) or 0
    window = min(positions, len(text.ids) - 1)
    if window <= plain.recurrence.window:
        return None
    if window == len(text.ids) - 1:
        return full_context_losses(plain.base, text.ids)
    return read_text(add_recurrence(plain.base, NoRecurrence(window=window)), text).losses


def _window_rows(model: RecurrentForCausalLM, recurrent: Reading, plain: Reading) -> list[dict[str, Any]]:
    """For each window the tokens that it predicts, and both models' mean loss of them."""
    spans = schedule(len(recurrent.losses), model.recurrence.window, model.recurrence.overlap)
    return [
        {
            "first": span.first + 1,
            "stop": span.stop + 1,
            "plain": float(plain.losses[span.first : span.stop].mean()),
            "recurrent": float(recurrent.losses[span.first : span.stop].mean()),
        }
        for span in spans
    ]


def _attention_row(found: SlotAttention | None) -> dict[str, Any] | None:
    if found is None:
        return None
    layers = [layer + 1 for layer in found.layers]
    return {
        "layers": layers,
        "slots": found.slots,
        "windows": found.windows,
        "mass": found.mass.tolist(),
        "by_token": [None, *found.by_token.round(4).tolist()],
        "places": [None, *found.places.round(4).tolist()],
    }


def _gradient_row(found: GradientProfile) -> dict[str, Any]:
    windows = [window + 1 for window in found.windows]
    return {"windows": windows, "norms": found.norms.tolist(), "mean": found.norms.mean(0).tolist()}

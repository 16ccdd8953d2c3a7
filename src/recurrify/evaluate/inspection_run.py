"""A text as a recurrent model and a plain one read it: everything that the page of `recurrify inspect` shows."""

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recurrify.data.documents import CORPORA, load_documents
from recurrify.data.records import Document
from recurrify.data.texts import Say, pick_device
from recurrify.data.tokens import checksum
from recurrify.errors import UserError
from recurrify.evaluate.flops import memory_cost
from recurrify.evaluate.inspection import (
    REACH,
    GradientProfile,
    Reading,
    SlotAttention,
    Text,
    gradient_profile,
    read_text,
    slot_attention,
)
from recurrify.mechanisms.base import NoRecurrence
from recurrify.modeling.heads import RecurrentForCausalLM, add_recurrence
from recurrify.modeling.loading import load_model
from recurrify.results import provenance
from recurrify.windows import schedule


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
    """Read at most so many tokens."""


def inspect_text(
    name: str, choice: TextChoice, say: Say, plain: str | None = None, reach: int = REACH, device: str = "auto"
) -> dict[str, Any]:
    """The result behind a page: losses, attention, gradients and states of the model `name` on the chosen text.

    `plain` names a model without memory to hold it against, in the same windows; None takes the same base.
    """
    started = time.time()
    where = pick_device(device)
    model, tokenizer = load_model(name)
    if model.mechanism is None:
        raise UserError(
            f"{name!r} has no memory that could be shown: name a recurrent model, such as shipped:recurrent or a run "
            "of `recurrify train`; one without memory is for --plain."
        )
    document = _choose(choice)
    text, pieces = _tokens(document, tokenizer, choice.tokens)
    twin = _plain(model, document, text, plain, choice.tokens)
    say(f"{document.name}: {len(text.ids):,} tokens, windows of {model.recurrence.window}")
    cost = memory_cost(model)
    say(str(cost))
    model, twin = model.to(where), twin.to(where)
    reading, other = read_text(model, text), read_text(twin, text)
    full = _in_full_context(twin, text)
    say("losses read; now attention and gradients")
    config = {"model": name, "plain": plain, "device": where.type, "reach": reach, **choice._asdict()}
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
            **({} if full is None else {"full context": [None, *full.losses.tolist()]}),
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
        local = choice.source not in CORPORA and Path(choice.source).expanduser().exists()
        split = "all" if local else "test"
    documents = load_documents(choice.source, split, text_field=choice.text_field, limit=choice.document)
    if len(documents) < choice.document:
        raise UserError(
            f"{choice.source} ({split}) has only {len(documents)} document(s): "
            f"`document` must be 1 to {len(documents)}, got {choice.document}."
        )
    return documents[choice.document - 1]


def _tokens(document: Document, tokenizer: Any, most: int) -> tuple[Text, list[str]]:
    """The document's first tokens, and the part of its text that each of them adds."""
    fast = bool(tokenizer.is_fast)
    encoded = tokenizer(document.text, add_special_tokens=False, return_offsets_mapping=fast, verbose=False)
    ids = encoded["input_ids"][:most]
    if len(ids) < 2:
        raise UserError(f"{document.name!r} gives {len(ids)} token(s), too few to predict any: give a longer text.")
    pieces: list[str] = []
    if fast:
        # From the end of the token before, so that blanks that belong to no token are not lost. A character of several
        # tokens is shown with the first of them.
        done = 0
        for _, stop in encoded["offset_mapping"][:most]:
            pieces.append(document.text[done:stop])
            done = max(done, stop)
    else:
        pieces = [tokenizer.decode([token], clean_up_tokenization_spaces=False) for token in ids]
    return Text(document.name, np.asarray(ids)), pieces


def _plain(
    model: RecurrentForCausalLM, document: Document, text: Text, name: str | None, most: int
) -> RecurrentForCausalLM:
    window, overlap = model.recurrence.window, model.recurrence.overlap
    if name is None:
        return add_recurrence(model.base, NoRecurrence(window=window, overlap=overlap))
    twin, tokenizer = load_model(name)
    if twin.mechanism is not None:
        raise UserError(
            f"`--plain` is for a model without memory, but {name!r} has {twin.recurrence.mechanism!r}: "
            "name one trained with --mechanism none, or a base model."
        )
    if not np.array_equal(_tokens(document, tokenizer, most)[0].ids, text.ids):
        raise UserError(
            f"{name!r} cuts the text into other tokens than the recurrent model: name a model with the same tokenizer."
        )
    twin.set_recurrence(window=window, overlap=overlap)
    return twin


def _in_full_context(plain: RecurrentForCausalLM, text: Text) -> Reading | None:
    """The base in windows as long as its positions and the text allow; None where these are the memory's windows."""
    positions = getattr(plain.base.config, "max_position_embeddings", None) or 0
    window = min(positions, len(text.ids) - 1)
    if window <= plain.recurrence.window:
        return None
    return read_text(add_recurrence(plain.base, NoRecurrence(window=window)), text)


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

"""What models write after a context they can only remember: greedy continuations in a fresh window."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from recurrify import UserError
from recurrify.data import TokenizedDocument, pick_device, read_text
from recurrify.evaluate import as_recurrent, evaluation_mode, recurrence_settings
from recurrify.results import provenance
from recurrify_papers.finetune import trained_model
from recurrify_papers.runner import Say


class Context(NamedTuple):
    """A window of a document's tokens and the one token after them."""

    document: str
    start: int
    ids: np.ndarray
    """(window,)"""
    next_token: int
    """The true next token: every model begins its new window with it."""


def continuations_run(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any]:
    """Contexts of the validation books, and what a trained model writes after each."""
    model, tokenizer = trained_model(Path(settings["run"]))
    tokens, checksum = read_text(settings["data"], "valid", tokenizer, say)
    contexts = sample_contexts(tokens, settings["contexts"], window=settings["window"])
    say(f"{folder.name}: continuing {len(contexts)} contexts")
    ids = continue_contexts(model.to(pick_device()), contexts, settings["new_tokens"], batch=256)

    def decode(tokens: Any) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    return {
        "kind": "continuations",
        "contexts": [decode(context.ids) for context in contexts],
        "first_tokens": [decode([context.next_token]) for context in contexts],
        "continuations": [decode(row) for row in ids],
        "provenance": provenance(settings, data_checksum=checksum),
    }


def sample_contexts(
    documents: Sequence[TokenizedDocument], count: int, *, window: int = 300, seed: int = 0
) -> list[Context]:
    """`count` contexts of exactly `window` tokens, in random order.

    Each document is cut into contexts from a random token on, so that no token belongs to two of them; then `count` of
    all contexts are drawn.
    """
    random, taken = np.random.default_rng(seed), window + 1
    places: list[tuple[TokenizedDocument, int]] = []
    for document in documents:
        whole, rest = divmod(len(document.ids), taken)
        first = int(random.integers(rest + 1))
        places += [(document, first + number * taken) for number in range(whole)]
    if len(places) < count:
        raise UserError(
            f"{len(documents)} document(s) hold at most {len(places)} contexts of {window} + 1 tokens: "
            f"got count={count}; ask for fewer, or give more text."
        )
    chosen = (places[index] for index in random.permutation(len(places))[:count])
    return [
        Context(
            document.name, start, np.asarray(document.ids[start : start + window]), int(document.ids[start + window])
        )
        for document, start in chosen
    ]


def continue_contexts(
    model: PreTrainedModel, contexts: Sequence[Context], new_tokens: int = 30, batch: int = 64
) -> np.ndarray:
    """(contexts, new_tokens): what the model writes greedily after each context and the one true token after it.

    The context fills the model's first window and the overlap is 0: the new window begins with that one token. A
    recurrent model also has its memory of the context. (The paper gives its baseline one token and does not say whether
    the recurrent model got it too. Here both do, so that they differ in memory alone.)

    End-of-text tokens are never written, so every continuation has its full length.
    """
    window = len(contexts[0].ids)
    inputs = np.stack([np.append(context.ids, context.next_token) for context in contexts]).astype(np.int64)
    continuations = []
    with evaluation_mode(model):
        recurrent = as_recurrent(model, window, overlap=0)
        with recurrence_settings(recurrent, window, overlap=0):
            for start in range(0, len(inputs), batch):
                ids = torch.from_numpy(inputs[start : start + batch]).to(recurrent.device)
                written = recurrent.generate(
                    ids,
                    # Without it, real tokens that happen to be the padding token would be hidden.
                    attention_mask=torch.ones_like(ids),
                    do_sample=False,
                    num_beams=1,
                    # Some models have such penalties in their own settings.
                    repetition_penalty=1.0,
                    no_repeat_ngram_size=0,
                    min_new_tokens=new_tokens,
                    max_new_tokens=new_tokens,
                )
                continuations.append(written[:, window + 1 :].cpu().numpy())
    return np.concatenate(continuations)

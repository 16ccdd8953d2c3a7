"""Tokenizers for models trained from scratch: learned from the text, or those of another model."""

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import recurrify
from recurrify import UserError
from recurrify.data import Document

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

SHIPPED_PREFIX, SHIPPED_FOLDER = "shipped:", Path(recurrify.__file__).parent / "shipped"
SHIPPED = tuple(sorted(SHIPPED_PREFIX + path.parent.name for path in SHIPPED_FOLDER.glob("*/config.json")))
END_OF_TEXT = "<|endoftext|>"
SMALLEST_VOCABULARY = 257
"""Every byte and the end of a text: these can represent any text."""
PAD = "[PAD]"
MASKING_TOKENS = {"pad_token": PAD, "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
SENTINELS = 100
"""As many as T5 has."""

PIECE_CHARACTERS = 100_000
"""Words are counted in pieces of about this size, in parallel."""


def make_tokenizer(documents: Iterable[Document], vocabulary: int, objective: str = "clm") -> "PreTrainedTokenizerFast":
    """Learn a byte-level BPE tokenizer from the documents.

    Its special tokens are `<|endoftext|>` and those of the objective: [CLS], [SEP], [MASK] and [PAD] for mlm, sentinels
    for span. It has `vocabulary` tokens, or fewer if the text has no more pairs that occur twice.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    check_vocabulary_size(vocabulary, objective)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=[END_OF_TEXT, *_special_tokens(objective)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((piece for document in documents for piece in _pieces(document.text)), trainer)
    ends = {"eos_token": END_OF_TEXT, "bos_token": END_OF_TEXT, "pad_token": END_OF_TEXT}
    if objective == "mlm":
        edges = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=edges
        )
        names = ["input_ids", "token_type_ids", "attention_mask"]
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, model_input_names=names, **{**ends, **MASKING_TOKENS}
        )
    if objective == "span":
        sentinels = _special_tokens(objective)[1:]
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, additional_special_tokens=sentinels, **{**ends, "pad_token": PAD}
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ends)


def _special_tokens(objective: str) -> list[str]:
    """Special tokens of the objective, without the end of a text."""
    if objective == "mlm":
        return list(MASKING_TOKENS.values())
    return [PAD, *(f"<extra_id_{number}>" for number in range(SENTINELS))] if objective == "span" else []


def check_vocabulary_size(vocabulary: int, objective: str = "clm") -> None:
    """Raise a `UserError` if the vocabulary has no space for bytes and special tokens."""
    special = len(_special_tokens(objective))
    if vocabulary < SMALLEST_VOCABULARY + special:
        more = f" and {special} special tokens for {objective}" if special else ""
        raise UserError(
            f"`vocabulary` must be at least {SMALLEST_VOCABULARY + special}, the 256 bytes and the end of a text"
            f"{more}: got {vocabulary}."
        )


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces that begin with a blank if possible, so that word counts stay the same."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        blank = text.rfind(" ", start + 1, start + PIECE_CHARACTERS)
        stop = blank if blank > 0 else start + PIECE_CHARACTERS
        yield text[start:stop]
        start = stop
    yield text[start:]


def save_tokenizer(tokenizer: "PreTrainedTokenizerBase", folder: Path) -> None:
    """Save under a temporary name first, so that a killed process leaves no partial tokenizer."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        tokenizer.save_pretrained(temporary)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)
    except OSError as error:
        raise UserError(f"The tokenizer could not be written to {folder} ({error.strerror or error}).") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_tokenizer(name: str) -> "PreTrainedTokenizerBase":
    """The tokenizer of a folder, a run, a shipped model or a name on the hub; it must have an end-of-text or separator
    token."""
    from transformers import AutoTokenizer

    if name.startswith(SHIPPED_PREFIX) and name not in SHIPPED:
        raise UserError(f"There is no tokenizer {name!r}: shipped are {', '.join(SHIPPED)}.")
    path = SHIPPED_FOLDER / name.removeprefix(SHIPPED_PREFIX) if name in SHIPPED else Path(name).expanduser()
    if path.is_dir() and (path / "model" / "tokenizer_config.json").is_file():
        path = path / "model"
    if not path.is_dir() and (name.startswith((".", "~", "/")) or len(path.parts) > 2):
        raise UserError(f"There is no folder {name!r} with a tokenizer: check the path, or give a name on the hub.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path) if path.is_dir() else name, trust_remote_code=False)
    except Exception as error:  # transformers raises many types for damaged files
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(f"Could not load a tokenizer from {name!r}: {reason}.") from error
    # Without files, transformers creates some tokenizers with an empty vocabulary.
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise UserError(f"There is no tokenizer in {name!r}: give a folder that holds one, or a name on the hub.")
    if tokenizer.eos_token_id is None and tokenizer.sep_token_id is None:
        raise UserError(f"The tokenizer {name!r} has no end-of-text token (eos_token): choose another, or make one.")
    return tokenizer

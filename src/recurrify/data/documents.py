"""Documents from what the user names: a file, a folder, a corpus or a Hugging Face data set."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from recurrify.data.corpora import CORPORA, Corpus, corpus_names, find_corpus
from recurrify.data.files import UnreadableFileError, read_text_file, uncompressed_suffix
from recurrify.data.hub import stream_hub
from recurrify.data.records import Document, Skipped
from recurrify.data.splits import EVERYTHING, SPLIT_OF_NAME, Documents, canonical_split
from recurrify.data.tables import TABLES, MissingFieldError, is_data_set, is_table, read_table
from recurrify.errors import UserError

__all__ = ["CORPORA", "Corpus", "Document", "Skipped", "check_source", "load_documents", "stream_documents"]
OF_PAPERS = ("enwik8", "pg19", "text8", "wikitext-103")


def load_documents(
    source: str | os.PathLike[str],
    split: str = "train",
    *,
    text_field: str = "text",
    limit: int | None = None,
    skipped: list[Skipped] | None = None,
) -> list[Document]:
    """The documents of one split of a source, always in the same order.

    `source` is the first of these that fits:

    - a corpus by name, such as `stdlib` (a file of that name is `./stdlib`);
    - `hf:owner/name` or `hf:owner/name:config`, a Hugging Face data set; the prefix may be left out;
    - a folder written by `save_to_disk` of the `datasets` library;
    - a file of rows (`.csv`, `.tsv`, `.json`, `.jsonl`, `.parquet`): one document per row, from `text_field`;
    - any other file: one document of UTF-8 text. Text and rows of text may be compressed as `.gz` or `.xz`;
    - a folder: every file below it except hidden ones, in the order of their paths.

    A source's own splits are used: those of a data set, or of a folder in which at least two of the three splits have a
    sub-folder (`train/`) or a file (`train.jsonl`). Any other source is split 90/5/5: files by a hash of their names,
    rows by a hash of their texts, so that the same rows split alike in every container. One or two documents are each
    cut by position.

    Args:
        source: Where the text is.
        split: `train`, `valid` (or `validation`, `val`, `dev`), `test`, or `all`.
        text_field: The field of a row that holds its text.
        limit: Keep the first documents of the split only.
        skipped: A list to which files without text and empty rows are appended.

    Raises:
        UserError: The source does not exist, is malformed, or has no text in this split.
    """
    source = os.fspath(source)
    split = canonical_split(split)
    skipped = [] if skipped is None else skipped
    if limit is not None and limit < 1:
        raise UserError(f"`limit` must be at least 1 document, or None for all of them: got limit={limit}.")
    documents = list(islice(_open(source, split, text_field, limit, skipped), limit))
    if not documents:
        raise _no_text(source, split)
    return documents


def stream_documents(
    source: str | os.PathLike[str], split: str = "train", *, text_field: str = "text", skipped: list[Skipped]
) -> Iterable[Document]:
    """As `load_documents`, but each iteration reads the source again, one document at a time.

    Only corpora by name are held in memory, unless they are data sets.
    """
    source, split = os.fspath(source), canonical_split(split)
    documents = _open(source, split, text_field, None, skipped)
    if next(iter(documents), None) is None:
        raise _no_text(source, split)
    return documents


def _no_text(source: str, split: str) -> UserError:
    return UserError(f"{source} has no text in its split {split!r}: give more text, or use split='all'.")


def check_source(source: str) -> None:
    """Raise a `UserError` if a source does not exist, before anything slower is loaded."""
    if find_corpus(source) is None and not Path(source).expanduser().exists() and not is_data_set(source):
        known = source.partition(":")[0]
        papers = f" ({known} comes with the package recurrify-papers)" if known in OF_PAPERS else ""
        raise UserError(
            f"{source} does not exist: give a file, a folder, a Hugging Face data set as hf:owner/name, "
            f"or one of {', '.join(corpus_names())}{papers}."
        )


def _open(source: str, split: str, text_field: str, limit: int | None, skipped: list[Skipped]) -> Iterable[Document]:
    found = find_corpus(source)
    if found is not None:
        corpus, argument = found
        return corpus.load(split, limit, skipped, *([] if argument is None else [argument]))
    check_source(source)
    if is_data_set(source):
        return stream_hub(source, split, text_field, skipped, limit)
    path = Path(source).expanduser()
    if path.is_dir():
        return _open_folder(path, split, text_field, skipped)
    return Documents(lambda skipped: _read_file(path, path.name, text_field, skipped), skipped, split)


def _open_folder(folder: Path, split: str, text_field: str, skipped: list[Skipped]) -> Documents:
    files = _visible_files(folder)
    own_splits = {name for file in files if (name := _own_split(file)) is not None}
    # One such name alone may be an accident: a source tree with a `test` folder is not a split corpus.
    if len(own_splits) < 2 or split == EVERYTHING:
        return Documents(lambda skipped: _read_all(folder, files, text_field, skipped), skipped, split)
    if split not in own_splits:
        raise UserError(
            f"{folder} has no split {split!r}, only {', '.join(sorted(own_splits))}: choose another, or all."
        )
    chosen = [file for file in files if _own_split(file) == split]
    return Documents(lambda skipped: _read_all(folder, chosen, text_field, skipped), skipped)


def _visible_files(folder: Path) -> list[Path]:
    """Relative paths, sorted; hidden files and folders such as `.git` are left out."""
    files: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(parent, name).relative_to(folder) for name in names if not name.startswith(".")]
    return sorted(files, key=lambda file: file.as_posix())


def _own_split(file: Path) -> str | None:
    """The split that a file's top folder, or its own name at the top (`train.jsonl`), stands for."""
    if len(file.parts) > 1:
        return SPLIT_OF_NAME.get(file.parts[0])
    # Not any suffix: `train.py` and `test.py` are programs, not splits.
    if uncompressed_suffix(file) not in (".txt", *TABLES):
        return None
    return SPLIT_OF_NAME.get(re.sub(r"-\d+-of-\d+$", "", file.name.partition(".")[0]))


def _read_all(
    folder: Path, files: Sequence[Path], text_field: str, skipped: list[Skipped]
) -> Iterator[tuple[str, Document]]:
    last, found = "", False
    for file in files:
        try:
            for keyed in _read_file(folder / file, file.as_posix(), text_field, skipped):
                found = True
                yield keyed
        except (UnreadableFileError, MissingFieldError) as error:
            reason = error.reason if isinstance(error, UnreadableFileError) else f"has no field {text_field!r}"
            skipped.append(Skipped(file.as_posix(), reason))
            last = f"; {file} {reason}"
    if not found:
        raise UserError(f"{folder} holds no text ({len(files)} files{last}): give a folder with UTF-8 text files.")


def _read_file(path: Path, name: str, text_field: str, skipped: list[Skipped]) -> Iterator[tuple[str, Document]]:
    """A file's documents, each with the key by which it is assigned to a split: its text for a row, else its name."""
    if not is_table(path):
        key = name.removesuffix(path.suffix) if path.suffix.lower() != uncompressed_suffix(path) else name
        yield key, Document(name, read_text_file(path))
        return
    table, found = read_table(path), False
    for number, fields in table.rows:
        if found and text_field not in fields:
            raise UserError(f"{table.where(number)} has no field {text_field!r}, which rows before it have: add it.")
        text = table.text(number, fields, text_field)
        document = Document(f"{name}:{number}", text)
        if text.strip():
            found = True
            yield text, document
        else:
            skipped.append(Skipped(document.name, f"has an empty {text_field!r}"))

"""Documents from Hugging Face data sets: on the hub, or saved in a folder."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from recurrify.data.records import Document, Skipped
from recurrify.data.splits import EVERYTHING, SPLIT_OF_NAME, Documents
from recurrify.data.tables import HUB_PREFIX, Table, dataset_errors, open_dataset
from recurrify.errors import UserError

HELD_OUT = SPLIT_OF_NAME.keys() - {"train"}


def _row_documents(texts: Iterable[str]) -> Iterator[Document]:
    for number, text in enumerate(texts):
        yield Document(f"{number}", text)


def load_hub(
    source: str,
    split: str,
    *,
    text_field: str = "text",
    limit: int | None = None,
    skipped: list[Skipped],
    to_documents: Callable[[Iterable[str]], Iterator[Document]] = _row_documents,
    choose: Callable[[str, Any], Any] | None = None,
) -> list[Document]:
    """The first documents of `stream_hub`."""
    found = stream_hub(source, split, text_field, skipped, limit, to_documents=to_documents, choose=choose)
    return list(islice(found, limit))


def stream_hub(
    source: str,
    split: str,
    text_field: str,
    skipped: list[Skipped],
    limit: int | None = None,
    *,
    to_documents: Callable[[Iterable[str]], Iterator[Document]] = _row_documents,
    choose: Callable[[str, Any], Any] | None = None,
) -> Documents:
    """The documents of a data set; `choose` may select among the rows of a part, by its name.

    The data set's own splits are used; `validation`, `val` and `dev` are names for valid. A data set with a train part
    alone, or with a single part of another name, is split like a file of rows. With a limit, rows are downloaded one by
    one.
    """
    name = source.removeprefix(HUB_PREFIX)
    with dataset_errors(name):
        parts = open_dataset(source, limit=limit)
        unsplit = len(parts) == 1 and not parts.keys() & HELD_OUT
        wanted = [key for key in parts if unsplit or split in (EVERYTHING, SPLIT_OF_NAME.get(key))]
        if not wanted:
            raise UserError(f"{name} has no split {split!r}, only {', '.join(parts)}: choose another, or all.")
        rows = {key: parts[key] if choose is None else choose(key, parts[key]) for key in wanted}

    def read(skipped: list[Skipped]) -> Iterator[tuple[str, Document]]:
        empty = 0
        with dataset_errors(name):
            for key in wanted:
                for document in to_documents(_texts(Table(name, "row", enumerate(rows[key], start=1)), text_field)):
                    if document.text.strip():
                        yield document.text, Document(f"{key}/{document.name}", document.text)
                    else:
                        empty += 1
        if empty:
            # One entry for all of them: data sets of lines hold hundreds of thousands of empty rows.
            skipped.append(Skipped(name, f"{empty} rows are empty"))

    return Documents(read, skipped, split if unsplit else EVERYTHING)


def _texts(table: Table, text_field: str) -> Iterator[str]:
    for number, fields in table.rows:
        yield table.text(number, fields, text_field)

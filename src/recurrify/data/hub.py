"""Documents out of Hugging Face data sets: from the hub, or saved on disk."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recurrify.data.records import Document, Skipped
from recurrify.data.splits import EVERYTHING, SPLIT_OF_NAME, deal
from recurrify.errors import UserError
from recurrify.hub_access import hub_is_reachable

# " = Title = " but not " = = Section = = ".
ARTICLE_HEADING = re.compile(r" = ([^=\s][^=]*?) = \s*")

HELD_OUT = SPLIT_OF_NAME.keys() - {"train"}

RowsToDocuments = Callable[[Iterable[str]], Iterator[Document]]


def row_documents(texts: Iterable[str]) -> Iterator[Document]:
    for number, text in enumerate(texts):
        yield Document(f"{number}", text)


def wikitext_articles(lines: Iterable[str]) -> Iterator[Document]:
    """Whole articles out of WikiText's rows, which are lines; each article begins with its title's line."""
    article: list[str] = []
    title, number = "untitled", 0
    after_blank_line = True
    for line in lines:
        # Headings stand alone; without that test, lines of tables and formulas would break articles up.
        heading = ARTICLE_HEADING.fullmatch(line) if after_blank_line else None
        if heading:
            if "".join(article).strip():
                yield Document(f"{number} {title}", "".join(article))
                number += 1
            article, title = [], heading[1]
        article.append(line if line.endswith("\n") else line + "\n")
        after_blank_line = not line.strip()
    if "".join(article).strip():
        yield Document(f"{number} {title}", "".join(article))


def first_books(count: int) -> Callable[[str, Any], Any]:
    """Of PG-19's training split the first `count` books by file name, which is the number in their address."""

    def choose(split: str, rows: Any) -> Any:
        if split != "train":
            return rows
        files = [address.rstrip("/").rpartition("/")[2] + ".txt" for address in rows["url"]]
        return rows.select(sorted(range(len(files)), key=files.__getitem__)[:count])

    return choose


def is_saved_dataset(path: Path) -> bool:
    """Whether a folder was written by `save_to_disk` of the `datasets` library."""
    one_split = (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
    return one_split or (path / "dataset_dict.json").is_file()


def load_hub(
    name: str,
    config: str | None,
    split: str,
    *,
    text_field: str,
    limit: int | None,
    skipped: list[Skipped],
    to_documents: RowsToDocuments = row_documents,
    choose: Callable[[str, Any], Any] | None = None,
) -> list[Document]:
    """The documents of a Hugging Face data set; `choose` may pick among the rows of a split.

    The data set's own splits are used, `validation`, `val` and `dev` standing for valid. A data set with
    a train split alone (or a single one of a name of its own) is dealt out as a folder of files would be.
    """
    with hub_errors(name):
        rows_of_split = open_dataset(name, config, limit)
        unsplit = len(rows_of_split) == 1 and not rows_of_split.keys() & HELD_OUT
        wanted = [key for key in rows_of_split if unsplit or split in (EVERYTHING, SPLIT_OF_NAME.get(key))]
        if not wanted:
            found = ", ".join(rows_of_split)
            raise UserError(f"{name} has no split {split!r}, only {found}: ask for another, or for all.")
        rows = {key: rows_of_split[key] if choose is None else choose(key, rows_of_split[key]) for key in wanted}
        documents = _documents(name, rows, text_field, to_documents)
        if unsplit:
            return deal(_first_with_text(name, documents, None, skipped), split)[:limit]
        return _first_with_text(name, documents, limit, skipped)


def open_dataset(name: str, config: str | None, limit: int | None) -> dict[str, Iterable[dict[str, Any]]]:
    try:
        import datasets
    except ImportError as error:
        raise UserError(f"{name} needs the `datasets` library: run `pip install datasets`.") from error
    if is_saved_dataset(Path(name)):
        opened = datasets.load_from_disk(name)
    else:
        # A few documents out of a large corpus should not cost the whole download; the offline cache,
        # on the other hand, cannot be streamed.
        hub_is_reachable()  # without a connection, downloaded data sets are used, without a minute of retries
        streaming = limit is not None and not datasets.config.HF_HUB_OFFLINE
        opened = datasets.load_dataset(name, config, streaming=streaming)
    return {str(key): rows for key, rows in opened.items()} if isinstance(opened, dict) else {"train": opened}


def _documents(
    name: str,
    rows_of_split: dict[str, Iterable[dict[str, Any]]],
    text_field: str,
    to_documents: RowsToDocuments,
) -> Iterator[Document]:
    for split, rows in rows_of_split.items():
        for document in to_documents(_texts(name, rows, text_field)):
            yield Document(f"{split}/{document.name}", document.text)


def _texts(name: str, rows: Iterable[dict[str, Any]], text_field: str) -> Iterator[str]:
    for row in rows:
        if text_field not in row:
            fields = ", ".join(row)
            raise UserError(
                f"{name} has no field {text_field!r}: name one of {fields} with --text-field, or `text_field`."
            )
        if not isinstance(row[text_field], str):
            raise UserError(f"{name} has no text in its field {text_field!r}: choose another `text_field`.")
        yield row[text_field]


def _first_with_text(
    name: str, documents: Iterable[Document], limit: int | None, skipped: list[Skipped]
) -> list[Document]:
    found: list[Document] = []
    empty = 0
    for document in documents:
        if document.text.strip():
            found.append(document)
        else:
            empty += 1
        if len(found) == limit:
            break
    if empty:
        # One line for all of them: data sets of lines hold hundreds of thousands of empty ones.
        skipped.append(Skipped(name, f"{empty} rows are empty"))
    return found


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    # Not found, private, offline, a broken download: the libraries below raise dozens of types for it.
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
        raise UserError(
            f"The data set {name} could not be loaded ({type(error).__name__}: {reason}): "
            "check its name and the network, or give a file or folder that exists."
        ) from error

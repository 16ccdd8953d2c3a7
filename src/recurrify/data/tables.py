"""Rows with named fields: from CSV, JSON, JSON Lines, Parquet and Arrow files, and from Hugging Face data sets.

CSV and JSON are read with the standard library: `datasets` infers column types, so that the text "NA" becomes None and
the class "01" becomes 1, and it has no type for HotpotQA's paragraphs, which mix strings and lists.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurrify.data.files import (
    COMPRESSED,
    UnreadableFileError,
    check_regular,
    read_text_file,
    text_lines,
    uncompressed_suffix,
)
from recurrify.data.splits import SPLIT_OF_NAME
from recurrify.errors import UserError
from recurrify.hub_access import hub_is_reachable

HUB_PREFIX = "hf:"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
JSON_LINES = (".jsonl", ".ndjson")
BINARY = {".parquet": {"batch_size": 100}, ".arrow": {}}
"""Files that `datasets` reads, and options of its readers. Without its option, Parquet is read in batches as large as
the file's first group of rows, which may be empty."""
TABLES = (".csv", ".tsv", ".json", *JSON_LINES, *BINARY)
"""Files that hold rows; every other file is one text."""


@dataclass(frozen=True)
class Table:
    """Rows of one file or data set, in order."""

    source: str
    unit: str
    """What a row's number counts: "line" of a text file, "row" of anything else."""
    rows: Iterable[tuple[int, dict[str, Any]]]
    """Numbers, counted from 1, and fields."""

    def where(self, number: int) -> str:
        return f"{self.source}, {self.unit} {number},"

    def text(self, number: int, fields: Mapping[str, Any], name: str) -> str:
        """The text in the field `name`, checked."""
        text = self.field(number, fields, name, "--text-field")
        if not isinstance(text, str):
            raise UserError(f"{self.where(number)} has no text in {name!r} but {text!r:.40}: give a string.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{self.where(number)} has half a surrogate pair in {name!r}: fix its escapes.") from error
        return text

    def field(self, number: int, fields: Mapping[str, Any], name: str, option: str) -> Any:
        """The value of the field `name`, which the user chooses with `option`."""
        if name not in fields:
            raise MissingFieldError(
                f"{self.where(number)} has no field {name!r}, only {shortened(list(fields)) or 'none at all'}: "
                f"choose one of them with {option}."
            )
        return fields[name]


class MissingFieldError(UserError):
    """A row lacks the wanted field."""


def shortened(names: Sequence[str], most: int = 10) -> str:
    """The first names, separated by commas, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def is_table(path: Path) -> bool:
    """Whether a file holds rows, by its name."""
    return uncompressed_suffix(path) in TABLES


def is_data_set(source: str) -> bool:
    """Whether a source is a Hugging Face data set: saved in a folder, or named like one on the hub."""
    path = Path(source).expanduser()
    if source.startswith(HUB_PREFIX) or is_saved_dataset(path):
        return True
    # A path that does not exist in a folder that does is a mistyped path.
    looks_like_file = is_table(path) or path.suffix.lower() in (".txt", ".text", ".md", *COMPRESSED)
    named = HUB_NAME.fullmatch(source) is not None and not looks_like_file
    return named and not path.exists() and not path.parent.exists()


def is_saved_dataset(path: Path) -> bool:
    """Whether a folder was written by `save_to_disk` of the `datasets` library."""
    one_split = (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
    return one_split or (path / "dataset_dict.json").is_file()


def open_table(source: str, split: str | None = None) -> Table:
    """The rows of a file, or of one part of a data set.

    Args:
        source: A file, a folder written by `save_to_disk`, or `hf:owner/name`.
        split: Of a data set, train, or test, for which a validation part is taken if there is no test part. None takes
            the only part, and raises a `UserError` if there are several.
    """
    if is_data_set(source):
        parts = open_dataset(source)
        by_split = {SPLIT_OF_NAME.get(name, name): rows for name, rows in parts.items()}
        wanted = ["train"] if split == "train" else ["test", "valid"]
        found = next((by_split[name] for name in wanted if split is not None and name in by_split), None)
        if len(parts) == 1 and (split is None or not SPLIT_OF_NAME.keys() & parts.keys()):
            (found,) = parts.values()
        if found is None:
            part = "single part" if split is None else f"{split} part"
            raise UserError(f"{source} has no {part}, only {shortened(list(parts))}: write one of them to a file.")
        return Table(source, "row", enumerate(_guarded(found, source), start=1))
    check_table(source)
    return read_table(Path(source).expanduser())


def check_table(source: str) -> None:
    """Raise a `UserError` unless a source is a data set or a file of rows, before anything slower is loaded."""
    path = Path(source).expanduser()
    if is_data_set(source):
        return
    if not path.exists() or path.is_dir():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"{source} {what}: give a file ({', '.join(TABLES)}) or a data set as hf:owner/name.")
    if not is_table(path):
        raise UserError(f"{source} is none of {', '.join(TABLES)}: give rows with named fields.")


def read_table(path: Path) -> Table:
    """The rows of a file whose name ends as one of `TABLES`; text formats may be compressed."""
    suffix = uncompressed_suffix(path)
    if suffix in BINARY:
        return Table(str(path), "row", enumerate(_binary_rows(path, suffix), start=1))
    if suffix in (".csv", ".tsv"):
        return Table(str(path), "line", _csv_rows(text_lines(path, ""), str(path), "\t" if suffix == ".tsv" else ","))
    if suffix in JSON_LINES:
        return Table(str(path), "line", _json_lines(text_lines(path, "\n"), str(path)))
    content = read_text_file(path)
    if _begins_with_object(content):
        return Table(str(path), "line", _json_lines(content.split("\n"), str(path)))
    return Table(str(path), "row", enumerate(_json_rows(content, path), start=1))


# ---- CSV and JSON ----------------------------------------------------------------------------------------


def _csv_rows(lines: Iterable[str], source: str, delimiter: str) -> Iterator[tuple[int, dict[str, str]]]:
    csv.field_size_limit(2**31 - 1)  # the default, 131,072 characters, is less than a book
    reader = csv.reader(lines, strict=True, delimiter=delimiter)
    header: list[str] | None = None
    line = 1
    try:
        for cells in reader:
            place, line = line, reader.line_num + 1
            if not cells:
                continue
            if header is None:
                header = _header(cells, source)
            elif len(cells) != len(header):
                raise UserError(
                    f"{source}, line {place}, has {len(cells)} cells, but the header has {len(header)}: put texts with "
                    "commas into quotes."
                )
            else:
                yield place, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise UserError(f"{source}, line {line}, is not CSV ({error}): fix its quotes.") from error


def _header(cells: Sequence[str], source: str) -> list[str]:
    header = [name.strip() for name in cells]
    other = re.search(r"[\t;]", header[0]) if len(header) == 1 else None
    if other is not None:
        raise UserError(f"{source} separates its columns by {other.group()!r}: use commas, or tabs in a .tsv file.")
    repeated = next((name for name in header if header.count(name) > 1), None)
    if repeated is not None:
        raise UserError(f"{source} has {header.count(repeated)} columns {repeated!r}: keep one.")
    return header


def _json_lines(lines: Iterable[str], source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{source}, line {number},"
            row = parse_json(line, where)
            if not isinstance(row, dict):
                raise UserError(f'{where} is not a JSON object: write one object such as {{"text": ...}} per line.')
            yield number, row


def _json_rows(content: str, path: Path) -> list[dict[str, Any]]:
    """A list of objects; an object that holds one under "data"; or a single object."""
    found = parse_json(content, str(path))
    if isinstance(found, dict):
        found = found["data"] if isinstance(found.get("data"), list) else [found]
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise UnreadableFileError(path, "is not a list of JSON objects", 'write [{"text": ...}, ...]')
    return found


def _begins_with_object(content: str) -> bool:
    """Whether a .json file is in fact JSON Lines: several lines, of which the first is a whole object."""
    first, _, rest = content.strip().partition("\n")
    try:
        return bool(rest.strip()) and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def parse_json(text: str, where: str) -> Any:
    """The JSON value of a text; `where` names it in errors."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        # A line that is parsed alone is its own first line: its number would be mistaken for the file's.
        place = f"line {error.lineno}, column {error.colno}" if "\n" in text else f"column {error.colno}"
        raise UserError(f"{where} is not JSON ({error.msg} at {place}): fix it.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error}): fix it.") from error


# ---- Hugging Face data sets ------------------------------------------------------------------------------


def _binary_rows(path: Path, suffix: str) -> Iterator[dict[str, Any]]:
    check_regular(path)
    with path.open("rb") as file:
        other = suffix == ".parquet" and file.read(4) != b"PAR1"
    if other or path.suffix.lower() != suffix:
        raise UnreadableFileError(path, f"is no {suffix} file", "write it again; its contents are compressed already")
    with dataset_errors(str(path)):
        kind, datasets = suffix.removeprefix("."), _datasets(str(path))
        # Streaming writes no copy into the cache of `datasets`.
        rows = datasets.load_dataset(kind, data_files=str(path), split="train", streaming=True, **BINARY[suffix])
        yield from named_classes(rows)


def open_dataset(source: str, limit: int | None = None) -> dict[str, Any]:
    """The parts of a data set by name: of a folder written by `save_to_disk`, or of `owner/name[:config]` on the hub.
    With a limit it is streamed: a few documents of a large corpus should not cost the whole download."""
    name = source.removeprefix(HUB_PREFIX)
    path = Path(name).expanduser()
    with dataset_errors(name):
        datasets = _datasets(name)
        if is_saved_dataset(path):
            opened = datasets.load_from_disk(str(path))
        else:
            config = ""
            if not path.exists():
                name, _, config = name.partition(":")
            hub_is_reachable()  # without a connection, downloaded data sets are used, without a minute of retries
            streaming = limit is not None and not datasets.config.HF_HUB_OFFLINE  # the offline cache cannot stream
            opened = datasets.load_dataset(str(path) if path.exists() else name, config or None, streaming=streaming)
    return {str(key): rows for key, rows in opened.items()} if isinstance(opened, dict) else {"train": opened}


def named_classes(rows: Any) -> Iterator[dict[str, Any]]:
    """Rows with class names where the data set keeps numbers; None for a number without a name."""
    names = {field: feature.names for field, feature in (rows.features or {}).items() if hasattr(feature, "names")}
    for row in rows:
        for field, known in names.items():
            if isinstance(row[field], int):
                row[field] = known[row[field]] if 0 <= row[field] < len(known) else None
        yield row


def _guarded(rows: Any, source: str) -> Iterator[dict[str, Any]]:
    with dataset_errors(source):
        yield from named_classes(rows)


def _datasets(name: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise UserError(f'{name} needs the `datasets` library: run `pip install "recurrify[data]"`.') from error
    return datasets


@contextmanager
def dataset_errors(name: str) -> Iterator[None]:
    """Report what `datasets` raises in one sentence: not found, offline and broken downloads have dozens of types."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
        cause = f"{type(error).__name__}: {reason}"
        if Path(name).expanduser().exists():
            raise UserError(f"{name} cannot be read ({cause}): it may be damaged, write it again.") from error
        raise UserError(
            f"The data set {name} could not be loaded ({cause}): check its name and the network, or give a file or "
            "folder that exists."
        ) from error

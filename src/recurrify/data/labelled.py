"""Texts with their classes: out of CSV files, JSON lines and Hugging Face data sets."""

import csv
import hashlib
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recurrify.data.documents import HUB_PREFIX, name_and_config
from recurrify.data.files import JSON_LINES, UnreadableFileError, json_object, read_text_file, uncompressed_suffix
from recurrify.data.hub import hub_errors, open_dataset
from recurrify.data.splits import SPLIT_OF_NAME
from recurrify.errors import UserError

HELD_OUT = 10
"""One text in so many is held out of training where no test texts are given."""


class LabelledText(NamedTuple):
    line: int
    """Where it begins in its file, counted from 1; of a data set, its row."""
    text: str
    label: str | None
    """None where classes were not asked for."""


@dataclass(frozen=True)
class LabelledTexts:
    """The texts of one source, in its order."""

    source: str
    texts: list[LabelledText]
    empty: list[int]
    """The lines whose text is empty, which were left out."""
    unit: str = "line"
    """What its places are called: line or row."""

    @property
    def counts(self) -> dict[str, int]:
        """How many texts each class has; classes in sorted order, whole numbers by their value."""
        found = Counter(text.label for text in self.texts if text.label is not None)
        return {name: found[name] for name in _sorted_classes(found)}

    def numbers(self, classes: Sequence[str]) -> np.ndarray:
        """Each text's class as an index into `classes`."""
        index = {name: number for number, name in enumerate(classes)}
        for text in self.texts:
            if text.label not in index:
                raise UserError(
                    f"{self.source}, {self.unit} {text.line}, has the class {text.label!r}, which the model does not "
                    f"know: its classes are {shortened(classes)}."
                )
        return np.array([index[str(text.label)] for text in self.texts])

    def checksum(self) -> str:
        """The SHA-256 of the texts and their classes, in their order."""
        return hashlib.sha256(json.dumps([text[1:] for text in self.texts]).encode()).hexdigest()

    def told(self) -> str:
        """What there is, in words."""
        words = f"{len(self.texts):,} texts"
        if self.counts:
            words += f", {len(self.counts)} classes: " + shortened([f"{n} ({c:,})" for n, c in self.counts.items()])
        if self.empty:
            words += f"; {len(self.empty):,} empty left out: {self.unit} " + shortened(list(map(str, self.empty)))
        return words


def joined_checksum(*parts: LabelledTexts) -> str:
    return hashlib.sha256("".join(part.checksum() for part in parts).encode()).hexdigest()


def shortened(names: Sequence[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def load_labelled(source: str, text_field: str, label_field: str | None, split: str = "train") -> LabelledTexts:
    """The texts of a .csv or .jsonl file (also .gz, .xz), or of a Hugging Face data set, `hf:owner/name[:config]`.

    Without `label_field` classes are neither read nor needed. `split` is for data sets alone: train, or test, which
    takes the validation part where there is no test part. A class is a word or a whole number, blanks around it do
    not count. Empty texts are left out.
    """
    if source.startswith(HUB_PREFIX):
        rows, unit = _hub_rows(source, text_field, label_field, split), "row"
    else:
        rows, unit = _file_rows(source, text_field, label_field), "line"
    texts, empty = [], []
    for line, text, label in rows:
        where = f"{source}, {unit} {line},"
        if not isinstance(text, str):
            raise UserError(f"{where} has no text in {text_field!r} but {text!r:.40}: give a string.")
        if not text.strip():
            empty.append(line)
            continue
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{where} has half a surrogate pair in {text_field!r}: mend its escapes.") from error
        texts.append(LabelledText(line, text, None if label_field is None else _class(label, label_field, where)))
    if not texts:
        raise UserError(f"{source} holds no text in {text_field!r} ({len(empty):,} empty): give a file with some.")
    return LabelledTexts(source, texts, empty, unit)


def hold_out(given: LabelledTexts, seed: int) -> tuple[LabelledTexts, LabelledTexts]:
    """The texts to train on, and a tenth drawn at random to test by: of each class a tenth, as far as it has ten texts,
    and the rest from any; every class keeps at least one to train on. A text that occurs again goes where it went
    before."""
    first = list({text.text: text for text in reversed(given.texts)}.values())
    names = [str(text.label) for text in first]
    left, wanted = Counter(names), {name: count // HELD_OUT for name, count in Counter(names).items()}
    order = np.random.default_rng(seed).permutation(len(names)).tolist()
    held: set[int] = set()
    for index in order:
        if wanted[names[index]]:
            wanted[names[index]] -= 1
            left[names[index]] -= 1
            held.add(index)
    more = max(1, round(len(names) / HELD_OUT)) - len(held)
    for index in order:
        if more > 0 and index not in held and left[names[index]] > 1:
            more -= 1
            left[names[index]] -= 1
            held.add(index)
    if not held:
        raise UserError(
            f"{given.source} has one text of each class, repeats not counted, so none can be held out: give texts to "
            "test by with --test."
        )
    chosen = {first[index].text for index in held}
    parts = [[text for text in given.texts if (text.text in chosen) is wanted] for wanted in (False, True)]
    return replace(given, texts=parts[0]), replace(given, texts=parts[1], empty=[])


def _sorted_classes(names: Iterable[str]) -> list[str]:
    names = list(names)
    if all(re.fullmatch(r"[+-]?[0-9]+", name) for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def _class(label: Any, label_field: str, where: str) -> str:
    if isinstance(label, bool) or not isinstance(label, str | int):
        raise UserError(f"{where} has no class in {label_field!r} but {label!r:.40}: give a word or a whole number.")
    name = str(label).strip()
    if not name:
        raise UserError(f"{where} has an empty {label_field!r}: give each text its class, or leave it out.")
    return name


Row = tuple[int, Any, Any]
"""A place, the text, the class."""


def _file_rows(source: str, text_field: str, label_field: str | None) -> Iterator[Row]:
    path = Path(source).expanduser()
    suffix = uncompressed_suffix(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"{source} {what}: give a .csv or .jsonl file, or a data set as hf:owner/name.")
    if suffix != ".csv" and suffix not in JSON_LINES:
        raise UserError(
            f"{source} is neither a .csv nor a .jsonl file: give columns apart by commas as .csv, or JSON lines as "
            ".jsonl."
        )
    try:
        content = read_text_file(path)
    except UnreadableFileError as unreadable:
        raise UserError(f"{source} {unreadable.reason}: {unreadable.way_out}.") from unreadable
    return (_csv_rows if suffix == ".csv" else _json_rows)(content, source, text_field, label_field)


def _csv_rows(content: str, source: str, text_field: str, label_field: str | None) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    header: list[str] | None = None
    line = 1
    try:
        with _long_fields():
            for cells in reader:
                place, line = line, reader.line_num + 1
                if not cells:
                    continue
                if header is None:
                    header = [name.strip() for name in cells]
                    text_at = _column(header, text_field, "--text-field", source)
                    label_at = None if label_field is None else _column(header, label_field, "--label-field", source)
                    continue
                if len(cells) != len(header):
                    raise UserError(
                        f"{source}, line {place}, has {len(cells)} cells, but the header has {len(header)}: put texts "
                        "with commas into quotes."
                    )
                yield place, cells[text_at], None if label_at is None else cells[label_at]
    except csv.Error as error:
        raise UserError(f"{source}, line {line}, is no CSV ({error}): mend its quotes.") from error


def _column(header: list[str], name: str, option: str, source: str) -> int:
    other = re.search(r"[\t;]", header[0]) if len(header) == 1 else None
    if name not in header and other is not None:
        raise UserError(f"{source} has its columns apart by {other.group()!r}: use commas.")
    if name not in header:
        predict = "; texts without classes are for `classify predict`" if option == "--label-field" else ""
        raise UserError(
            f"{source} has no column {name!r}, only {shortened(header)}: name one of them with {option}{predict}."
        )
    if header.count(name) > 1:
        raise UserError(f"{source} has {header.count(name)} columns {name!r}: leave one.")
    return header.index(name)


@contextmanager
def _long_fields() -> Iterator[None]:
    """csv's own limit, 131,072 characters of a cell, is less than a book."""
    before = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _json_rows(content: str, source: str, text_field: str, label_field: str | None) -> Iterator[Row]:
    # Not `splitlines`: it also breaks at characters such as U+2028 that may stand inside a JSON string.
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{source}, line {number},"
        yield number, *_fields(json_object(line, text_field, where), text_field, label_field, where)


def _fields(record: dict[str, Any], text_field: str, label_field: str | None, where: str) -> tuple[Any, Any]:
    for name, option in ((text_field, "--text-field"), (label_field, "--label-field")):
        if name is not None and name not in record:
            found = shortened(list(record)) or "none at all"
            raise UserError(f"{where} has no field {name!r}, only {found}: name one of them with {option}.")
    return record[text_field], None if label_field is None else record[label_field]


def _hub_rows(source: str, text_field: str, label_field: str | None, split: str) -> Iterator[Row]:
    name, config = name_and_config(source.removeprefix(HUB_PREFIX))
    with hub_errors(name):
        parts = {SPLIT_OF_NAME.get(key, key): rows for key, rows in open_dataset(name, config, None).items()}
        wanted = ("train",) if split == "train" else ("test", "valid")
        found = next((parts[part] for part in wanted if part in parts), None)
        if found is None:
            raise UserError(f"{source} has no {split} part, only {shortened(list(parts))}: write one to a file.")
        # Data sets keep classes as numbers and their names beside them.
        feature = getattr(found, "features", {}).get(label_field)
        names = getattr(feature, "names", None)
        for number, row in enumerate(found, start=1):
            text, label = _fields(row, text_field, label_field, f"{source}, row {number},")
            if names is not None and isinstance(label, int):
                label = names[label] if 0 <= label < len(names) else None
            yield number, text, label

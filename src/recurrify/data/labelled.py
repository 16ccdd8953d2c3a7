"""Texts with their classes, from files of rows and Hugging Face data sets."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from recurrify.data.tables import open_table, shortened
from recurrify.errors import UserError

HELD_OUT = 10
"""One in this many texts is held out for testing if no test texts are given."""


class LabelledText(NamedTuple):
    line: int
    """The line of its file, or the row of its data set, counted from 1."""
    text: str
    label: str | None
    """None where no classes are read."""


@dataclass(frozen=True)
class LabelledTexts:
    """The texts of one source, in its order."""

    source: str
    texts: list[LabelledText]
    empty: list[int]
    """The lines whose text is empty, which were left out."""
    unit: str = "line"
    """What `line` counts: line or row."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of texts of each class, sorted by class; whole numbers by value."""
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

    def summary(self) -> str:
        """The number of texts, classes and empty rows, in words."""
        words = f"{len(self.texts):,} texts"
        if self.counts:
            words += f", {len(self.counts)} classes: " + shortened([f"{n} ({c:,})" for n, c in self.counts.items()])
        if self.empty:
            words += f"; {len(self.empty):,} empty left out: {self.unit} " + shortened(list(map(str, self.empty)))
        return words


def load_labelled(source: str, text_field: str, label_field: str | None, split: str = "train") -> LabelledTexts:
    """The texts and classes of a file of rows or of a Hugging Face data set, as `recurrify.data.open_table` reads them.

    A class is a word or a whole number; blanks around it do not count. Empty texts are left out.

    Args:
        source: A .csv, .tsv, .json, .jsonl or .parquet file, a folder written by `save_to_disk`, or `hf:owner/name`.
        text_field: The field with the text.
        label_field: The field with the class; None reads no classes.
        split: Of a data set, train or test.
    """
    table = open_table(source, split)
    texts, empty = [], []
    for number, fields in table.rows:
        text = table.text(number, fields, text_field)
        label = None
        if label_field is not None:
            hint = "--label-field; texts without classes are for `classify predict`"
            label = table.field(number, fields, label_field, hint)
        if not text.strip():
            empty.append(number)
            continue
        if label_field is not None:
            label = _class(label, label_field, table.where(number))
        texts.append(LabelledText(number, text, label))
    if not texts:
        raise UserError(f"{source} holds no text in {text_field!r} ({len(empty):,} empty): give a file with some.")
    return LabelledTexts(source, texts, empty, table.unit)


def hold_out(given: LabelledTexts, seed: int) -> tuple[LabelledTexts, LabelledTexts]:
    """Split the texts into those to train on and a random tenth to test on: a tenth of each class that has ten texts,
    and the rest from any class. Every class keeps at least one text to train on; duplicates stay on one side."""
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
            f"{given.source} has one text of each class, duplicates not counted, so none can be held out: give test "
            "texts with --test."
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

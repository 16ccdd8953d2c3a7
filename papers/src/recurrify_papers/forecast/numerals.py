"""Columns of texts as numbers, also where they are written with commas: decimal ones, or such between thousands."""

import re

import numpy as np
import pandas as pd

from recurrify.errors import UserError

COMMA_GROUPS = r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?"
"""1,234,567.89"""
DOT_GROUPS = r"[+-]?\d{1,3}(?:\.\d{3})+(?:,\d+)?"
"""1.234.567,89"""
DECIMAL_POINT = r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
DECIMAL_COMMA = r"[+-]?\d+(?:,\d+)?(?:[eE][+-]?\d+)?"


def read_numbers(source: str, column: pd.Series, separator: str) -> tuple[pd.Series, str | None]:
    """The numbers, not a number where a cell has none; and a sentence where they were not written plainly."""
    numbers = pd.to_numeric(column, errors="coerce")
    written = column.dropna().str.strip()
    plain = numbers.notna().sum() == len(written)
    if plain or not written.str.contains(r"\d[.,]\d").any():
        return numbers, None
    points = written.str.fullmatch(f"{COMMA_GROUPS}|{DECIMAL_POINT}").all()
    commas = written.str.fullmatch(f"{DOT_GROUPS}|{DECIMAL_COMMA}").all()
    example = next(text for text in written if not re.fullmatch(DECIMAL_POINT, text))
    if points and commas and separator == ",":
        raise UserError(
            f"Numbers such as {example} in column {column.name!r} of {source} may have commas between thousands or "
            "decimal ones: write them without commas."
        )
    # Between semicolons or tabs a comma that could be either is a decimal one.
    if commas:
        bare = column.str.strip().str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
        kind = "a decimal comma" if written.str.contains(",").any() else "dots between thousands"
    elif points:
        bare, kind = column.str.strip().str.replace(",", "", regex=False), "commas between thousands"
    else:
        return numbers, None
    return pd.to_numeric(bare), f"numbers such as {example} in column {column.name!r} were read with {kind}"


def check_beside_commas(source: str, column: pd.Series) -> None:
    """Where other columns have decimal commas, 1.234 would be read as 1.234 and is likely 1234."""
    written = column.dropna().str.strip()
    if (
        len(written)
        and written.str.contains(".", regex=False).any()
        and written.str.fullmatch(f"{DOT_GROUPS}|[+-]?\\d{{1,3}}").all()
    ):
        example = next(text for text in written if "." in text)
        raise UserError(
            f"Numbers such as {example} in column {column.name!r} of {source} stand beside decimal commas, and may "
            "have a decimal point or dots between thousands: write all numbers in one way."
        )


def is_constant(values: np.ndarray) -> np.ndarray:
    """(C,): whether a column holds one value only, or values that lie closer than numbers can tell apart."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (values.max(axis=0) == values.min(axis=0)) | (values.std(axis=0) == 0)

"""The same rows in every kind of file that holds rows."""

import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable, Sequence
from pathlib import Path

import datasets

Rows = Sequence[dict[str, str]]


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def json_lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def as_csv(rows: Rows, delimiter: str = ",") -> str:
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, sorted(rows[0]), delimiter=delimiter)
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def as_parquet(path: Path, rows: Rows) -> Path:
    datasets.Dataset.from_list(list(rows)).to_parquet(path)
    return path


def as_arrow(path: Path, rows: Rows) -> Path:
    datasets.Dataset.from_list(list(rows)).save_to_disk(path.with_suffix(""))
    (found,) = path.with_suffix("").glob("*.arrow")
    return found.rename(path)


def as_saved(path: Path, rows: Rows) -> Path:
    datasets.Dataset.from_list(list(rows)).save_to_disk(path)
    return path


CONTAINERS: dict[str, Callable[[Path, Rows], Path]] = {
    "a.jsonl": lambda path, rows: write(path, json_lines(*rows)),
    "b.jsonl.gz": lambda path, rows: write(path, gzip.compress(json_lines(*rows).encode())),
    "c.json": lambda path, rows: write(path, json.dumps(rows, indent=1)),
    "d.json.xz": lambda path, rows: write(path, lzma.compress(json.dumps({"data": rows}).encode())),
    "e.json": lambda path, rows: write(path, json_lines(*rows)),
    "f.csv": lambda path, rows: write(path, as_csv(rows)),
    "g.csv.gz": lambda path, rows: write(path, gzip.compress(as_csv(rows).encode())),
    "h.tsv": lambda path, rows: write(path, as_csv(rows, "\t")),
    "i.parquet": as_parquet,
    "j.arrow": as_arrow,
    "saved": as_saved,
    "folder": lambda path, rows: write(path / "rows.csv", as_csv(rows)).parent,
}

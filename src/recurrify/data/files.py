"""Documents out of local files and folders."""

import gzip
import json
import lzma
import os
import zlib
from pathlib import Path
from typing import Any

from recurrify.data.records import Document, Skipped
from recurrify.data.splits import EVERYTHING, SPLIT_OF_NAME, deal
from recurrify.errors import UserError

JSON_LINES = (".jsonl", ".ndjson")
COMPRESSED = (".gz", ".xz")


class UnreadableFileError(Exception):
    """A file that holds no text: an error when it was asked for by name, skipped when met in a folder."""

    def __init__(self, reason: str, way_out: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.way_out = way_out


def load_file(path: Path, split: str, text_field: str, skipped: list[Skipped]) -> list[Document]:
    """The documents of one file: one, or one per line of a JSON Lines file."""
    try:
        documents = read_documents(path, path.name, text_field, skipped)
    except UnreadableFileError as unreadable:
        raise UserError(f"{path} {unreadable.reason}: {unreadable.way_out}.") from unreadable
    return deal(documents, split)


def load_folder(folder: Path, split: str, text_field: str, skipped: list[Skipped]) -> list[Document]:
    """The documents of every text file below a folder, in the order of their paths."""
    files = _visible_files(folder)
    splits_of_its_own = {name for file in files if (name := _own_split(file)) is not None}
    # One such name alone may be an accident: a source tree with a `test` folder is no split corpus.
    if len(splits_of_its_own) < 2 or split == EVERYTHING:
        return deal(_read_all(folder, files, text_field, skipped), split)
    if split not in splits_of_its_own:
        found = ", ".join(sorted(splits_of_its_own))
        raise UserError(f"{folder} has no split {split!r}, only {found}: ask for another, or for all.")
    chosen = [file for file in files if _own_split(file) == split]
    return _read_all(folder, chosen, text_field, skipped)


def read_documents(path: Path, name: str, text_field: str, skipped: list[Skipped]) -> list[Document]:
    text = read_text_file(path)
    if uncompressed_suffix(path) in JSON_LINES:
        return _read_json_lines(path, name, text, text_field, skipped)
    return [Document(name, text)]


def _visible_files(folder: Path) -> list[Path]:
    """Paths relative to the folder, sorted; hidden files and folders such as `.git` are left out."""
    files: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(parent, name).relative_to(folder) for name in names if not name.startswith(".")]
    return sorted(files, key=lambda file: file.as_posix())


def _own_split(file: Path) -> str | None:
    """The split that a file's top folder, or its own name at the top (`train.jsonl`), says it is in."""
    if len(file.parts) > 1:
        return SPLIT_OF_NAME.get(file.parts[0])
    # Not any suffix: `train.py` and `test.py` side by side are programs, not splits.
    if uncompressed_suffix(file) not in (".txt", *JSON_LINES):
        return None
    return SPLIT_OF_NAME.get(file.name.partition(".")[0])


def _read_all(folder: Path, files: list[Path], text_field: str, skipped: list[Skipped]) -> list[Document]:
    documents: list[Document] = []
    for file in files:
        try:
            documents += read_documents(folder / file, file.as_posix(), text_field, skipped)
        except UnreadableFileError as unreadable:
            skipped.append(Skipped(file.as_posix(), unreadable.reason))
    if not documents:
        raise UserError(f"{folder} holds no text ({len(files)} files looked at): give a folder with UTF-8 text files.")
    return documents


def read_text_file(path: Path) -> str:
    """The text of a file as it stands, Windows newlines and all, without a byte-order mark."""
    content = _read_bytes(path)
    nul = content.find(b"\0")
    if nul >= 0:
        raise UnreadableFileError(f"is binary, with a NUL byte at offset {nul}", "give UTF-8 text")
    try:
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8, with byte 0x{content[error.start]:02x} at offset {error.start}"
        raise UnreadableFileError(reason, "convert it to UTF-8") from error
    if not text.strip():
        raise UnreadableFileError("is empty", "give a file with text in it")
    return text


def _read_bytes(path: Path) -> bytes:
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as gzip_file:
                return gzip_file.read()
        if path.suffix == ".xz":
            with lzma.open(path) as xz_file:
                return xz_file.read()
        return path.read_bytes()
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise UnreadableFileError(f"is no whole {path.suffix} file ({error})", "compress it again") from error
    except OSError as error:
        raise UnreadableFileError(f"cannot be read ({error.strerror})", "check its rights") from error


def uncompressed_suffix(path: Path) -> str:
    return path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix


def _read_json_lines(path: Path, name: str, content: str, text_field: str, skipped: list[Skipped]) -> list[Document]:
    documents: list[Document] = []
    # Not `splitlines`: it also breaks at characters such as U+2028 that may stand inside a JSON string.
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        text = _text_of_line(line, text_field, where=f"{path}, line {number}")
        document = Document(f"{name}:{number}", text)
        if text.strip():
            documents.append(document)
        else:
            skipped.append(Skipped(document.name, f"has an empty {text_field!r}"))
    return documents


def json_object(line: str, text_field: str, where: str) -> dict[str, Any]:
    """One line of JSON lines."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error}): write one JSON object per line.") from error
    if not isinstance(record, dict):
        raise UserError(f"{where} is not a JSON object: write one such as {{{json.dumps(text_field)}: ...}}.")
    return record


def _text_of_line(line: str, text_field: str, where: str) -> str:
    record = json_object(line, text_field, where)
    if text_field not in record:
        fields = ", ".join(record) or "none at all"
        raise UserError(
            f"{where} has no field {text_field!r}: name one of its own ({fields}) with --text-field, or `text_field`."
        )
    text = record[text_field]
    if not isinstance(text, str):
        raise UserError(f"{where} has no text in {text_field!r} but {text!r:.40}: give a JSON string.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where} has half a surrogate pair in {text_field!r}: mend its escapes.") from error
    return text

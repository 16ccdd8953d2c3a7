"""Bytes and text of local files, compressed or not."""

import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from recurrify.errors import UserError

COMPRESSED = (".gz", ".xz")
BLOCK = 2**22


class UnreadableFileError(UserError):
    """A file that cannot be read as text: an error if the user named it, skipped if it was found in a folder."""

    def __init__(self, path: Path, reason: str, advice: str) -> None:
        super().__init__(f"{path} {reason}: {advice}.")
        self.reason = reason


def check_regular(path: Path) -> None:
    """Reject FIFOs, sockets and devices: reading one can block forever or never end."""
    if path.exists() and not path.is_file():
        raise UnreadableFileError(path, "is not a regular file", "give a file or a folder")


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """A regular file, decompressed if its name ends in .gz or .xz; what its reader raises is explained."""
    check_regular(path)
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
    try:
        with openers.get(path.suffix.lower(), open)(path, "rb") as file:
            yield file
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise UnreadableFileError(
            path, f"is not a complete {path.suffix} file ({error})", "compress it again"
        ) from error
    except OSError as error:
        raise UnreadableFileError(path, f"cannot be read ({error.strerror})", "check its permissions") from error


def read_bytes(path: Path) -> bytes:
    """The content of a regular file, decompressed if its name ends in .gz or .xz."""
    with open_bytes(path) as file:
        return file.read()


def read_text_file(path: Path) -> str:
    """The UTF-8 text of a file, newlines unchanged, without a byte-order mark."""
    text = "".join(_checked_text(path))
    if not text.strip():
        raise UnreadableFileError(path, "is empty", "give a file with text in it")
    return text


def text_lines(path: Path, newline: str) -> Iterator[str]:
    """The lines of a file of UTF-8 text, one at a time, after a check of the whole file.

    `newline` is as in `open`: "" to end lines at \\n, \\r and \\r\\n, "\\n" to end them at \\n alone.
    """
    if not sum(bool(part.strip()) for part in _checked_text(path)):  # a sum looks at all parts
        raise UnreadableFileError(path, "is empty", "give a file with text in it")
    with open_bytes(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline=newline) as lines:
        yield from lines


def _checked_text(path: Path) -> Iterator[str]:
    """The text of a file in parts, without a byte-order mark."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    start = 0
    with open_bytes(path) as file:
        while True:
            part = file.read(BLOCK)
            nul = part.find(b"\0")
            if nul >= 0:
                reason = f"is binary, with a NUL byte at offset {start + nul}"
                raise UnreadableFileError(path, reason, "give UTF-8 text")
            held = len(decoder.getstate()[0])
            try:
                text = decoder.decode(part, final=not part)
            except UnicodeDecodeError as error:
                place = start - held + error.start
                reason = f"is not UTF-8, with byte 0x{error.object[error.start]:02x} at offset {place}"
                raise UnreadableFileError(path, reason, "convert it to UTF-8") from error
            yield text if start else text.removeprefix("\ufeff")
            if not part:
                return
            start += len(part)


def uncompressed_suffix(path: Path) -> str:
    """The file name's suffix without .gz or .xz, in lower case: ".jsonl" for "A.JSONL.GZ"."""
    return (path.with_suffix("").suffix if path.suffix.lower() in COMPRESSED else path.suffix).lower()

"""Bytes and text of local files, compressed or not."""

import gzip
import lzma
import zlib
from pathlib import Path

from recurrify.errors import UserError

COMPRESSED = (".gz", ".xz")


class UnreadableFileError(UserError):
    """A file that cannot be read as text: an error if the user named it, skipped if it was found in a folder."""

    def __init__(self, path: Path, reason: str, advice: str) -> None:
        super().__init__(f"{path} {reason}: {advice}.")
        self.reason = reason


def check_regular(path: Path) -> None:
    """Reject FIFOs, sockets and devices: reading one can block forever or never end."""
    if path.exists() and not path.is_file():
        raise UnreadableFileError(path, "is not a regular file", "give a file or a folder")


def read_bytes(path: Path) -> bytes:
    """The content of a regular file, decompressed if its name ends in .gz or .xz."""
    check_regular(path)
    try:
        match path.suffix:
            case ".gz":
                return gzip.decompress(path.read_bytes())
            case ".xz":
                return lzma.decompress(path.read_bytes())
            case _:
                return path.read_bytes()
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise UnreadableFileError(
            path, f"is not a complete {path.suffix} file ({error})", "compress it again"
        ) from error
    except OSError as error:
        raise UnreadableFileError(path, f"cannot be read ({error.strerror})", "check its permissions") from error


def read_text_file(path: Path) -> str:
    """The UTF-8 text of a file, newlines unchanged, without a byte-order mark."""
    content = read_bytes(path)
    nul = content.find(b"\0")
    if nul >= 0:
        raise UnreadableFileError(path, f"is binary, with a NUL byte at offset {nul}", "give UTF-8 text")
    try:
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8, with byte 0x{content[error.start]:02x} at offset {error.start}"
        raise UnreadableFileError(path, reason, "convert it to UTF-8") from error
    if not text.strip():
        raise UnreadableFileError(path, "is empty", "give a file with text in it")
    return text


def uncompressed_suffix(path: Path) -> str:
    """The file name's suffix without .gz or .xz: ".jsonl" for "a.jsonl.gz"."""
    return path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix

"""The standard library of the running Python: a corpus of long documents on every machine."""

import os
import sysconfig
from pathlib import Path

from recurrify.data.files import UnreadableFileError, read_text_file
from recurrify.data.records import Document, Skipped
from recurrify.data.splits import EVERYTHING, stable_hash
from recurrify.errors import UserError

SHORTEST_DOCUMENT = 2_000
"""Characters; shorter files have no use for memory."""

FOREIGN_FOLDERS = {"site-packages", "dist-packages", "_bundled", "__pycache__"}
TEST_FOLDERS = {"test", "tests", "idle_test"}
DATA_FOLDERS = {"pydoc_data"}


def load_stdlib(split: str, limit: int | None, skipped: list[Skipped]) -> list[Document]:
    """One document per source file; only unreadable files are added to `skipped`."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents: list[Document] = []
    for file in _source_files(root):
        if split not in (EVERYTHING, split_of_module(file)):
            continue
        try:
            documents.append(Document(file.as_posix(), read_text_file(root / file)))
        except UnreadableFileError as unreadable:
            skipped.append(Skipped(file.as_posix(), unreadable.reason))
    long = [document for document in documents if len(document.text) >= SHORTEST_DOCUMENT]
    if not long:
        raise UserError(f"This Python has no standard library sources in {root}: give your own text instead.")
    return long[:limit]


def split_of_module(file: Path) -> str:
    """Whole modules and packages go to one split, by name, so that it is the same in every Python version."""
    tenth = stable_hash(file.parts[0].removesuffix(".py")) % 10
    return {0: "valid", 1: "test"}.get(tenth, "train")


def _source_files(root: Path) -> list[Path]:
    """Relative paths of the library's own sources: no tests, no data, no build output."""
    left_out = FOREIGN_FOLDERS | TEST_FOLDERS | DATA_FOLDERS
    files: list[Path] = []
    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in left_out and not name.startswith("config-")]
        files += [Path(parent, name).relative_to(root) for name in names if name.endswith(".py")]
    # A file has at least as many bytes as characters.
    long = [file for file in files if (root / file).stat().st_size >= SHORTEST_DOCUMENT]
    return sorted((file for file in long if not _is_table(file)), key=lambda file: file.as_posix())


def _is_table(file: Path) -> bool:
    if file.parts[0] == "encodings":
        return file.name not in ("__init__.py", "aliases.py")
    return file.name.startswith("_sysconfigdata")

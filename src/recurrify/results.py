"""Results as JSON files, each with its provenance."""

import errno
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from safetensors import SafetensorError

from recurrify.errors import UserError

__all__ = [
    "check_overwrites_nothing",
    "check_takes_files",
    "full_disk_explained",
    "git_state",
    "load_result",
    "machine",
    "own_version",
    "peak_memory",
    "provenance",
    "read_given",
    "save_result",
    "set_earlier_aside",
    "write_whole",
]

LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "numpy", "pandas", "scikit-learn")
SOURCE_ROOT = Path(__file__).resolve().parents[2]
GIT_SECONDS = 20


def provenance(
    config: Mapping[str, Any],
    *,
    seed: int | None = None,
    data_checksum: str | None = None,
    started: float | None = None,
) -> dict[str, Any]:
    """Everything that the numbers of a run may depend on; unknown facts are None.

    `started` is what `time.time()` gave when the run began. Nothing here names the host, the user or a
    folder, unless `config` does.
    """
    return {
        "config": dict(config),
        "seed": seed,
        "recurrify": own_version(),
        "git": git_state(SOURCE_ROOT),
        "libraries": {"python": platform.python_version()} | {name: _version(name) for name in LIBRARIES},
        "machine": machine(),
        "date_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_seconds": None if started is None else round(time.time() - started, 3),
        "peak_memory_bytes": peak_memory(),
        "data_checksum": data_checksum,
    }


def own_version() -> str | None:
    """recurrify's version: from a checkout's pyproject.toml, which is newest, or as installed."""
    try:
        project = tomllib.loads((SOURCE_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        if project["name"] == "recurrify":
            return str(project["version"])
    except (OSError, ValueError, KeyError):
        pass
    return _version("recurrify")


def git_state(root: Path) -> dict[str, Any]:
    """The commit at `root` and whether files differ from it; both None without git.

    A copy without history can name its commit in the environment variable RECURRIFY_COMMIT.
    """
    unknown = {"commit": os.environ.get("RECURRIFY_COMMIT"), "dirty": None}
    # Only `root` itself: an installation inside another repository would report that one's commit.
    if not (root / ".git").exists():
        return unknown
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain")
    if commit is None or changes is None:
        return unknown
    return {"commit": commit, "dirty": bool(changes)}


def _git(root: Path, *arguments: str) -> str | None:
    # Inside a git hook these variables point at the repository of the hook.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            check=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=GIT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", errors="replace").strip()


@cache
def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """The machine: CPU, cores that this process may use, memory, GPU, system."""
    torch = _loaded_torch()
    gpu = torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "ram_bytes": _memory_bytes(),
        "gpu": gpu,
        "system": f"{platform.system()} {platform.machine()}",
    }


def _memory_bytes() -> int | None:
    if not hasattr(os, "sysconf"):  # on Windows
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _loaded_torch() -> Any:
    # If numbers depend on torch, it is imported already.
    return sys.modules.get("torch")


def _cpu_name() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or None


def peak_memory() -> dict[str, int | None]:
    """The most memory this process has held so far, in bytes; the GPU's only where CUDA is in use."""
    torch = _loaded_torch()
    gpu = torch.cuda.max_memory_allocated() if torch is not None and torch.cuda.is_initialized() else None
    return {"cpu": _peak_resident_bytes(), "gpu": gpu}


def _peak_resident_bytes() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def save_result(path: str | Path, result: Mapping[str, Any]) -> None:
    """Write `result` as strict JSON, atomically; numbers that are not finite become null."""
    text = json.dumps(_plain(result), indent=2, allow_nan=False) + "\n"
    # Lists of numbers on one line. Text is not affected: JSON strings contain no line breaks.
    text = re.sub(r"\[\n\s+([-+.,\deE\s]+?)\n\s*\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    write_whole(path, text.encode("utf-8"))


def read_given(path: str | Path) -> str:
    """The text of a file that the user named; raises `UserError` if it is no regular file of UTF-8 text."""
    path = Path(path)
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise UserError(f"{path} is not a regular file: reading it could wait forever.")
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text: byte 0x{error.object[error.start]:02x} at {error.start}."
        ) from error


def load_result(path: str | Path) -> dict[str, Any]:
    """Read what `save_result` wrote."""
    if not Path(path).exists():
        raise UserError(f"There is no result at {path}: check the path, or run the command that makes it.")
    text = read_given(path)
    try:
        result = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a whole JSON file ({error}): delete it and run again.") from error
    if not isinstance(result, dict):
        raise UserError(f"{path} is not a result: it holds a JSON {type(result).__name__}, not an object.")
    return result


def write_whole(path: str | Path, content: bytes) -> None:
    """Write a file atomically: a reader finds the old content or the new, never a part."""
    path = Path(path)
    try:
        if not path.name or path.is_dir():
            raise UserError(f"{path} is a folder: give the name of a file.")
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a regular file: give the name of a file.")
        if path.is_symlink():  # the file that it names is replaced, not the link
            path = path.resolve()
        above = next(one for one in path.parents if one.exists())
        if not above.is_dir():
            raise UserError(f"{path} cannot be written, because {above} is a file, not a folder: choose another name.")
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{path} could not be written: {reason}. The previous file is unchanged.") from error


def set_earlier_aside(path: Path, result: Mapping[str, Any]) -> Path | None:
    """Rename the result at `path`, by its date, if it has other settings than `result`; returns its new name."""
    if not path.is_file():
        return None
    try:
        made = load_result(path).get("provenance")
    except UserError:  # damaged: kept as well
        made = None
    made = made if isinstance(made, dict) else {}
    if made.get("config") == _plain(result["provenance"]["config"]):
        return None
    date = str(made.get("date_utc") or datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat())
    aside = path.with_stem(f"{path.stem}-{re.sub('[^0-9]', '', date[:19])}")
    return path.rename(path.with_stem(f"{aside.stem}-{time.time_ns()}") if aside.exists() else aside)


def check_takes_files(folder: Path) -> None:
    """Before long work: raise `UserError` if files cannot be written to a folder, which may not exist yet."""
    try:
        above = next(one for one in (folder, *folder.absolute().parents) if one.exists())
        if not above.is_dir():
            raise UserError(f"{folder} cannot be written to: {above} is a file, not a folder; choose another place.")
        with NamedTemporaryFile(dir=above):
            pass
    except OSError as error:
        raise UserError(f"{folder} cannot be written to: {error.strerror or error}; choose another place.") from error


def check_overwrites_nothing(out: Path | None, *read: str | Path | None, content: bytes = b"{") -> None:
    """Before long work: raise `UserError` if `out` cannot be written, or would overwrite an input or a file of another
    kind.

    Args:
        out: Where the result goes.
        read: Inputs of the command: files, or folders, in which only results may be overwritten.
        content: How the new file begins.
    """
    if out is None:
        return
    try:
        place = out.expanduser().resolve()
        check_takes_files(place.parent)
        if not place.exists():
            return
        if not place.is_file():
            raise UserError(f"{out} is {'a folder' if place.is_dir() else 'no regular file'}: give the name of a file.")
        for one in (Path(one).expanduser().resolve() for one in read if one is not None):
            if place == one or (place.is_relative_to(one) and b'"provenance"' not in place.read_bytes()):
                raise UserError(f"`out` is {str(out)!r}, which this command reads: choose another file.")
        with place.open("rb") as file:
            first = file.read(64)
    except (OSError, RuntimeError) as error:
        raise UserError(f"{out} cannot be written: {getattr(error, 'strerror', None) or error}.") from error
    if first and _kind(first) != _kind(content):
        raise UserError(f"{out} exists already and holds something else: choose another file, or move it.")


def _kind(content: bytes) -> bytes:
    """The kind of a file by its first byte: a result, a page, a picture; empty for all others."""
    first = content[:64].lstrip()[:1].replace(b"[", b"{")
    return first if first in (b"{", b"<", b"\x89") else b""


def _plain(value: Any) -> Any:
    """`value` in the types JSON has."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy's and torch's scalars and arrays
        return _plain(value.tolist())
    raise TypeError(f"a result holds JSON types only: got {type(value).__name__}")


@contextmanager
def full_disk_explained(out: str) -> Iterator[None]:
    """Turn the errors of a full, read-only or faulty disk into a sentence."""
    try:
        yield
    except Exception as error:  # the tokenizers library knows no other type
        explained = explain_full_disk(error, out)
        if explained is error:
            raise
        raise explained from error


NO_SPACE = os.strerror(errno.ENOSPC)
TORCH_CANNOT_WRITE = ("PytorchStreamWriter", "inline_container.cc", "iostream error")
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def explain_full_disk(error: Exception, out: str) -> Exception:
    """A `UserError` if a file could not be written, which torch reports as a RuntimeError, or if the disk failed; other
    errors as they are."""
    text = str(error)
    by_torch = any(words in text for words in TORCH_CANNOT_WRITE)
    written = isinstance(error, SafetensorError) or by_torch or NO_SPACE in text
    from_rust = re.search(r"\(os error (\d+)\)", text)
    number = int(from_rust[1]) if from_rust else getattr(error, "errno", None)
    if number == errno.EIO and not written:
        return UserError(
            f"A read or write error of the disk ({text.splitlines()[0]}): check the disk and run the same command "
            "again to resume from the newest checkpoint."
        )
    if not written and number not in FULL_DISK:
        return error
    reason = f"probably {NO_SPACE}" if by_torch and NO_SPACE not in text else text.splitlines()[0]
    return UserError(
        f"Could not write to {out!r} ({reason}): free some space and run the same command again to "
        "resume from the newest checkpoint, which is intact."
    )

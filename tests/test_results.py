"""Results are saved and loaded unchanged; provenance never fails."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recurrify import results
from recurrify.errors import UserError
from recurrify.records import check_takes_results
from recurrify.results import (
    check_overwrites_nothing,
    git_state,
    load_result,
    machine,
    provenance,
    save_result,
    set_earlier_aside,
)


def test_a_saved_result_is_loaded_unchanged(tmp_path: Path) -> None:
    result = {"rows": [{"overlap": 0, "perplexity": 12.5, "seed": None}], "note": "T − o", "done": True}
    save_result(tmp_path / "new" / "result.json", result)
    assert load_result(tmp_path / "new" / "result.json") == result


def test_values_that_json_lacks_are_converted(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    odd = {
        "nan": float("nan"),
        "inf": [float("inf")],
        "pair": (1, 2),
        3: Path("a"),
        "mean": numpy.float32(0.5),
    }
    save_result(tmp_path / "r.json", odd)
    text = (tmp_path / "r.json").read_text()
    assert json.loads(text) == {"nan": None, "inf": [None], "pair": [1, 2], "3": "a", "mean": 0.5}
    assert "NaN" not in text
    with pytest.raises(TypeError, match="object"):
        save_result(tmp_path / "r.json", {"x": object()})


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    path = tmp_path / "result.json"
    save_result(path, {"run": 1})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(results.os, failing, full)
    with pytest.raises(UserError, match=r"result\.json.*No space left"):
        save_result(path, {"run": 2})
    assert load_result(path) == {"run": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", [".", "", "..", "/", "runs"])
def test_a_folder_is_not_written_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"is a folder: give the name of a file\.$"):
        save_result(name, {"run": 1})
    assert [path.name for path in tmp_path.rglob("*")] == ["runs"]


@pytest.mark.parametrize("content", [b'{"rows": [1, 2', b"\xff\xfe", b"[1]", b""])
def test_broken_files_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"broken\.json"):
        load_result(path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no result at .*absent\.json"):
        load_result(tmp_path / "absent.json")
    with pytest.raises(UserError, match="cannot be read"):
        load_result(tmp_path)


def test_provenance_describes_the_run(tmp_path: Path) -> None:
    facts = provenance({"window": 64}, seed=3, data_checksum="sha256:ab", started=time.time() - 5)
    assert facts["config"] == {"window": 64}
    assert facts["seed"] == 3
    assert facts["data_checksum"] == "sha256:ab"
    assert 5 <= facts["wall_seconds"] < 60
    assert set(facts["libraries"]) == {"python", *results.LIBRARIES}
    assert facts["libraries"]["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert facts["recurrify"]
    assert facts["machine"]["cores"] >= 1
    assert facts["peak_memory_bytes"]["cpu"] > 1_000_000
    assert facts["date_utc"].endswith("+00:00")
    save_result(tmp_path / "r.json", facts)
    assert load_result(tmp_path / "r.json") == facts


def test_provenance_names_no_host_and_no_folder() -> None:
    text = json.dumps(provenance({}))
    assert str(Path.home()) not in text
    assert str(results.SOURCE_ROOT) not in text


def test_provenance_survives_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(results, "SOURCE_ROOT", tmp_path)
    monkeypatch.setattr(results, "LIBRARIES", ("no-such-library",))
    facts = provenance({})
    assert facts["git"] == {"commit": None, "dirty": None}
    assert facts["libraries"]["no-such-library"] is None


def test_an_installation_inside_another_repository_does_not_claim_its_commit(tmp_path: Path) -> None:
    _repository(tmp_path)
    inside = tmp_path / "lib"
    inside.mkdir()
    assert git_state(inside) == {"commit": None, "dirty": None}


def test_a_copy_without_history_may_name_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECURRIFY_COMMIT", "abc123")
    assert git_state(tmp_path) == {"commit": "abc123", "dirty": None}


def test_git_state_knows_the_commit_and_changes(tmp_path: Path) -> None:
    _repository(tmp_path)
    clean = git_state(tmp_path)
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "file").write_text("changed")
    assert git_state(tmp_path) == {"commit": clean["commit"], "dirty": True}


def _repository(folder: Path) -> None:
    (folder / "file").write_text("first")
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "file"], [*author, "commit", "-q", "-m", "first"]):
        try:
            subprocess.run(["git", "-C", str(folder), *command], check=True)
        except FileNotFoundError:
            pytest.skip("git is not installed")


def test_numbers_in_lists_take_one_line_and_texts_stay_as_they_are(tmp_path):
    result = {
        "curve": [1.5, -2e-9, 3],
        "empty": [],
        "rows": [[1, 2], [3, 4]],
        "text": ["[\n  1\n]"],
        "none": [None, 1.0],
    }
    path = tmp_path / "result.json"
    save_result(path, result)
    assert load_result(path) == result
    assert '"curve": [1.5, -2e-09, 3]' in path.read_text(encoding="utf-8")


def test_a_cpu_has_a_name():
    assert machine()["cpu"]


@pytest.mark.parametrize("there", [b"date,sales\n2024-01-01,3\n", b"<!doctype html>", b"\x89PNG", b"Call me Ishmael."])
def test_result_does_not_replace_another_kind_of_file(tmp_path: Path, there: bytes) -> None:
    path = tmp_path / "mine"
    path.write_bytes(there)
    with pytest.raises(UserError, match="holds something else"):
        check_overwrites_nothing(path)


@pytest.mark.parametrize("there", [b"", b'{"rows": [', b" {}"])
def test_result_replaces_an_earlier_result(tmp_path: Path, there: bytes) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(there)
    check_overwrites_nothing(path, tmp_path / "other", None)
    save_result(path, {"rows": []})
    assert load_result(path) == {"rows": []}


def made_with(width: int, date: str = "2026-01-02T03:04:05+00:00") -> dict[str, object]:
    return {"provenance": {"config": {"sizes": (width, 2)}, "date_utc": date}}


def test_a_result_of_other_settings_is_kept_under_its_date(tmp_path: Path) -> None:
    path = tmp_path / "probe.json"
    assert set_earlier_aside(path, made_with(3)) is None
    save_result(path, made_with(3))
    assert set_earlier_aside(path, made_with(3, "later")) is None
    assert set_earlier_aside(path, made_with(4)) == tmp_path / "probe-20260102030405.json"
    assert not path.exists()
    path.write_text("not a result")
    aside = set_earlier_aside(path, made_with(4))
    assert aside is not None
    assert aside.read_text() == "not a result"
    for width in (5, 6):  # of the same second
        save_result(path, made_with(width))
        set_earlier_aside(path, made_with(4))
    assert len(list(tmp_path.glob("probe-20260102030405*.json"))) == 3


def test_a_folder_to_write_into_is_no_file_and_not_in_one(tmp_path: Path) -> None:
    check_takes_results(tmp_path / "new" / "folder")
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(UserError, match="is a file, not a folder"):
            check_takes_results(place)
    (tmp_path / "run.json").touch()
    with pytest.raises(UserError, match="the folder of a training run"):
        check_takes_results(tmp_path)


def test_files_of_a_folder_that_is_read_stay_but_results(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="which this command reads"):
        check_overwrites_nothing(tmp_path / "config.json", tmp_path)
    save_result(tmp_path / "evaluation.json", {"provenance": {}})
    check_overwrites_nothing(tmp_path / "evaluation.json", tmp_path)
    check_overwrites_nothing(tmp_path / "new.json", tmp_path)


@pytest.mark.parametrize("out", ["a" * 300 + ".json", "~nobody-of-this-name/x.json"])
def test_impossible_path_raises_one_sentence(out: str) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        check_overwrites_nothing(Path(out))


def test_inputs_are_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="which this command reads"):
        check_overwrites_nothing(Path("data.json"), "other", tmp_path / "data.json")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match=r"file is a file, not a folder"):
        save_result(tmp_path / "file" / "deep" / "result.json", {})


def test_place_that_cannot_be_written_is_reported_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match="file is a file, not a folder"):
        check_overwrites_nothing(tmp_path / "file" / "result.json")
    monkeypatch.setattr(os, "access", lambda *_: False)  # as for a user without the right
    with pytest.raises(UserError, match="is read-only: choose another name"):
        check_overwrites_nothing(tmp_path / "result.json")


def test_special_files_and_links(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="is not a regular file"):
        save_result(tmp_path / "pipe", {})
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    save_result(tmp_path / "link.json", {"a": 1})
    assert (tmp_path / "link.json").is_symlink()
    assert load_result(tmp_path / "real.json") == {"a": 1}

"""Hugging Face data sets, with local ones in place of the hub."""

from pathlib import Path

import datasets
import pytest

from recurrify.data import Document, Skipped, load_documents
from recurrify.errors import UserError
from support.hub import Hub


def dataset(*texts: str) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": list(texts), "id": list(range(len(texts)))})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(
        monkeypatch,
        datasets.DatasetDict(train=dataset("a", "", "b", "c"), validation=dataset("d"), unsupervised=dataset("e")),
    )


@pytest.mark.parametrize("source", ["hf:owner/name", "owner/name"])
def test_own_splits_are_kept(hub: Hub, source: str) -> None:
    skipped: list[Skipped] = []
    documents = load_documents(source, "train", skipped=skipped)
    assert documents == [Document("train/0", "a"), Document("train/2", "b"), Document("train/3", "c")]
    assert skipped == [Skipped("owner/name", "1 rows are empty")]
    assert load_documents(source, "valid") == [Document("validation/0", "d")]
    assert [document.text for document in load_documents(source, "all")] == ["a", "b", "c", "d", "e"]
    assert hub.calls[0] == ("owner/name", None, False)
    with pytest.raises(UserError, match="owner/name has no split 'test', only train, validation"):
        load_documents(source, "test")


@pytest.mark.parametrize("offline", [False, True])
def test_limit_streams_unless_offline(hub: Hub, offline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", offline)
    assert [document.text for document in load_documents("hf:owner/name:small", limit=2)] == ["a", "b"]
    assert hub.calls == [("owner/name", "small", not offline)]


def test_data_set_with_train_alone_is_split(hub: Hub) -> None:
    hub.content = datasets.DatasetDict(train=dataset(*(f"text {number}" for number in range(40))))
    splits = [load_documents("hf:owner/name", split) for split in ("train", "valid", "test")]
    assert [len(split) for split in splits] == [36, 2, 2]
    assert len({document.name for split in splits for document in split}) == 40
    assert load_documents("hf:owner/name", "valid", limit=1) == splits[1][:1]


def test_missing_field_is_reported_with_those_there_are(hub: Hub) -> None:
    with pytest.raises(UserError, match="no field 'body', only text, id: choose one of them with --text-field"):
        load_documents("hf:owner/name", text_field="body")
    with pytest.raises(UserError, match="row 1, has no text in 'id' but 0"):
        load_documents("hf:owner/name", text_field="id")


@pytest.mark.parametrize("source", ["hf:owner/name", "owner/name"])
def test_hub_error_is_one_sentence(hub: Hub, source: str) -> None:
    hub.content = ConnectionError("Couldn't reach the Hub.\nTraceback and more")
    with pytest.raises(UserError, match=r"\(ConnectionError: Couldn't reach the Hub\): check its name") as error:
        load_documents(source)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("prefix", ["", "hf:"])
def test_saved_data_set(tmp_path: Path, prefix: str) -> None:
    splits = datasets.DatasetDict(train=dataset("a", "b"), test=dataset("c"))
    splits.save_to_disk(tmp_path / "both")
    assert load_documents(f"{prefix}{tmp_path / 'both'}", "test") == [Document("test/0", "c")]


def test_folder_with_prefix_is_read_by_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "corpus"
    folder.mkdir()
    dataset("a", "b").to_parquet(folder / "train.parquet")
    dataset("c").to_parquet(folder / "validation.parquet")
    assert load_documents(f"hf:{folder}", "valid") == [Document("validation/0", "c")]
    assert load_documents(folder, "valid") == [Document("validation.parquet:1", "c")]

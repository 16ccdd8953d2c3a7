"""Token ids, their cache, and the checksum."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from recurrify.data import (
    Document,
    Skipped,
    TokenizedDocument,
    checksum,
    load_documents,
    token_cache,
    tokenize_cached,
    tokenize_documents,
    tokens,
)
from recurrify.errors import UserError
from support.tokenizers import like_gpt2

DOCUMENTS = [
    Document("one", "the cat sat on the mat, déjà vu"),
    Document("none", "x"),
    Document("two", "the dog\r\nsat on the cat  " * 50),
]


def small_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    made = like_gpt2(["the cat sat on the mat the dog sat on the cat " * 5], vocabulary)
    made.model_max_length = 16
    return made


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return small_tokenizer(280)


def assert_same(left: list[TokenizedDocument], right: list[TokenizedDocument]) -> None:
    assert [document._replace(ids=None) for document in left] == [document._replace(ids=None) for document in right]
    for first, second in zip(left, right, strict=True):
        assert first.ids.dtype == second.ids.dtype == np.int32
        np.testing.assert_array_equal(first.ids, second.ids)


def test_ids_decode_to_the_documents(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    skipped: list[Skipped] = []
    result = tokenize_documents(DOCUMENTS, tokenizer, skipped=skipped)
    assert [document.name for document in result] == ["one", "two"]
    assert [tokenizer.decode(document.ids.tolist()) for document in result] == [
        DOCUMENTS[0].text,
        DOCUMENTS[2].text,
    ]
    assert len(result[1].ids) > tokenizer.model_max_length
    assert (result[0].words, result[0].characters, result[0].bytes) == (8, 31, 33)
    assert skipped == [Skipped("none", "gives 1 token(s), too few to predict any")]
    assert "longer than" not in caplog.text


def test_batches_do_not_change_the_ids(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tokenize_documents(DOCUMENTS, tokenizer)
    monkeypatch.setattr(tokens, "BATCH_CHARACTERS", 1)
    assert_same(tokenize_documents(DOCUMENTS, tokenizer, show_progress=True), whole)
    assert capsys.readouterr().out == ""


def test_documents_without_tokens_raise(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UserError, match="no text gives 2 tokens or more"):
        tokenize_documents(DOCUMENTS[1:2], tokenizer)


def test_checksum_differs_for_different_documents() -> None:
    assert checksum([Document("a", "b")]) == ("3c9d591045bc8876f9d0399bbfb05c6a412096e906f73278f98406cd5dca86df")
    variants = [
        [Document("ab", "c")],
        [Document("a", "bc")],
        [Document("a", "b"), Document("c", "")],
        [Document("c", ""), Document("a", "b")],
        [],
    ]
    assert len({checksum(documents) for documents in variants}) == len(variants)


def test_cache_gives_the_same_result(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_skipped: list[Skipped] = []
    first = tokenize_cached(DOCUMENTS, tokenizer, tmp_path / "cache", skipped=first_skipped)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".safetensors"]
    # Settings of the tokenizer's last call do not matter.
    tokenizer("some text", truncation=True, max_length=4)
    monkeypatch.setattr(token_cache, "tokenize_documents", None)
    second_skipped: list[Skipped] = []
    second = tokenize_cached(DOCUMENTS, tokenizer, tmp_path / "cache", skipped=second_skipped)
    assert_same(first, second)
    assert first_skipped == second_skipped != []


def test_cache_depends_on_text_and_tokenizer(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenize_cached(DOCUMENTS, tokenizer, tmp_path)
    other = small_tokenizer(262)
    assert_same(tokenize_cached(DOCUMENTS, other, tmp_path), tokenize_documents(DOCUMENTS, other))
    changed = [Document("one", "the cat sat on the dog")]
    assert_same(tokenize_cached(changed, tokenizer, tmp_path), tokenize_documents(changed, tokenizer))
    assert len(list(tmp_path.iterdir())) == 3


def test_text_that_changes_while_it_is_read_is_not_cached(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="changed while it was read"):
        tokenize_cached(DOCUMENTS, tokenizer, tmp_path, text_checksum=checksum(DOCUMENTS[:1]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "foreign"])
def test_damaged_cache_is_rebuilt(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, damage: str) -> None:
    tokenize_cached(DOCUMENTS, tokenizer, tmp_path)
    fresh = tokenize_documents(DOCUMENTS, tokenizer)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    damaged = {
        "truncated": whole[:-5],
        "flipped": whole[:-1] + bytes([whole[-1] ^ 1]),
        "emptied": b"",
        "foreign": b"not safetensors at all",
    }
    path.write_bytes(damaged[damage])
    assert_same(tokenize_cached(DOCUMENTS, tokenizer, tmp_path), fresh)
    assert path.read_bytes() == whole


def test_killed_write_leaves_nothing(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        tokenize_cached(DOCUMENTS, tokenizer, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unwritable_cache_is_reported(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    skipped: list[Skipped] = []
    found = tokenize_cached(DOCUMENTS, tokenizer, tmp_path / "file" / "cache", skipped=skipped)
    assert_same(found, tokenize_documents(DOCUMENTS, tokenizer))
    assert skipped[0].name == f"the token cache {tmp_path}/file/cache"
    assert skipped[0].reason.startswith("cannot be written")


LARGE = """
import resource, sys
from pathlib import Path
import numpy as np
from recurrify.data.sequences import TrainingSequences
from recurrify.data.texts import read_text

class Bytes:
    "One token per byte."
    backend_tokenizer = None
    def get_vocab(self):
        return {}
    def __call__(self, texts, **_):
        return {"input_ids": [np.frombuffer(text.encode(), np.uint8) for text in texts]}

used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData"))
limit = 1024 * used + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
for _ in range(2):  # the second time from the cache
    texts, _ = read_text(sys.argv[1], "train", Bytes(), print)
    sequences = TrainingSequences(texts, window=500, windows=10)
    order = np.random.default_rng(0).permutation(len(sequences))
    print(len(texts), sequences.targets, sum(int(sequences[index]["input_ids"].sum()) for index in order))
"""


def test_text_larger_than_memory(tmp_path: Path) -> None:
    """24 MB of text are 96 MB of tokens; the process may use 64 MiB more than after its imports."""
    pytest.importorskip("resource")
    letters = np.random.default_rng(0).integers(97, 123, (96, 250_000), dtype=np.uint8)
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(f'{{"text": "{row.tobytes().decode()}"}}\n' for row in letters))
    chosen = [int(document.name.partition(":")[2]) - 1 for document in load_documents(data)]
    expected = int(letters[chosen, :-1].sum())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    call = [sys.executable, "-c", LARGE, str(data), str(64 * 2**20)]
    done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [line for line in done.stdout.splitlines() if line[0].isdigit()]
    assert found == [f"{len(chosen)} {len(chosen) * 249_999} {expected}"] * 2

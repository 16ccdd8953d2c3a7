"""WikiText-103 and PG-19, with local data sets in place of the hub."""

from collections.abc import Callable

import datasets
import pytest

from recurrify.data import Document
from recurrify.errors import UserError
from recurrify_papers.data.hub import PG19_CORPUS, WIKITEXT_CORPUS, wikitext_articles
from support.hub import Hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch)


def dataset(*texts: str) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": list(texts)})


def books(argument: str | None = None, split: str = "train", limit: int | None = None) -> list[Document]:
    return PG19_CORPUS.load(split, limit, [], argument)


def articles(split: str, limit: int | None = None) -> list[Document]:
    return WIKITEXT_CORPUS.load(split, limit, [])


@pytest.mark.parametrize("load", [books, lambda: books("3"), lambda: articles("test")])
def test_hub_error_is_one_sentence(hub: Hub, load: Callable[[], list[Document]]) -> None:
    hub.content = ConnectionError("Couldn't reach the Hub.\nTraceback and more")
    with pytest.raises(UserError, match=r"\(ConnectionError: Couldn't reach the Hub\): check its name") as error:
        load()
    assert "\n" not in str(error.value)


def test_pg19_by_number_takes_the_first_training_books_by_file_name(hub: Hub) -> None:
    addresses = [f"http://books.example/ebooks/{number}" for number in (9, 10, 100, 2)]
    rows = datasets.Dataset.from_dict({"text": ["nine", "ten", "hundred", "two"], "url": addresses})
    hub.content = datasets.DatasetDict(train=rows, validation=dataset("valid"))
    assert [document.text for document in books("3")] == ["ten", "hundred", "two"]
    assert [document.text for document in books("3", limit=1)] == ["ten"]
    assert [document.text for document in books("3", "valid")] == ["valid"]
    assert {call[2] for call in hub.calls} == {False}
    with pytest.raises(UserError, match="`pg19:many` does not name a number of training books"):
        books("many")


WIKITEXT_ROWS = [
    *("", " = Robert Boulter = \n", "", " Robert Boulter is an actor . \n", "", " = = Career = = \n", ""),
    *(" He played x \n", " = y = \n", " in a formula . \n", "", " = = = 2000 – 2005 = = = \n", ""),
    *(" = M * A * S * H = \n", "", " A film . \n"),
]


def test_wikitext_rows_become_articles(hub: Hub) -> None:
    found = list(wikitext_articles(WIKITEXT_ROWS))
    assert [article.name for article in found] == ["0 Robert Boulter", "1 M * A * S * H"]
    assert found[0].text.startswith(" = Robert Boulter = \n\n Robert Boulter is an actor")
    assert " = y = \n" in found[0].text
    assert "".join(article.text for article in found).split() == "".join(WIKITEXT_ROWS).split()
    hub.content = datasets.DatasetDict(train=dataset(*WIKITEXT_ROWS), validation=dataset(*WIKITEXT_ROWS))
    (article,) = articles("valid", limit=1)
    assert article.name == "validation/0 Robert Boulter"
    assert hub.calls == [("Salesforce/wikitext", "wikitext-103-raw-v1", True)]

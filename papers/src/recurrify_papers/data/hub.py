"""WikiText-103 and PG-19 from the Hugging Face hub, in the documents that the papers count."""

import re
from collections.abc import Iterable, Iterator

from recurrify import UserError
from recurrify.data import EVERYTHING, Corpus, Document, Skipped, dataset_errors, load_documents, open_dataset

WIKITEXT, PG19 = "Salesforce/wikitext:wikitext-103-raw-v1", "emozilla/pg19"
# " = Title = " but not " = = Section = = ".
ARTICLE_HEADING = re.compile(r" = ([^=\s][^=]*?) = \s*")


def load_wikitext(split: str, limit: int | None, skipped: list[Skipped]) -> list[Document]:
    """One document per article."""
    with dataset_errors(WIKITEXT):
        parts = open_dataset(WIKITEXT, limit=limit)
        found: list[Document] = []
        for part in _parts_of(split, parts):
            for article in wikitext_articles(row["text"] for row in parts[part]):
                found.append(article._replace(name=f"{part}/{article.name}"))
                if len(found) == limit:
                    return found
        return found


def load_pg19(split: str, limit: int | None, skipped: list[Skipped], books: str | None = None) -> list[Document]:
    """One document per book; `books` is the number of training books, the first by file name, as in the paper."""
    if books is None:
        return load_documents(f"hf:{PG19}", split, limit=limit, skipped=skipped)
    if not (books.isdecimal() and int(books) > 0):
        raise UserError(f"`pg19:{books}` does not name a number of training books: write pg19:1250, for example.")
    with dataset_errors(PG19):
        parts = open_dataset(PG19)
        # The file name is the number in a book's address.
        files = [address.rstrip("/").rpartition("/")[2] + ".txt" for address in parts["train"]["url"]]
        first = sorted(range(len(files)), key=files.__getitem__)[: int(books)]
        parts["train"] = parts["train"].select(first)
        wanted = ((part, number, row) for part in _parts_of(split, parts) for number, row in enumerate(parts[part]))
        return [Document(f"{part}/{number}", row["text"]) for part, number, row in wanted][:limit]


def _parts_of(split: str, parts: Iterable[str]) -> list[str]:
    return list(parts) if split == EVERYTHING else ["validation" if split == "valid" else split]


def wikitext_articles(lines: Iterable[str]) -> Iterator[Document]:
    """Whole articles from WikiText's rows, which are lines; each article begins with a line that is its title."""
    article: list[str] = []
    title, number = "untitled", 0
    after_blank_line = True
    for line in lines:
        # Headings have a blank line before them; without this check, tables and formulas would cut articles.
        heading = ARTICLE_HEADING.fullmatch(line) if after_blank_line else None
        if heading:
            if "".join(article).strip():
                yield Document(f"{number} {title}", "".join(article))
                number += 1
            article, title = [], heading[1]
        article.append(line if line.endswith("\n") else line + "\n")
        after_blank_line = not line.strip()
    if "".join(article).strip():
        yield Document(f"{number} {title}", "".join(article))


# ---- corpora, registered as entry points of the group recurrify.corpora ------------------------------------

WIKITEXT_CORPUS = Corpus("WikiText-103 (raw) from the hub, one document per article", load_wikitext)
PG19_CORPUS = Corpus("PG-19 from the hub, one document per book", load_pg19, takes_argument=True)

"""Reading documents of a text source, with a line for the user about what was read and what was skipped."""

from recurrify.data import Document, Say, Skipped, load_documents, report_skipped


def read_documents(source: str, split: str, text_field: str, say: Say) -> list[Document]:
    """The documents of a split. `say` receives one line about them and one for each of the first skipped ones."""
    skipped: list[Skipped] = []
    documents = load_documents(source, split, text_field=text_field, skipped=skipped)
    report_skipped(skipped, say)
    count = "1 document" if len(documents) == 1 else f"{len(documents):,} documents"
    say(f"{source} ({split}): {count}, {sum(len(document.text) for document in documents):,} characters")
    return documents

"""The page of the experiments: its numbers are those of the files, its links lead somewhere, its text is safe."""

import copy
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from experiment_results import experiment, scored_row, write_root, write_size

from recurrify.errors import UserError
from recurrify.results import load_result, save_result
from recurrify_papers.report.experiments_page import write_experiments_page, write_experiments_picture

Facts = dict[str, Any]


class Page(HTMLParser):
    """What a test asks a page: its tables by caption, links, ids, plots, and whether tags are closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.tables: list[tuple[str, list[list[str]]]] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.descriptions: list[str] = []
        self.open: list[str] = []
        self.cell: list[str] | None = None
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        found = {name: value or "" for name, value in attrs}
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "a":
            self.links.append(found["href"])
        if found.get("role") == "img":
            self.descriptions.append(found["aria-label"])
        if tag == "table":
            self.tables.append(("", []))
        if tag == "tr":
            self.tables[-1][1].append([])
        if tag in ("caption", "th", "td"):
            self.cell = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag != "meta":
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.cell is not None:
            self.cell.append(data)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if self.cell is not None and tag in ("caption", "th", "td"):
            text = "".join(self.cell).replace("\xa0", " ")
            if tag == "caption":
                self.tables[-1] = (text, self.tables[-1][1])
            else:
                self.tables[-1][1][-1].append(text)
            self.cell = None

    def table(self, caption: str, number: int = 0) -> list[Facts]:
        """The rows of the table whose caption begins so, by their header."""
        header, *rows = [rows for name, rows in self.tables if name.startswith(caption)][number]
        return [dict(zip(header, row, strict=True)) for row in rows]

    @property
    def words(self) -> str:
        visible = re.sub(r"<style>.*?</style>|<[^>]+>", " ", self.html, flags=re.DOTALL)
        return re.sub(r"\s+", " ", unescape(visible).replace("\xa0", " "))


def written(root: Path, out: Path) -> Page:
    write_experiments_page(root, out)
    return Page((out / "index.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_root(tmp_path_factory.mktemp("experiments"))


@pytest.fixture(scope="module")
def out(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages") / "report"
    write_experiments_page(root, folder)
    return folder


@pytest.fixture(scope="module")
def page(out: Path) -> Page:
    return Page((out / "index.html").read_text(encoding="utf-8"))


def one_table(tmp_path: Path, rows: list[Facts], **more: Any) -> Page:
    """A page of the table on books alone, at the small size."""
    write_size(tmp_path / "root" / "small", [experiment("table2", "perplexity", "Books", rows, **more)])
    return written(tmp_path / "root", tmp_path / "out")


def test_the_books_table_holds_the_numbers_of_its_file(root: Path, page: Page) -> None:
    rows = load_result(root / "small" / "table2.json")["rows"]
    shown = page.table("Perplexity per word, test split, mean over 3 seeds, windows of 300")
    names = {"plain": "plain", "carry": "recurrent", "best": "best found"}
    assert len(shown) == len(rows) == 19
    for row in rows:
        cells = next(
            cells for cells in shown if (cells["model"], cells["overlap"]) == (names[row["kind"]], str(row["overlap"]))
        )
        score = row["scores"]["test"]
        assert cells["perplexity per word"] == f"{score['perplexity_per_word']:.1f}"
        assert cells["± over seeds"] == "0.40"
        assert cells["perplexity, 95 % interval"] == " to ".join(f"{end:.1f}" for end in score["interval"])
        assert cells["published"] == (f"{row['published']['test']:.1f}" if row["published"] else "–")
        assert cells["FLOPs per token"] == f"{row['flops_per_token'] / 1e6:.0f} M"
        gain, published = row["gain"], row["published_gain"]
        assert cells["gain"] == (f"+{100 * gain['test']['relative_gain']:.1f} %" if gain else "–")
        assert cells["published gain"] == (f"+{100 * published['test']:.1f} %" if published else "–")


def test_the_other_layouts_hold_their_numbers(page: Page) -> None:
    topics = page.table("Mean Jensen–Shannon divergence")
    assert [row["divergence in bits"] for row in topics] == ["0.5903", "0.5512", "0.5307"]
    assert [row["in nats"] for row in topics] == ["0.4092", "0.3821", "0.3679"]
    # 58.3 % of 2,000 contexts are closer and 214 tied: what remains is further, not all the rest.
    told = [topics[1][name] for name in ("closer than plain", "tied", "further", "published closer", "p")]
    assert told == ["58.3 %", "10.7 %", "31.0 %", "at least 60 %", "< 0.00001"]
    assert [topics[0][name] for name in ("closer than plain", "tied", "further")] == ["–"] * 3
    assert page.table("Prediction of the next token")[0]["top-5 accuracy"] == "0.5288"
    cost = page.table("What recurrence costs")
    assert (cost[2]["plain"], cost[2]["recurrent"], cost[2]["recurrent ÷ plain"]) == ("21.0 G", "26.0 G", "1.238")
    rates = page.table("Learning rates tried")
    assert [row["learning rate"] for row in rates if "chosen" in row["chosen"]] == ["3e-4", "3e-4"]
    assert len(rates) == 6
    hyperparameters = page.table("Hyperparameters")
    assert [row["compared"] for row in hyperparameters] == ["same", "differs", "–"]
    assert "of the house. He was a man of the world" in page.words
    assert "Sample 1, rivers" in page.words


def test_what_was_not_printed_is_not_called_different(tmp_path: Path) -> None:
    lines = [{"name": "window", "published": "not printed", "ours": "300"}]
    page = one_table(tmp_path, [scored_row("plain", 138.4)], hyperparameters=lines)
    assert [row["compared"] for row in page.table("Hyperparameters")] == ["–"]


def test_what_the_intervals_rest_on_is_told(tmp_path: Path) -> None:
    rows = [scored_row("plain", 138.4), scored_row("carry", 131.2)]
    for row in rows:
        row["scores"]["valid"] |= {"documents": 16, "tokens": 2_345_678}
        row["scores"]["test"] |= {"documents": 15, "tokens": 1_000 if row["kind"] == "plain" else 999}
    told = one_table(tmp_path, rows).words
    # Where rows differ, nothing is said that would be wrong for one of them.
    assert "Scored, validation: 16 documents, 2,345,678 tokens, the same in every row." in told


def test_columns_that_no_row_fills_are_not_there(tmp_path: Path) -> None:
    rows = [
        {"kind": "plain", "tokens": 500, "metrics": {"accuracy": 0.31, "auc_roc": None}},
        {"kind": "carry", "tokens": None, "metrics": {"accuracy": 0.32, "auc_roc": None}},
    ]
    save_result(tmp_path / "root" / "small" / "metrics.json", experiment("metrics", "prediction", "Metrics", rows))
    shown = written(tmp_path / "root", tmp_path / "out").table("Prediction of the next token")
    assert shown == [
        {"model": "plain", "accuracy": "0.3100", "tokens": "500"},
        {"model": "recurrent", "accuracy": "0.3200", "tokens": "–"},
    ]


def test_shares_without_a_count_of_ties_leave_the_rest_open(tmp_path: Path) -> None:
    row = {"kind": "carry", "divergence": 0.66, "closer_share": 0.423, "contexts": 2000}
    save_result(tmp_path / "root" / "small" / "topics.json", experiment("topics", "topics", "Topics", [row]))
    (shown,) = written(tmp_path / "root", tmp_path / "out").table("Mean Jensen–Shannon divergence")
    assert shown["closer than plain"] == "42.3 %"
    assert "tied" not in shown
    assert "further" not in shown


def test_noise_is_called_noise(page: Page) -> None:
    shown = page.table("Perplexity per word, test split, one seed, windows of 300")
    assert next(row for row in shown if row["model"] == "recurrent")["gain"] == "+0.2 %, within noise"


def test_every_link_leads_to_a_file_or_a_section(out: Path, page: Page) -> None:
    inside = [link for link in page.links if link.startswith("#")]
    files = [link for link in page.links if not link.startswith("#")]
    assert {link[1:] for link in inside} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert [link for link in files if not (out / unquote(link)).is_file()] == []
    assert any(link.endswith("/small/runs/novels-carry-w300-o5-s2.json") for link in files)
    assert any(link.endswith("/small/scores/carry-w300-o5-s2-test.json") for link in files)
    assert any(link.endswith("/tiny/table2.json") for link in files)
    markdown = (out / "report.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(([^)]+)\)", markdown)) == set(files)


def test_missing_rows_and_the_tiny_size_are_named(page: Page) -> None:
    assert "Not run yet: best/w300/o75; best/w300/o100." in page.words
    small, tiny = page.words.split("Size: tiny")[-2:]
    assert "only checks that the machinery works" in tiny
    assert "only checks that the machinery works" not in small
    assert "Not run yet: carry/w300/o5." in tiny


def test_each_plot_is_described_and_follows_the_theme(page: Page) -> None:
    plots = re.findall(r"<svg.*?</svg>", page.html, flags=re.DOTALL)
    assert len(plots) == len(page.descriptions) == page.html.count("<figcaption>")
    assert not any(re.search(r"(?:fill|stroke): #", plot) for plot in plots)
    assert any("plain: 147.7 at 0, 142.3 at 5" in told for told in page.descriptions)
    assert any("training tokens per second: 0.859, plain is better" in told for told in page.descriptions)
    assert any("recurrent, run 3: from 3.87 to 3.48" in told for told in page.descriptions)
    assert "://" not in page.html
    assert "<script" not in page.html


def test_markdown_tells_the_same(out: Path) -> None:
    text = (out / "report.md").read_text(encoding="utf-8")
    assert (
        "| recurrent | 0 | 131.2 | 133.0 | +5.2 % | +9.9 % | +4.6 % to +5.8 % | 127.9 to 134.6 | 0.40 | 175 M |" in text
    )
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_the_terminal_gets_a_line_for_each_size(root: Path, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "tiny").symlink_to(root / "tiny")
    (line,) = write_experiments_page(tmp_path / "root", tmp_path / "out")
    assert line.startswith("tiny: In the table for books without overlap, recurrence as published has not been")


def test_text_is_escaped_everywhere(tmp_path: Path) -> None:
    evil = "</td><script>alert('x')</script>\x00\ud800&amp;$\\frac{|[a](b)"
    rows = [scored_row("plain", 138.4) | {"label": evil}, scored_row("carry", 131.0) | {"label": evil, "kind": evil}]
    samples = [{"context": evil, "topic": evil, "continuations": {"plain": evil, evil: evil}}]
    cost = [{"measure": evil, "setting": evil, "ratio": 0.9, "better": evil, "unit": evil, "published": evil}] * 2
    everywhere = {"title": evil, "source": evil, "differences": [evil], "missing": [evil]}
    everywhere["hyperparameters"] = [{"name": evil, "published": evil, "ours": evil}]
    provenance = {"git": {"commit": evil}, "machine": {"gpu": evil}, "date_utc": evil}
    folder = tmp_path / "root" / "small"
    for name, layout, content in (
        ("table2", "perplexity", rows),
        ("texts", "continuations", samples),
        ("cost", "cost", cost),
        ("odd", evil, []),
    ):
        # As JSON holds half a surrogate pair: escaped.
        made = experiment(name, layout, "", content) | everywhere | {"provenance": provenance}
        save_result(folder / f"{name}.json", made)
    page = written(tmp_path / "root", tmp_path / "out")
    assert "<script" not in page.html
    assert "\x00" not in page.html
    assert "alert" not in "".join(page.links)
    assert page.html.count("&lt;script&gt;") > 20
    markdown = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert re.search(r"(?<!\\)<script|(?<!\\)\[a", markdown) is None


def test_names_of_files_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    save_result(tmp_path / "found" / "outside.json", {"kind": "train"})
    row = scored_row("plain", 138.4, seeds=(0,))
    content = experiment("table2", "perplexity", "Books", [row | {"runs": ["../../outside", "none", "with space"]}])
    save_result(tmp_path / "found" / "small" / "table2.json", content)
    save_result(tmp_path / "found" / "small" / "runs" / "with space.json", {"kind": "train"})
    page = written(tmp_path / "found", tmp_path / "out")
    assert {link for link in page.links if "runs" in link} == {"../found/small/runs/with%20space.json"}
    assert page.words.count("(no file)") == 6  # two runs and a score, on each of two splits


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    rows = [scored_row("plain", 138.4), scored_row("carry", 131.2)]
    one_table(tmp_path, rows)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert set(before) == {"index.html", "report.md"}
    write_experiments_page(tmp_path / "root", tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


LAYOUTS = (
    "perplexity",
    "windows",
    "frontier",
    "variants",
    "topics",
    "continuations",
    "prediction",
    "cost",
    "lengths",
    "complexity",
    "learning_rates",
)


def test_hollow_results_make_a_page_without_claims(tmp_path: Path) -> None:
    hollow = scored_row("carry", 131.2)
    for value in hollow["scores"].values():
        value.update(dict.fromkeys(value))
    hollow["gain"] = {"test": {"relative_gain": None}, "valid": None}
    holes: list[Any] = [hollow, dict.fromkeys(hollow), {}, None, {"kind": "plain", "scores": {"test": None}}]
    for layout in LAYOUTS:
        save_result(tmp_path / "root" / "small" / f"{layout}.json", experiment(layout, layout, layout, holes))
        empty = dict.fromkeys(experiment(layout, layout, layout, [])) | {"kind": "experiment", "layout": layout}
        save_result(tmp_path / "root" / "tiny" / f"{layout}.json", empty)
    page = written(tmp_path / "root", tmp_path / "out")
    assert not re.search(r"\b(?:None|nan|null)\b", page.words)
    assert "lowered" not in page.words
    assert page.words.count("No results yet.") >= len(LAYOUTS)


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    rows = [scored_row("plain", 138.4, seeds=(0,)), scored_row("carry", 131.2, seeds=(0,))]
    page = one_table(tmp_path, rows)
    shown = page.table("Perplexity per word, test split, one seed")
    assert "± over seeds" not in shown[0]
    assert [row["perplexity per word"] for row in shown] == ["138.4", "131.2"]


def test_what_lies_far_above_plain_is_told_and_not_drawn(tmp_path: Path) -> None:
    far = scored_row("carry", 90_000.0) | {"kind": "xlnet", "gain": None}
    drawn = scored_row("carry", 131.2)
    page = one_table(tmp_path, [scored_row("plain", 138.4), drawn, far])
    (told,) = [text for text in page.descriptions if "against overlap" in text]
    assert "recurrent: 131.2 at 0. XLNet: 90,000 at 0, beyond the picture." in told
    assert "Not drawn, for it would lie far above: XLNet." in page.html
    near = one_table(tmp_path / "near", [scored_row("plain", 138.4), drawn])
    assert "Not drawn" not in near.html


def test_a_file_that_is_no_experiment_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "root" / "small"
    rows = [scored_row("plain", 138.4)]
    write_size(folder, [experiment("table2", "perplexity", "Books", rows)])
    for content, reason in (('{"kind": "train"}', "its kind is 'train'"), ("{", "not a whole JSON"), ("[]", "list")):
        (folder / "other.json").write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match=reason) as caught:
            write_experiments_page(tmp_path / "root", tmp_path / "out")
        assert str(folder / "other.json") in str(caught.value)
    damaged = copy.deepcopy(experiment("other", "perplexity", "Books", rows)) | {"rows": {"a": 1}}
    save_result(folder / "other.json", damaged)
    with pytest.raises(UserError, match=r"other\.json is damaged: “rows” should be a list"):
        write_experiments_page(tmp_path / "root", tmp_path / "out")
    (folder / "other.json").unlink()
    (folder / "runs" / f"{rows[0]['runs'][1]}.json").write_text("oops", encoding="utf-8")
    with pytest.raises(UserError, match=r"novels-plain-w300-o0-s1\.json is not a whole JSON"):
        write_experiments_page(tmp_path / "root", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_empty_root_tells_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Run `recurrify experiment run` first") as caught:
        write_experiments_page(tmp_path, tmp_path / "out")
    assert str(tmp_path / "small") in str(caught.value)


def test_the_picture_is_a_png_of_the_books_table(root: Path, tmp_path: Path) -> None:
    write_experiments_picture(root, "small", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match=r"table2\.json is missing"):
        write_experiments_picture(root, "paper", tmp_path / "none.png")
    save_result(tmp_path / "small" / "table2.json", experiment("table2", "perplexity", "Books", []))
    with pytest.raises(UserError, match="nothing to draw"):
        write_experiments_picture(tmp_path, "small", tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()

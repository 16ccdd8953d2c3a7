"""The page's sections on what goes beyond the papers: their numbers, what they say of them, their plots."""

import re
from pathlib import Path
from typing import Any

import pytest
from experiment_results import experiment, score, write_size
from test_experiments_page import Page, written

from recurrify.results import save_result
from recurrify_papers.report.experiments_page import write_experiments_picture

Facts = dict[str, Any]
PLAIN = {0: 100.0, 10: 96.0, 50: 94.0}
"""Perplexities by overlap."""


def gained(gain: float, noise: float = 0.005, **more: Any) -> Facts:
    ends = [gain - noise, gain + noise]
    return {"relative_gain": gain, "interval": ends, "within_noise": ends[0] <= 0 <= ends[1], "seeds": 1, **more}


def memory_row(kind: str, label: str, perplexity: float, flops: float, overlap: int = 0, **more: Any) -> Facts:
    name = f"{label}-o{overlap}"
    return {
        "kind": kind,
        "label": label,
        "window": 300,
        "overlap": overlap,
        "seeds": [0],
        "corpus": "books",
        "scores": {"test": score(perplexity, [0], [f"scores/{name}.json"], 8)},
        "gain": None if kind == "plain" else {"test": gained(1 - perplexity / 100)},
        "full_flops_per_token": flops,
        "extra_share": flops / 1e8 - 1,
        "state_floats": 0 if kind == "plain" else 4096,
        "added_parameters": 0 if kind == "plain" else 50_000,
        "rates": [] if kind == "plain" else [{"learning_rate": 1e-4, "valid_loss": 3.2}],
        "rival": None,
        "runs": [name],
        **more,
    }


def mechanism_rows(tail: float, rival_gain: float) -> list[Facts]:
    plain = [memory_row("plain", "plain", value, 1e8 * 300 / (300 - o), o) for o, value in PLAIN.items()]
    rival = {"label": "plain", "kind": "plain", "overlap": 10, "full_flops_per_token": 1.03e8}
    return [
        *plain,
        memory_row("carry", "carry-1", 98.0, 1.01e8, rival={**rival, **gained(-0.02)}),
        memory_row("tail", "tail-64", tail, 1.15e8, rival={**rival, **gained(rival_gain)}, chosen=True),
    ]


def page_of(tmp_path: Path, layout: str, rows: list[Facts]) -> Page:
    write_size(tmp_path / "root" / "small", [experiment("ours", layout, "Ours", rows, hyperparameters=None)])
    return written(tmp_path / "root", tmp_path / "out")


def test_alone_they_have_a_page_with_words_of_its_own(tmp_path: Path) -> None:
    alone = page_of(tmp_path, "mechanisms", mechanism_rows(90.0, 0.04)).html
    assert "beyond the papers" in alone
    assert "output head and recurrence module left out" not in alone
    save_result(tmp_path / "root" / "small" / "table2.json", experiment("table2", "perplexity", "Books", []))
    assert "output head and recurrence module left out" in written(tmp_path / "root", tmp_path / "out").html


def test_where_runs_were_trained_is_told_beside_where_rows_were_put_together(tmp_path: Path) -> None:
    content = experiment("ours", "mechanisms", "Ours", mechanism_rows(90.0, 0.04), hyperparameters=None)
    trained = {"commit": "a" * 40, "dirty": None, "device": "Some GPU", "torch": "2", "runs": ["one", "two"]}
    write_size(tmp_path / "root" / "small", [{**content, "trained": [trained]}])
    assert f"2 runs trained at {'a' * 10} on Some GPU" in written(tmp_path / "root", tmp_path / "out").words


def test_without_a_comparison_on_books_the_picture_is_of_the_mechanisms(tmp_path: Path) -> None:
    page_of(tmp_path, "mechanisms", mechanism_rows(90.0, 0.04))
    write_experiments_picture(tmp_path / "root", "small", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_one_table_holds_what_each_memory_takes_and_gains_on_each_text(tmp_path: Path) -> None:
    books = mechanism_rows(92.0, 0.042)
    wiki = [{**row, "corpus": "wiki"} for row in mechanism_rows(97.0, -0.01)]
    page = page_of(tmp_path, "mechanisms", [*books, *wiki])
    shown = page.table("Perplexity per word, test split")
    assert [(row["model"], row["overlap"]) for row in shown] == [
        *[("plain", str(overlap)) for overlap in PLAIN],
        ("carry-1", "0"),
        ("tail-64", "0"),
    ]
    tail = shown[-1]
    assert (tail["numbers passed on"], tail["added weights"], tail["more than plain"]) == ("4,096", "50,000", "+15.0 %")
    assert (tail["books: perplexity"], tail["books: gain"]) == ("92.00", "+8.0 %")
    assert (tail["wiki: perplexity"], tail["wiki: gain"]) == ("97.00", "+3.0 %")
    assert tail["on the front"] == "✓ books"
    # On both texts overlap 10 is cheaper than the tail, and on wiki better too.
    assert [row["on the front"] for row in shown[:4]] == ["✓", "✓", "✓ wiki", "✓"]
    assert len(page.descriptions) == 2
    assert "tail-64: 92.00 at 115 M FLOPs per token" in page.descriptions[0]


def test_it_is_said_whether_recurrence_pays_and_by_how_much_the_paper_is_passed(tmp_path: Path) -> None:
    page = page_of(tmp_path, "mechanisms", mechanism_rows(92.0, 0.042))
    words = page.words.replace("\xa0", " ")
    assert (
        "Recurrence pays: tail-64, the best memory that is learned, beats the best rival that costs no more FLOPs, "
        "plain at overlap 10: +4.2 % (+3.7 % to +4.7 %, 1 seed). "
    ) in words
    rivals = page.table("Drop of perplexity per word")
    assert [(row["model"], row["verdict"]) for row in rivals] == [("carry-1", "worse"), ("tail-64", "better")]


def test_where_it_does_not_pay_that_is_said(tmp_path: Path) -> None:
    page = page_of(tmp_path, "mechanisms", mechanism_rows(95.0, 0.003))
    words = page.words.replace("\xa0", " ")
    assert "Recurrence does not pay: tail-64, the best memory that is learned, does not beat, beyond noise" in words
    assert "costs no more FLOPs, plain at overlap 10: +0.3 % (−0.2 % to +0.8 %, 1 seed)." in words


def test_a_small_memory_that_is_ahead_of_its_own_rival_does_not_make_it_pay(tmp_path: Path) -> None:
    """Nearly nothing is as cheap."""
    rows = mechanism_rows(95.0, -0.09)
    rows[-2]["rival"] |= gained(0.006)
    words = page_of(tmp_path, "mechanisms", rows).words.replace("\xa0", " ")
    assert "Recurrence does not pay: tail-64" in words
    assert "plain at overlap 10: −9.0 % (−9.5 % to −8.5 %, 1 seed). Ahead of theirs: carry-1 against plain at" in words


def test_memories_in_longer_windows_do_not_decide_that(tmp_path: Path) -> None:
    """Their rivals overlap by what is usual, not by what costs as much."""
    rows = mechanism_rows(95.0, 0.003)
    rival = {"label": "plain-w600", "kind": "plain", "overlap": 30, "full_flops_per_token": 1.03e8}
    longer = memory_row("tail", "tail-64-w600", 90.0, 1.2e8, window=600, rival={**rival, **gained(0.05)})
    words = page_of(tmp_path, "mechanisms", [*rows, longer]).words.replace("\xa0", " ")
    assert "Recurrence does not pay: tail-64, the best" in words


def test_learning_rates_at_the_edge_of_what_was_tried_are_marked(tmp_path: Path) -> None:
    rows = mechanism_rows(92.0, 0.042)
    for row, losses in zip(rows[-2:], ((3.3, 3.1, 3.2), (3.3, 3.2, 3.1)), strict=True):
        row["rates"] = [
            {"learning_rate": rate, "valid_loss": loss} for rate, loss in zip((1e-4, 2e-4, 4e-4), losses, strict=True)
        ]
    told = [row["chosen"] for row in page_of(tmp_path, "mechanisms", rows).table("Learning rates of the base")]
    assert told == ["", "✓ chosen", "", "", "", "✓ chosen, at the edge of what was tried"]


@pytest.mark.parametrize(
    ("beyond", "told"),
    [
        (0.04, "which is more than doubled (by +4.0 % (+3.5 % to +4.5 %) of the perplexity)"),
        (-0.01, "which is not doubled (by −1.0 % (−1.5 % to −0.5 %) of the perplexity)"),
        (0.001, "and whether that is doubled cannot be told (by +0.1 % (−0.4 % to +0.6 %), within noise of"),
    ],
)
def test_the_best_is_held_against_the_aims(beyond: float, told: str, tmp_path: Path) -> None:
    rows = mechanism_rows(92.0, 0.042)
    rows[-1] |= {"beyond_papers": {**gained(beyond), "times": 2.0}, "beaten_by": []}
    words = page_of(tmp_path, "mechanisms", rows).words.replace("\xa0", " ")
    best = "Of learned memories the best on validation is tail-64, +8.0 % (+7.5 % to +8.5 %) over plain windows without"
    assert best in words
    assert f"the paper's mechanism gains +2.0 % (+1.5 % to +2.5 %), {told}" in words
    assert "No plain windows that take as many FLOPs or more are better." in words


def test_what_is_better_at_as_many_flops_is_named(tmp_path: Path) -> None:
    rows = mechanism_rows(95.0, 0.003)
    longer = memory_row("plain", "plain-w600", 93.0, 1.2e8, window=600)
    beaten = [
        {"label": "plain-w600", "kind": "plain", "overlap": 0, "full_flops_per_token": 1.2e8, **gained(0.021)},
        {"label": "plain", "kind": "plain", "overlap": 50, "full_flops_per_token": 1.15e8, **gained(0.001)},
    ]
    rows[-1] |= {"beaten_by": beaten}
    page = page_of(tmp_path, "mechanisms", [*rows, longer])
    assert (
        "Of those that take as many FLOPs or more, better are plain at overlap 50 (+0.1 % (−0.4 % to +0.6 %), within "
        "noise, 1.00 times its FLOPs) and plain-w600 at overlap 0 (+2.1 % (+1.6 % to +2.6 %), 1.04 times its FLOPs)."
    ) in page.words.replace("\xa0", " ")
    assert "plain-w600 at overlap 0: 93.00 at 120 M FLOPs per token" in page.descriptions[0]


def test_rows_are_ranked_on_the_seeds_that_all_have(tmp_path: Path) -> None:
    """Over its own two seeds the carry seems to be worth less than plain windows; on the first it is not."""
    shared = {"seeds": [0], "perplexity_per_word": {"test": 100.0}, "gain": None}
    rows = [
        memory_row("plain", "plain", 99.0, 1e8, seeds=[0], shared=shared),
        memory_row("plain", "plain", 98.5, 1.03e8, 9, shared=shared | at(99.0, 0.01), matches=["carry-1"]),
        memory_row("carry", "carry-1", 99.5, 1.04e8, seeds=[0, 1], shared=shared | at(97.0, 0.03)),
    ]
    rows[2]["scores"]["test"] |= {"spread": 0.25}
    page = page_of(tmp_path, "mechanisms", rows)
    shown = page.table("Perplexity per word, test split")
    assert [(row["perplexity"], row["gain"], row["on the front"]) for row in shown] == [
        ("100.0", "–", "✓"),
        ("99.00", "+1.0 %", "✓"),
        ("97.00", "+3.0 %", "✓"),
    ]
    assert [row["± over its seeds"] for row in shown] == ["–", "–", "0.25 of 2"]
    assert shown[1]["model"] == "plain, as dear as carry-1 at most"
    words = page.words.replace("\xa0", " ")
    assert "perplexities and gains of the one seed that all rows have" in words


def at(perplexity: float, gain: float) -> Facts:
    return {"perplexity_per_word": {"test": perplexity}, "gain": {"test": gained(gain)}}


def test_models_that_were_not_tuned_stand_apart(tmp_path: Path) -> None:
    rows = [{**row, "model": "some/model", "trained": True} for row in mechanism_rows(92.0, 0.042)]
    bare = memory_row("kv", "kv-64", 150.0, 1.02e8, model="some/model", trained=False)
    page = page_of(tmp_path, "mechanisms", [*rows, bare])
    assert "The base: some/model, windows of 300." in page.words
    assert "Without any fine-tuning" in page.words
    assert "kv-64" not in page.descriptions[0]


@pytest.mark.parametrize("layout", ["mechanisms", "tokens", "starts", "frozen"])
def test_where_only_the_numbers_were_kept_no_files_are_named(tmp_path: Path, layout: str) -> None:
    row = started("plain", "plain", [[100, 3.0], [200, 2.8]]) | {"wanted_tokens": 200}
    save_result(tmp_path / "root" / "small" / "ours.json", experiment("ours", layout, "Ours", [row]))
    page = written(tmp_path / "root", tmp_path / "out")
    markdown = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert [rows for _, rows in page.tables if "files" in rows[0]] == []
    assert "(no file)" not in page.words + markdown
    assert "| files |" not in markdown
    assert any(link.endswith("/small/ours.json") for link in page.links)
    assert "The comparison on books" not in page.words  # nothing on this page is about it
    save_result(tmp_path / "root" / "small" / "runs" / f"{row['runs'][0]}.json", {"kind": "train"})
    page = written(tmp_path / "root", tmp_path / "out")
    assert [rows[1][-1] for _, rows in page.tables if "files" in rows[0]] == ["run 1 score 1 (no file)"]
    assert "| files |" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")


def labels(page: Page) -> list[str]:
    """What is written on the first plot."""
    drawn = page.html[page.html.index("<svg") : page.html.index("</svg>")]
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawn)


def test_memories_on_the_front_are_named_and_crowded_numbers_left_out(tmp_path: Path) -> None:
    crowd = [memory_row("plain", "plain", 94.0 + 1e-4 * o, 1.2e8 + 1e3 * o, 500 + o) for o in range(9)]
    drawn = labels(page_of(tmp_path, "mechanisms", [*mechanism_rows(92.0, 0.042), *crowd]))
    assert {"carry-1", "tail-64", "0", "10"} <= set(drawn)
    assert 1 <= sum(f"{500 + o}" in drawn for o in range(9)) < 5


def test_gains_by_tokens_are_told(tmp_path: Path) -> None:
    rows = []
    for tokens, plain, carry in ((1_000_000, 100.0, 99.0), (10_000_000, 95.0, 90.0)):
        rows.append(memory_row("plain", "plain", plain, 1e8, wanted_tokens=tokens))
        gain = {"test": gained(1 - carry / plain)}
        tried = [{"learning_rate": rate, "valid_loss": 3.0} for rate in (1e-4, 2e-4)] if tokens > 1_000_000 else []
        seen = {"tokens": tokens, "kept_tokens": min(tokens, 2_500_000), "learning_rate": 2e-4, "rates": tried}
        rows.append(memory_row("carry", "carry", carry, 1e8, wanted_tokens=tokens, gain=gain, **seen))
    page = page_of(tmp_path, "tokens", rows)
    words = page.words.replace("\xa0", " ")
    assert (
        "recurrent: the gain grows with tokens, from +1.0 % (+0.5 % to +1.5 %) after 1 M to "
        "+5.3 % (+4.8 % to +5.8 %) after 10 M."
    ) in words
    shown = page.table("Perplexity per word, test split")
    assert [row["fine-tuning tokens"] for row in shown] == ["1 M", "10 M"] * 2
    assert [row["learning rate"] for row in shown[2:]] == ["0.0002", "0.0002 (of 0.0001, 0.0002)"]
    assert [row["weights kept after"] for row in shown] == ["–", "–", "all", "2.5 M (25.0 %)"]
    assert any(
        "gain against fine-tuning tokens. recurrent: 1.0 % at 1 M, 5.3 % at 10 M" in t for t in page.descriptions
    )


def test_a_gain_that_changes_within_noise_is_not_said_to_grow(tmp_path: Path) -> None:
    rows = [memory_row("plain", "plain", 100.0, 1e8, wanted_tokens=tokens) for tokens in (10, 20)]
    rows += [
        memory_row("carry", "carry", 99.0, 1e8, wanted_tokens=tokens, gain={"test": gained(gain)})
        for tokens, gain in ((10, 0.004), (20, 0.0041))
    ]
    words = page_of(tmp_path, "tokens", rows).words
    assert "recurrent: the gain goes from" in words
    assert "after 20 tokens; intervals overlap." in words


@pytest.mark.parametrize("chosen", [False, True])
def test_unlike_learning_rates_are_told_unless_they_were_chosen_for_the_length(tmp_path: Path, chosen: bool) -> None:
    tried = [{"learning_rate": rate, "valid_loss": 3.0} for rate in (1e-4, 2e-4)] if chosen else []
    rows = [
        memory_row("plain", "plain", 100.0, 1e8, wanted_tokens=30_000_000, learning_rate=1e-4, rates=tried),
        memory_row("carry", "carry", 90.0, 1e8, wanted_tokens=30_000_000, learning_rate=2e-4, rates=tried),
    ]
    words = page_of(tmp_path, "tokens", rows).words.replace("\xa0", " ")
    assert ("After 30 M tokens models had unlike learning rates" in words) is not chosen


def started(kind: str, name: str, *losses: list[list[float]], about: str = "") -> Facts:
    """Curves of as many seeds."""
    seeds = list(range(len(losses)))
    return memory_row(kind, name, 100.0, 1e8, curves=list(losses), seeds=seeds, about=about)


def test_starts_are_compared_with_plain_at_the_same_tokens(tmp_path: Path) -> None:
    plain = started("plain", "plain", [[100, 3.0], [200, 2.8], [400, 2.6]], about="plain windows")
    quick = started("carry", "carry-quick", [[100, 2.9], [300, 2.69], [400, 2.6]], about="quick")
    slow = started("carry", "carry-slow", [[100, 3.1], [400, 2.5]], about="slow")
    page = page_of(tmp_path, "starts", [plain, quick, slow])
    words = page.words.replace("\xa0", " ")
    assert "at the first validation is carry-quick (+0.1000 nats per token), not told apart from carry-slow." in words
    assert "at the end is carry-slow (+0.1000 nats per token), not told apart from carry-quick." in words
    shown = page.table("Validation loss in nats per token")
    assert shown[0]["300 tokens"] == "2.7000"
    assert (shown[2]["what differs"], shown[2]["200 tokens"]) == ("slow", "2.9000")


def test_a_start_validated_before_plain_windows_is_compared_from_where_both_have_begun(tmp_path: Path) -> None:
    plain = started("plain", "plain", [[100, 3.0], [200, 2.8]])
    early = started("carry", "early", [[90, 3.2], [110, 3.0], [200, 2.7]])
    words = page_of(tmp_path, "starts", [plain, early]).words.replace("\xa0", " ")
    assert "least behind plain windows at the first validation is early (−0.1000 nats per token)." in words


def test_starts_are_told_apart_by_their_seeds(tmp_path: Path) -> None:
    """Plain windows of the second seed are worse by as much as every other."""
    plain = started("plain", "plain", [[100, 3.0], [200, 2.8]], [[100, 3.5], [200, 3.3]])
    ahead = started("carry", "ahead", [[100, 2.90], [200, 2.70]], [[100, 3.39], [200, 3.21]])
    close = started("carry", "close", [[100, 2.90], [200, 2.71]], [[100, 3.40], [200, 3.21]])
    behind = started("carry", "behind", [[100, 3.0], [200, 2.8]], [[100, 3.5], [200, 3.31]])
    words = page_of(tmp_path, "starts", [plain, ahead, close, behind]).words.replace("\xa0", " ")
    assert "at the first validation is ahead (+0.1050 ± 0.0050 nats per token), not told apart from close." in words
    assert "at the end is ahead (+0.0950 ± 0.0050 nats per token), not told apart from close." in words


def test_starts_with_other_seeds_are_ranked_on_those_that_all_have(tmp_path: Path) -> None:
    """The third seed is a bad one, which only one of them has been run with."""
    plain = started("plain", "plain", [[100, 3.0]], [[100, 3.0]], [[100, 3.0]])
    better = started("best", "better", [[100, 2.80]], [[100, 2.80]], [[100, 2.95]])
    other = started("best", "other", [[100, 2.81]], [[100, 2.81]])
    page = page_of(tmp_path, "starts", [plain, better, other])
    assert "at the end is better (+0.2000 ± 0.0000 nats per token)." in page.words.replace("\xa0", " ")
    table = page.table("Validation loss in nats per token; the gain is of perplexity per word")
    assert [row["seeds"] for row in table] == ["3", "3", "2"]


def test_a_start_behind_plain_windows_is_not_called_ahead(tmp_path: Path) -> None:
    plain = started("plain", "plain", [[100, 3.0], [200, 2.8]])
    page = page_of(tmp_path, "starts", [plain, started("carry", "late", [[100, 3.05], [200, 2.7]])])
    assert (
        "recurrent: least behind plain windows at the first validation is late (−0.0500 nats per token)." in page.words
    )
    assert "late: −0.0500 at first, 0.1000 at the end" in page.descriptions[0]


def test_what_remains_on_a_frozen_base_is_told_with_its_size(tmp_path: Path) -> None:
    rows = [
        memory_row("plain", "plain", 120.0, 1e8, trained="base", added_kilobytes=0.0),
        memory_row(
            *("tail", "tail-64", 108.0, 1e8),
            **{"trained": "frozen", "added_kilobytes": 200.0, "remaining": 0.6, "memory_gain": gained(0.03)},
        ),
    ]
    page = page_of(tmp_path, "frozen", rows)
    words = page.words.replace("\xa0", " ")
    assert "tail-64, 200 kB of added weights: +3.0 % (+2.5 % to +3.5 %) by memory, 60.0 % of what it gains" in words
    assert page.table("Perplexity per word")[1]["what was trained"] == "added weights alone"


@pytest.mark.parametrize("layout", ["mechanisms", "tokens", "starts", "frozen"])
def test_odd_rows_are_shown_as_far_as_they_go(tmp_path: Path, layout: str) -> None:
    evil = "</td><script>alert(1)</script>$\\frac{"
    odd = memory_row(evil, evil, 99.0, 1e8, corpus=evil, about=evil, trained=evil, model=evil, rival=evil, rates=[None])
    odd |= {
        "curves": [[[1, None], [2, 3.0], "x"], 7],
        "seeds": [0, evil],
        "wanted_tokens": 5,
        "remaining": "?",
        "added_kilobytes": None,
    }
    rows = [odd, {"kind": evil}, {**odd, "scores": None, "full_flops_per_token": None}]
    save_result(tmp_path / "root" / "small" / "a.json", experiment("a", layout, "Ours", rows))
    page = written(tmp_path / "root", tmp_path / "out")
    assert "<script" not in page.html

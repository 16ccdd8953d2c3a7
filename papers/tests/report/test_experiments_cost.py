"""The page's tables of costs: who is better only where measurements can tell, and links to the runs behind them."""

import re
from pathlib import Path
from typing import Any

import pytest
from experiment_results import experiment, run
from test_experiments_page import Page, written

from recurrify.results import save_result
from recurrify_papers.report.experiments_cost import cost_caption, cost_rows, describe_cost
from recurrify_papers.report.experiments_data import Experiment, SizeResults
from recurrify_papers.report.experiments_losses import training_curves

Facts = dict[str, Any]
WITHIN = "within the range of repeated measurements"
CURVES = {"plain": "curve-plain", "carry": "curve-carry"}


def cost_row(
    ratio: float | None, spread: list[float] | None = None, better: str | None = "lower", **more: Any
) -> Facts:
    return {"measure": "time", "setting": f"at {ratio}", "ratio": ratio, "spread": spread, "better": better, **more}


def table(rows: list[Facts]) -> Experiment:
    return Experiment(Path("small/cost.json"), experiment("cost", "cost", "Cost", rows))


def page_of(tmp_path: Path, rows: list[Facts], runs: dict[str, Facts] | None = None) -> Page:
    folder = tmp_path / "results" / "small"
    save_result(folder / "cost.json", experiment("cost", "cost", "Cost", rows))
    for name, content in (runs or {}).items():
        save_result(folder / "runs" / f"{name}.json", content)
    return written(tmp_path / "results", tmp_path / "out")


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        pytest.param(cost_row(1.089, [0.317, 1.377], "higher"), WITHIN, id="range around 1"),
        pytest.param(cost_row(0.92, [0.88, 1.0]), WITHIN, id="range up to 1"),
        pytest.param(cost_row(1.146, [1.135, 1.192]), "plain is better", id="higher cost"),
        pytest.param(cost_row(1.146, [1.135, 1.192], "higher"), "recurrent is better", id="higher speed"),
        pytest.param(cost_row(0.877, [0.856, 0.914]), "recurrent is better", id="lower cost"),
        pytest.param(cost_row(0.877, [0.856, 0.914], "higher"), "plain is better", id="lower speed"),
        pytest.param(cost_row(1.0), "both are equal", id="tie"),
        pytest.param(cost_row(1.0004, None, "higher"), "both are equal", id="rounded up to a tie"),
        pytest.param(cost_row(0.9996, [0.99, 1.01]), "both are equal", id="rounded down to a tie"),
        pytest.param(cost_row(1.001), "plain is better", id="counted, no tie"),
        pytest.param(cost_row(1.2, None, None), "neither is called better", id="no direction"),
        pytest.param(cost_row(0.9, curves=CURVES), "recurrent is ahead in one run of each model", id="one run"),
        pytest.param(
            cost_row(1.1, curves={"plain": ["a", "b"], "carry": ["c", "d"]}),
            "plain is ahead in 2 runs of each model",
            id="runs without a range",
        ),
        pytest.param(cost_row(0.9, [0.8, 0.95], curves=CURVES), "recurrent is better", id="runs with a range"),
        pytest.param(cost_row(None), "–", id="nothing measured"),
    ],
)
def test_the_better_model_is_named_where_the_range_allows(row: Facts, verdict: str) -> None:
    (found,) = rows = cost_rows(table([row]))
    assert found.verdict == verdict
    decided = {"plain is better": "plain", "recurrent is better": "recurrent"}
    assert found.winner == decided.get(verdict)
    if row["ratio"] is not None:
        assert describe_cost(rows).endswith(f"time: {row['ratio']:.3f}, {verdict}.")


def test_the_caption_tells_of_what_is_drawn() -> None:
    def caption(*rows: Facts) -> str:
        return cost_caption(cost_rows(table(list(rows))))

    start, grey = "Each bar starts at 1, where both are equal.", "Grey: undecided; the verdict in the table says why."
    whiskers = "Whiskers: the range over repeated measurements, where there were any."
    colours = "Its colour is that of the model that is better by it:"
    assert caption(cost_row(0.9, curves=CURVES)) == f"{start} {grey}"
    assert caption(cost_row(1.2)) == f"{start} {colours} orange for plain."
    both = caption(cost_row(1.2, [1.1, 1.3]), cost_row(0.8), cost_row(1.1, [0.9, 1.2]))
    assert both == f"{start} {colours} orange for plain, blue for recurrent. {grey} {whiskers}"


def bars(page: Page) -> list[str]:
    """The bars' colours, from the first row to the last."""
    (plot,) = re.findall(r"<svg.*?</svg>", page.html, flags=re.DOTALL)
    # All that is filled on the axes, after the paper of the figure and of the axes, which are transparent.
    return re.findall(r'clip-path="[^"]*" style="fill: var\(--(\w+)\)', plot)


def test_bars_have_the_colour_of_the_better_model_or_none(tmp_path: Path) -> None:
    rows = [cost_row(1.2, [1.1, 1.3]), cost_row(0.8), cost_row(1.1, [0.9, 1.2]), cost_row(0.97, curves=CURVES)]
    page = page_of(tmp_path, rows)
    assert bars(page) == ["plain", "recurrent", "grid", "grid"]
    shown = page.table("What recurrence costs")
    assert [row["range"] for row in shown] == ["1.100 to 1.300", "–", "0.900 to 1.200", "–"]
    assert [row["verdict"] for row in shown][2:] == [WITHIN, "recurrent is ahead in one run of each model"]
    assert "published" not in shown[0]


def test_convergence_names_its_runs_and_leads_to_them(tmp_path: Path) -> None:
    rows = [cost_row(0.969, curves=CURVES), cost_row(0.841, curves=CURVES)]
    page = page_of(tmp_path, rows, {"curve-plain": run(3.5), "curve-carry": run(3.4)})
    links = [link for link in page.links if "/runs/" in link]
    assert links == ["../results/small/runs/curve-plain.json", "../results/small/runs/curve-carry.json"] * 2
    assert "These ratios rest on one run of each model and have no range" in page.words
    assert "hiskers" not in page.words
    assert "repeated measurements" not in page.html
    several = {"plain": ["a", "b", "c"], "carry": ["d", "e"]}
    more = page_of(tmp_path / "more", [rows[0] | {"curves": several}], {"a": run(3.5)})
    assert "These ratios rest on 2 to 3 runs of each model and have no range" in more.words
    assert more.words.count("(no file)") == 4


def test_repeated_measurements_need_no_such_warning(tmp_path: Path) -> None:
    page = page_of(tmp_path, [cost_row(1.2, [1.1, 1.3]), cost_row(1.01)])
    assert "These ratios rest on" not in page.words
    assert "files" not in page.table("What recurrence costs")[0]


def test_curves_go_by_the_tokens_that_were_counted(tmp_path: Path) -> None:
    """Steps of different lengths: 100 steps of 1,000 tokens are a mean of 10 each, which none of them had."""
    steps = [
        {"step": 20, "eval_loss": 3.9, "num_input_tokens_seen": 450},
        {"step": 60, "eval_loss": 3.7, "num_input_tokens_seen": None},
        {"step": 100, "eval_loss": 3.6, "num_input_tokens_seen": 1000},
        {"step": 100, "loss": 3.5, "num_input_tokens_seen": 1000},
    ]
    counted = {"kind": "train", "steps": 100, "tokens": 1000, "history": steps}
    uncounted = counted | {"history": [{"step": 20, "eval_loss": 3.8}, {"step": 100, "eval_loss": 3.5}]}
    for name, content in (("curve-plain", counted), ("curve-carry", uncounted)):
        save_result(tmp_path / "runs" / f"{name}.json", content)
    cost = table([cost_row(0.9, curves=CURVES)])
    assert training_curves(SizeResults("small", tmp_path, [cost]), cost) == {
        "plain": [[(450.0, 3.9), (600.0, 3.7), (1000.0, 3.6)]],
        "carry": [[(200.0, 3.8), (1000.0, 3.5)]],
    }

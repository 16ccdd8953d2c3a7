"""From runs to Table 1: means, standard errors, what is better beyond them, and what a report says."""

from pathlib import Path

import pytest

from recurrify.errors import UserError
from recurrify.results import save_result
from recurrify_papers.forecast.table1_rows import assembled, summary
from recurrify_papers.forecast.table1_training import training_facts
from recurrify_papers.report.forecast_table1 import table1_lines, table1_statement
from support.commands import invoke


def fake_run(root: Path, setting: str, model: str, seed: int, mse: float, rate: float = 1e-4, **config: object) -> None:
    """A unit's result, as far as a table needs it: its best epoch is the one after its seed, and its gates open."""
    data = setting.partition("-")[0]
    layers = ("encoder.0", "encoder.1", "decoder.0") if model.startswith("rsa-") else ()
    gates = {
        name: [{"layer": layer, "gate": gate} for layer, gate in zip(layers, values, strict=False)]
        for name, values in (("recurrence_start", (0.5, 0.2, 0.3)), ("recurrence", (0.4, 0.5, 0.95 - 0.1 * seed)))
    }
    result = {
        "setting": setting, "model": model, "seed": seed, "learning_rate": rate, "valid_mse": mse + rate,
        "test": {"mse": mse, "mae": mse / 2}, "best_epoch": 0 if model == "seasonal" else seed + 1,
        "history": [] if model == "seasonal" else [{"seconds": 2.5}, {"seconds": 0.25}], **gates,
        "provenance": {"data_checksum": f"of {data}", "config": {"data": f"{data}.csv", "batch": 32} | config},
    }  # fmt: skip
    save_result(root / "units" / f"{setting}-{model}-{rate:g}-s{seed}.json", result)


def test_a_report_is_made_of_all_runs_there_are(tmp_path):
    for seed in (0, 1):
        fake_run(tmp_path, "WTH-24", "informer", seed, 1.0 + seed)
        fake_run(tmp_path, "ETTh1-24", "rsa-informer", seed, 2.0 + seed)
        fake_run(tmp_path, "ETTh1-24", "informer", seed, 3.0 + seed, recurrence_learning_rate=None)
    fake_run(tmp_path, "ETTh1-24", "informer", 0, 9.0, rate=1e-3)  # a trial that was worse on validation
    fake_run(tmp_path, "ETTh1-24", "seasonal", 0, 4.0)
    said = invoke("forecast", "table1", "report", "--root", tmp_path)
    rows = [line for line in said.splitlines() if line.startswith(("| ETT", "| WTH"))]
    assert rows[0].endswith("| 3.500 ± 0.500 | 2.500 ± 0.500 * | 4.000 |")
    assert rows[1].endswith("| 1.500 ± 0.500 | – | – |")
    assert "Not finished: 3 runs are missing." in said
    assert "Runs that were best on validation after epoch 1, 2, …: Informer 2, 2; RSA-Informer 1, 1.\n" in said
    assert "Seconds of all epochs, each run's added up: Informer 11; RSA-Informer 6.\n" in said
    assert (
        "Gates, means at start and end: RSA-Informer encoder 0.350 to 0.450 (moved by 0.200; 0 of 4 end above 0.9), "
        "decoder 0.300 to 0.900 (moved by 0.600; 1 of 2 end above 0.9).\n"
    ) in said
    assert assembled(tmp_path)["data_checksums"] == {"ETTh1": "of ETTh1", "WTH": "of WTH"}
    fake_run(tmp_path, "WTH-48", "informer", 0, 1.0, batch=64)
    with pytest.raises(
        UserError, match=r"WTH-48-informer-0\.0001-s0\.json was run with another batch than runs beside"
    ):
        assembled(tmp_path)


def test_one_seed_is_beyond_no_standard_error(tmp_path):
    for setting, seeds in (("WTH-24", 1), ("WTH-48", 2)):
        for seed in range(seeds):
            fake_run(tmp_path, setting, "informer", seed, 2.0 + 0.1 * seed)
            fake_run(tmp_path, setting, "rsa-informer", seed, 1.0 + 0.1 * seed)
    result = assembled(tmp_path)
    assert (result["rsa_better"], result["rsa_better_beyond_error"]) == (2, 1)
    lines = table1_lines(result)
    assert "2.000 | 1.000 |" in lines[4]
    assert "1.050 ± 0.050 *" in lines[5]
    told = "better in 2 settings, beyond one standard error in 1 of the 1 with more than one seed"
    assert told in table1_statement(result)
    for path in (tmp_path / "units").glob("*-s1.json"):
        path.unlink()
    assert table1_statement(assembled(tmp_path)).endswith("in 2 settings; a standard error takes more than one seed.")


def test_gates_of_runs_that_did_not_note_their_start_are_left_out():
    end = {"recurrence": [{"layer": "decoder.0", "gate": 0.7}]}
    start = {"recurrence_start": [{"layer": "decoder.0", "gate": 0.5}]}
    learned = {"model": "rsa-informer", "best_epoch": 2, "history": [{"seconds": 1.0}]} | end
    moved = training_facts([learned, learned | start])["gates_moved"]["rsa-informer"]["decoder"]
    assert moved == {"gates": 1, "start": 0.5, "end": 0.7, "moved": pytest.approx(0.2), "above_0.9": 0}
    assert training_facts([learned])["gates_moved"] == {}


def test_better_counts_only_beyond_the_error():
    def row(plain: tuple[float, float], rsa: tuple[float, float]) -> dict[str, object]:
        ours = {
            name: {"seeds": 2} | {metric: {"mean": mean, "standard_error": error} for metric in ("mse", "mae")}
            for name, (mean, error) in (("informer", plain), ("rsa-informer", rsa))
        }
        return {"setting": "s", "ours": ours}

    table = [row((1.0, 0.03), (0.9, 0.04)), row((1.0, 0.08), (0.9, 0.08)), row((1.0, 0.0), (1.5, 0.1))]
    found = summary(table)
    assert (found["rsa_better"], found["rsa_better_beyond_error"], found["rsa_worse_beyond_error"]) == (2, 1, 1)
    assert found["mean_mse"] == {"informer": 1.0, "rsa-informer": pytest.approx(1.1)}
    lines = table1_lines({"table1": table} | found)
    assert "0.900 ± 0.040 *" in lines[4]
    assert "*" not in lines[5]
    assert "better in 2 settings, beyond one standard error in 1, and worse beyond it in 1" in lines[-1]

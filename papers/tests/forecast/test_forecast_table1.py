"""Table 1 of the RSA paper: published values, committed results, and a small run of it."""

import json

import pytest

from recurrify.errors import UserError
from recurrify.results import load_result
from recurrify_papers.forecast import table1

from conftest import daily_waves, hourly  # isort: skip


def test_published_table_is_complete():
    assert len(table1.SETTINGS) == len({one.name for one in table1.SETTINGS}) == 16
    assert all(sum(one.counts) == 8 for one in table1.SETTINGS)
    first = table1.SETTINGS[0]
    assert (first.name, first.authors, first.students) == (
        "ETTh1-24", ((0.762, 0.632), (0.414, 0.450)), ((0.679, 0.590), (0.632, 0.568)),
    )  # fmt: skip
    assert sum(one.students[0] is None for one in table1.SETTINGS) == 2


def test_committed_results_are_those_of_the_report():
    rows = table1.committed_rows()
    assert len(rows) == 272
    found = table1.means(rows)
    assert str(found["ETTh1-24"]["informer"]) == "0.730 ± 0.006"
    assert str(found["ETTh1-24"]["rsa-informer"]) == "0.443 ± 0.017"
    assert str(found["WTH-336"]["linear"]) == "0.553 ± 0.003"
    text = table1.summary(rows)
    for part in ("0.920 for Informer", "0.880 for RSA-Informer", "better in 14", "error in 11", "worse in 2"):
        assert part in text
    assert "| ETTh1-336 | 1.416 | 0.895 | 1.645 | 1.902 | 1.085 ± 0.030 | 0.816 ± 0.031 * |" in "\n".join(
        table1.markdown(rows)
    )


def test_committed_variants_and_provenance():
    result = load_result(table1.RESULT)
    assert {row["variant"] for row in result["rows"]} == set(result["variants"])
    assert result["provenance"]["git"]["commit"]
    assert set(result["data_checksums"]) == {"ETTh1", "ETTh2", "ETTm1", "WTH"}
    gates = [one["gates"] for one in table1.committed_rows() if one["model"] == "rsa-informer"]
    assert all(0 <= end <= 1 for layers in gates for _, end in layers.values())


def test_settings_are_chosen_by_name_or_data_set():
    assert [one.name for one in table1.chosen_settings(["ETTh1", "WTH-24"])][-2:] == ["ETTh1-336", "WTH-24"]
    assert len(table1.chosen_settings(None)) == 16
    with pytest.raises(UserError, match="'ETTh3'"):
        table1.chosen_settings(["ETTh3"])


def test_small_table_is_run_once_at_the_best_rates(tmp_path):
    hourly(daily_waves(400)).to_csv(tmp_path / "WTH.csv")
    setting = table1.SETTINGS[12]._replace(horizon=6, past=24, label=12, encoder_layers=1, counts=(1, 1, 1, 1, 0, 0))
    changed = {"width": 16, "heads": 4, "inner": 32, "epochs": 1, "epoch_windows": 64}
    models = ("informer", "rsa-informer", "seasonal")
    recipe = table1.Recipe(models=models, seeds=2, rates=(1e-4, 3e-3), changed=changed)
    said: list[str] = []
    rows = table1.run_table(tmp_path, tmp_path / "out", [setting], recipe, said.append)
    # Two rates with the first seed, the second seed at the better one; the naive forecast once.
    assert len(rows) == 2 * 3 + 1
    assert all(start != end for row in rows for start, end in row["gates"].values())
    assert {row["learning_rate"] for row in rows if row["seed"] == 1} <= {1e-4, 3e-3}
    assert table1.run_table(tmp_path, tmp_path / "out", [setting], recipe, said.append) == rows
    saved = json.loads((tmp_path / "out" / "table1.json").read_text())
    assert len(saved["rows"]) == 7
    assert "WTH" in saved["data_checksums"]
    with pytest.raises(UserError, match=r"ETTh1\.csv does not exist"):
        table1.check_files(tmp_path, table1.chosen_settings(["ETTh1"]))

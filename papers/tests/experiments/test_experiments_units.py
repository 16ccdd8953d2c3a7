"""One fine-tuning and its scores, alone and side by side."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from recurrify import side_by_side
from recurrify.data.texts import read_text
from recurrify.errors import UserError
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify.modeling.loading import load_model
from recurrify.records import MODEL_FOLDER
from recurrify.results import load_result, save_result
from recurrify.train.settings import TrainSettings
from recurrify_papers.experiments import lab as lab_module
from recurrify_papers.experiments import unit
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.pool import do_units
from recurrify_papers.experiments.running import STOPPED, run_experiments
from recurrify_papers.experiments.sizes import Size
from recurrify_papers.experiments.unit import Unit, Wanted, do_unit


def quiet(text: str) -> None:
    pass


def test_a_unit_survives_being_written_down(lab: Lab) -> None:
    one = lab.unit("books", "carry", overlap=3, seed=1).with_scores([lab.wanted("valid", 3), lab.wanted("test", 3)])
    for each in (one, replace(one, needed=True)):
        assert Unit.read(each.write()) == each


def test_scores_are_those_of_the_model_that_was_trained(lab: Lab) -> None:
    one = lab.unit("books", "carry", overlap=3).with_scores([lab.wanted("valid", 3), lab.wanted("test", 3)])
    assert do_unit(one, quiet, show_progress=False)
    model, tokenizer = load_model(str(one.run_folder / "model"))
    for split, most in (("valid", 40), ("test", None)):
        tokens, _ = read_text(lab.source("books"), split, tokenizer, quiet, tokens_per_document=most)
        expected = evaluate_documents(model, tokens, overlap=3)
        found = one.evaluation(split, 3)
        assert found is not None
        assert found.nll == pytest.approx(expected.nll, rel=1e-6)
        assert found.words.tolist() == expected.words.tolist()
        assert (found.loss_by_position[:3], found.names) == ((None,) * 3, expected.names)
    assert one.evaluation("test", 0) is None
    assert not list(one.run_folder.glob("checkpoint-*"))
    assert load_result(one.run_file)["finished"]


def test_a_run_whose_base_decided_a_setting_is_known_again(lab: Lab) -> None:
    one = lab.unit("books", "best", recurrence={"mechanism": "lookback", "keep": 4}, label="back")
    assert do_unit(one, quiet, show_progress=False)
    assert one.is_trained()
    other = {**one.settings.recurrence, "room": 1}
    with pytest.raises(UserError, match=r"recurrence\.room=5 there, 1 now"):
        replace(one, settings=replace(one.settings, recurrence=other)).is_trained()


def test_what_is_finished_is_not_done_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    one = lab.unit("books", "plain").with_scores([lab.wanted("valid", 0)])
    do_unit(one, quiet, show_progress=False)
    monkeypatch.setattr(unit, "train_run", lambda *_: pytest.fail("trained again"))
    more = one.with_scores([lab.wanted("valid", 3)])
    assert one.is_finished()
    assert not more.is_finished()
    assert do_unit(more, quiet, show_progress=False)
    assert more.is_finished()


def test_the_same_wish_twice_is_one(lab: Lab) -> None:
    one = lab.unit("books", "plain").with_scores([Wanted("test", 0, None)])
    assert one.with_scores([Wanted("test", 0, None), Wanted("test", 3, None)]).wanted == (
        Wanted("test", 0, None),
        Wanted("test", 3, None),
    )


def test_plain_models_are_trained_once_for_all_overlaps(lab: Lab) -> None:
    assert lab.unit("books", "plain", overlap=3) == lab.unit("books", "plain")
    assert lab.unit("books", "carry", overlap=3) != lab.unit("books", "carry")


def test_side_by_side_gives_what_one_alone_gives_and_one_that_fails_does_not_stop_the_others(
    lab: Lab, tmp_path: Path
) -> None:
    other = replace(lab, root=tmp_path / "others")
    alone, good = (here.unit("books", "carry").with_scores([here.wanted("valid", 0)]) for here in (lab, other))
    bad = other.unit("books", "plain")
    bad = replace(bad, settings=replace(bad.settings, data="/nowhere/at/all.txt"))
    assert do_units([alone], 1, quiet) == (True, [])
    outcome = do_units([bad, good], 2, quiet)
    assert outcome.finished
    assert good.is_finished()
    left, right = alone.evaluation("valid", 0), good.evaluation("valid", 0)
    assert left is not None
    assert right is not None
    assert left.nll == pytest.approx(right.nll, rel=1e-5)  # another number of threads rounds differently
    assert len(outcome.failures) == 1
    assert bad.name in outcome.failures[0]
    assert "/nowhere/at/all.txt does not exist" in outcome.failures[0]


def test_a_deadline_leaves_the_rest_undone(lab: Lab) -> None:
    one = lab.unit("books", "plain")
    for jobs in (1, 2):
        outcome = do_units([one], jobs, quiet, deadline=time.monotonic() - 1)
        assert not outcome.finished
        assert not one.is_finished()


def test_a_run_with_other_settings_is_not_taken_for_this_one(lab: Lab, size: Size, tmp_path: Path) -> None:
    one = lab.unit("books", "plain")
    do_unit(one, quiet, show_progress=False)
    other = replace(one, settings=replace(one.settings, data=str(tmp_path)))
    for check in (other.is_finished, lambda: do_unit(other, quiet, show_progress=False)):
        with pytest.raises(UserError, match="holds a run with other settings"):
            check()


def test_scores_of_fewer_tokens_or_of_an_earlier_run_are_made_anew(lab: Lab) -> None:
    one = lab.unit("books", "plain").with_scores([Wanted("valid", 0, 20)])
    do_unit(one, quiet, show_progress=False)
    assert one.is_finished()
    more = replace(one, wanted=(Wanted("valid", 0, 30),))
    assert not more.is_finished()
    do_unit(more, quiet, show_progress=False)
    assert more.is_finished()
    run = load_result(one.run_file)
    run["provenance"]["date_utc"] = "9999-01-01T00:00:00+00:00"
    save_result(one.run_file, run)
    assert not more.is_finished()


def test_what_was_copied_in_another_order_is_still_finished(lab: Lab) -> None:
    one = lab.unit("books", "plain").with_scores([lab.wanted("valid", 0)])
    do_unit(one, quiet, show_progress=False)
    later = time.time_ns() + 10**9
    os.utime(one.run_file, ns=(later, later))
    assert one.is_finished()
    assert one.evaluation("valid", 0) is not None


@pytest.mark.parametrize("gone", ["", MODEL_FOLDER])
def test_a_run_whose_weights_are_gone_is_trained_anew_only_where_they_are_needed(lab: Lab, gone: str) -> None:
    """As where results were brought from elsewhere, or models deleted to make room."""
    one = lab.unit("books", "plain").with_scores([lab.wanted("valid", 0)])
    do_unit(one, quiet, show_progress=False)
    shutil.rmtree(one.run_folder / gone)
    assert one.is_finished()
    assert replace(one, needed=True).must_be_trained()
    more = one.with_scores([lab.wanted("valid", 3)])
    assert not more.is_finished()
    said: list[str] = []
    assert do_unit(more, said.append, show_progress=False)
    assert more.is_finished()
    assert any("trained anew" in text for text in said)


def test_ctrl_c_ends_everything_with_what_exists_written(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    def train(settings: TrainSettings, *_: object) -> dict[str, object]:
        if done:
            return {"finished": False, "interrupted": True}
        done.append(settings.out)
        return real(settings, quiet, False)

    real = unit.train_run
    monkeypatch.setattr(unit, "train_run", train)
    said: list[str] = []
    lab = replace(lab, say=said.append)
    with pytest.raises(KeyboardInterrupt):
        run_experiments(["learning-rates"], lab)
    assert len(done) == 1
    assert said[-1] == STOPPED
    assert any("Learning rates cannot be chosen yet" in line for line in said)


@pytest.mark.parametrize("interrupted", [True, False])
def test_ctrl_c_while_the_base_is_made_goes_on_up(lab: Lab, interrupted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base whose time was up ends the command, too, and nobody is told of an interrupt."""
    said: list[str] = []
    monkeypatch.setattr(lab_module, "pretrain", lambda *_: {"finished": False, "interrupted": interrupted})
    lab = replace(lab, size=replace(lab.size, base=None), say=said.append)
    with pytest.raises(KeyboardInterrupt) if interrupted else nullcontext():
        assert run_experiments(["table2"], lab) == []
    assert said == [STOPPED]


def test_a_unit_that_another_process_trains_is_left_to_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "LOCK_SECONDS", 0.0)
    monkeypatch.setattr(unit, "train_run", lambda *_: pytest.fail("trained in the same folder"))
    one = lab.unit("books", "plain")
    with (
        side_by_side.held_alone(one.run_folder),
        pytest.raises(UserError, match=f"{one.name}' is being trained by another process"),
    ):
        do_unit(one, quiet, show_progress=False)


def is_unit(process: str) -> bool:
    try:
        return b"recurrify_papers.experiments.unit" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:  # gone already
        return False


def test_a_request_to_end_takes_the_units_along(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    one = lab.unit("books", "plain", max_tokens=3_000_000)
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from recurrify_papers.experiments.pool import do_units\n"
        "from recurrify_papers.experiments.unit import Unit\n"
        "if __name__ == '__main__':\n"
        "    do_units([Unit.read(Path(sys.argv[1]))], 2, print)\n"
    )
    parent = subprocess.Popen([sys.executable, script, one.write()], stdout=subprocess.DEVNULL)
    children: list[int] = []
    while not children and parent.poll() is None:
        found = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        # Libraries, too, start processes for a moment while they are imported.
        children = [int(child) for child in found if is_unit(child)]
        time.sleep(0.05)
    parent.terminate()
    assert parent.wait(timeout=60) == 128 + signal.SIGTERM
    assert children
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)

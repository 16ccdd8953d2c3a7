"""Every page in a real browser: no console errors, no sideways scrolling, hover, sorting, keyboard, both themes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from recurrify.pages.demo import write_demo_page
from recurrify.pages.evaluation import write_evaluation_page
from recurrify.pages.inspect import write_inspection
from recurrify.pages.probe import write_probe_page
from support.browser import check_page, find, find_all, hover, needs_browser, show, started, until

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as driver:
        yield driver


def probe() -> dict[str, Any]:
    rows = [
        {"distance": distance, "accuracy": 1 / distance, "interval": [0.9 / distance, 1.0], "answers": 9}
        for distance in (1, 2, 5, 10)
    ]
    task = {"task": "passkey", "asks": "What?", "chance": 0.1, "guess": 0.2, "rows": rows, "settings": {}}
    return {"kind": "probe", "name": "a model", "tasks": [task]}


def test_demo(browser: Any, result: dict[str, Any], tmp_path: Path) -> None:
    write_demo_page(result, tmp_path / "demo.html")
    check_page(browser, tmp_path / "demo.html")


def test_probe(browser: Any, tmp_path: Path) -> None:
    write_probe_page([probe()], tmp_path)
    check_page(browser, tmp_path / "index.html")


def test_evaluation(browser: Any, evaluation: dict[str, Any], tmp_path: Path) -> None:
    write_evaluation_page(evaluation, tmp_path / "page.html")
    check_page(browser, tmp_path / "page.html")
    find(browser, "details.data summary").click()
    until(browser, lambda: find(browser, "details.data table").is_displayed())


def test_tables_sort_by_click_and_by_keyboard(browser: Any, evaluation: dict[str, Any], tmp_path: Path) -> None:
    write_evaluation_page(evaluation, tmp_path / "page.html")
    show(browser, tmp_path / "page.html", 390, "light")
    find(browser, "details.table summary").send_keys(Keys.ENTER)

    def column() -> list[float]:
        cells = find_all(browser, "details.table[open] tbody td:nth-child(2)")
        return [float(cell.get_attribute("data-order")) for cell in cells]

    button = find(browser, "thead th:nth-child(2) button")
    button.click()
    assert column() == [27.0, 28.5, 30.0]
    button.send_keys(Keys.ENTER)
    assert column() == [30.0, 28.5, 27.0]
    assert find(browser, "thead th:nth-child(2)").get_attribute("aria-sort") == "descending"


def test_inspection_shows_tokens_by_hover_keyboard_and_slider(
    browser: Any, inspection: dict[str, Any], tmp_path: Path
) -> None:
    inspection["tokens"]["another model"] = [None, *[3.25] * 9]
    page = write_inspection(inspection, tmp_path)
    check_page(browser, page)
    assert find(browser, "output").text == "2"
    hover(browser, find(browser, ".tokens .t:nth-child(2)"))
    card = find(browser, ".card")
    until(browser, lambda: "2.00" in card.text and "0.00" in card.text)
    assert "attention to the memory: 60 %" in card.text
    assert "oldest" in card.text
    find(browser, ".tokens").send_keys(Keys.ARROW_RIGHT)
    until(browser, lambda: "+1.00" in card.text)
    find(browser, "select[name=second]").send_keys("another")
    until(browser, lambda: "3.25" in card.text)
    find(browser, "input[type=range]").send_keys(Keys.ARROW_LEFT)
    until(browser, lambda: find(browser, "output").text == "1")
    assert "nothing predicts it" in card.text
    assert len(find_all(browser, ".tokens .t")) == 6
    assert browser.get_log("browser") == []


def test_a_tapped_token_moves_out_from_behind_the_card(
    browser: Any, inspection: dict[str, Any], tmp_path: Path
) -> None:
    times = 400
    inspection["recurrence"]["window"] *= times
    for values in (inspection["tokens"], inspection["slot_attention"]):
        for name in {"text", "plain", "recurrent", "by_token", "places"} & values.keys():
            first, *others = values[name]
            values[name] = [first, *(one for one in others for _ in range(times))]
    for window in inspection["windows"]:
        window.update(first=(window["first"] - 1) * times + 1, stop=(window["stop"] - 1) * times + 1)
    show(browser, write_inspection(inspection, tmp_path), 390, "light")
    behind = """
        const bottom = (one) => one.getBoundingClientRect().bottom, card = document.querySelector(".card");
        document.querySelector(".tokens").scrollIntoView();
        const token = [...document.querySelectorAll(".tokens .t")].find((one) => bottom(one) > innerHeight - 20);
        token.click();
        return bottom(token) - card.getBoundingClientRect().top;
    """
    assert browser.execute_script(behind) <= 0

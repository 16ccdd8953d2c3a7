"""Every page in a real browser: no console errors, no sideways scrolling, hover, sorting, keyboard, both themes."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recurrify.pages.demo import write_demo_page
from recurrify.pages.evaluation import write_evaluation_page
from recurrify.pages.inspect import write_inspection
from recurrify.pages.probe import write_probe_page

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not installed")
# What the driver leaves open when it ends is its own.
pytestmark = [pytestmark, pytest.mark.filterwarnings("ignore::ResourceWarning")]
SECONDS = 120
"""A bound for a busy machine, not a wait."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def probe() -> dict[str, Any]:
    rows = [
        {"distance": distance, "accuracy": 1 / distance, "interval": [0.9 / distance, 1.0], "answers": 9}
        for distance in (1, 2, 5, 10)
    ]
    task = {"task": "passkey", "asks": "What?", "chance": 0.1, "guess": 0.2, "rows": rows, "settings": {}}
    return {"kind": "probe", "name": "a model", "tasks": [task]}


@pytest.fixture
def pages(
    result: dict[str, Any], evaluation: dict[str, Any], inspection: dict[str, Any], tmp_path: Path
) -> dict[str, Path]:
    write_demo_page(result, tmp_path / "demo.html")
    write_evaluation_page(evaluation, tmp_path / "evaluate.html")
    write_probe_page([probe()], tmp_path / "probe")
    return {
        "demo": tmp_path / "demo.html",
        "evaluate": tmp_path / "evaluate.html",
        "inspect": write_inspection(inspection, tmp_path / "inspect"),
        "probe": tmp_path / "probe" / "index.html",
    }


def show(browser: Any, page: Path, width: int, theme: str) -> None:
    """Open the page and wait until its charts are drawn."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    )
    browser.get(page.as_uri())
    drawn = "return document.documentElement.dataset.charts"
    WebDriverWait(browser, SECONDS).until(lambda driver: driver.execute_script(drawn) == theme)


def find(browser: Any, selector: str) -> Any:
    return browser.find_element(By.CSS_SELECTOR, selector)


def until(browser: Any, holds: Callable[[], Any]) -> None:
    WebDriverWait(browser, SECONDS).until(lambda _: holds())


def test_pages_fit_and_work_in_both_themes(browser: Any, pages: dict[str, Path]) -> None:
    for name, page in pages.items():
        for width, theme in ((1280, "light"), (390, "dark")):
            show(browser, page, width, theme)
            sizes = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
            assert sizes[0] <= sizes[1] == width, (name, width)
            charts = browser.find_elements(By.CSS_SELECTOR, "figure.chart svg")
            assert len(charts) == len(browser.find_elements(By.CSS_SELECTOR, "figure.chart")) > 0
            number = find(browser, ".verdict .number, .verdict .sentence")
            assert number.rect["y"] < 400, name
            ink = browser.execute_script("return getComputedStyle(document.body).color")
            assert (ink == "rgb(28, 32, 36)") == (theme == "light")
            texts = browser.execute_script("return getComputedStyle(document.querySelector('svg text')).fill")
            assert texts == ink
        assert browser.get_log("browser") == [], name


def test_hovering_a_chart_shows_numbers(browser: Any, pages: dict[str, Path]) -> None:
    show(browser, pages["evaluate"], 1280, "light")
    plot = find(browser, ".opening .plot svg")
    ActionChains(browser).move_to_element(plot).perform()
    until(browser, lambda: "perplexity" in find(browser, "#vg-tooltip-element").text)
    find(browser, "details.data summary").click()
    until(browser, lambda: find(browser, "details.data table").is_displayed())


def test_tables_sort_by_click_and_by_keyboard(browser: Any, pages: dict[str, Path]) -> None:
    show(browser, pages["evaluate"], 390, "light")

    def column() -> list[float]:
        cells = browser.find_elements(By.CSS_SELECTOR, "main table:first-of-type tbody td:nth-child(4)")
        return [float(cell.get_attribute("data-order")) for cell in cells[:3]]

    button = find(browser, "thead th:nth-child(4) button")
    browser.execute_script("arguments[0].scrollIntoView()", button)
    button.click()
    assert column() == [27.0, 28.5, 30.0]
    button.send_keys(Keys.ENTER)
    assert column() == [30.0, 28.5, 27.0]
    assert find(browser, "thead th:nth-child(4)").get_attribute("aria-sort") == "descending"


def test_inspect_shows_tokens_by_hover_keyboard_and_slider(browser: Any, pages: dict[str, Path]) -> None:
    show(browser, pages["inspect"], 1280, "dark")
    assert find(browser, "output").text == "2"
    token = find(browser, ".tokens .t:nth-child(2)")
    ActionChains(browser).move_to_element(token).perform()
    card = find(browser, ".card")
    until(browser, lambda: "2.00" in card.text and "0.00" in card.text)
    assert "attention to the memory: 60 %" in card.text
    assert "oldest" in card.text
    tokens = find(browser, ".tokens")
    tokens.send_keys(Keys.ARROW_RIGHT)
    until(browser, lambda: "+1.00" in card.text)
    find(browser, "input[type=range]").send_keys(Keys.ARROW_LEFT)
    until(browser, lambda: find(browser, "output").text == "1")
    assert "nothing predicts it" in card.text
    assert len(browser.find_elements(By.CSS_SELECTOR, ".tokens .t")) == 6
    assert browser.get_log("browser") == []

"""Pages in a real browser: Debian's chromium, driven by selenium."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not installed"),
    # What the driver leaves open when it ends is its own.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SECONDS = 120
"""A bound for a busy machine, not a wait."""
INK = {"light": "rgb(28, 32, 36)", "dark": "rgb(228, 231, 234)"}


@contextmanager
def started() -> Iterator[Any]:
    """A browser without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def show(browser: Any, page: Path, width: int, theme: str) -> None:
    """Open the page and wait until its charts are drawn."""
    _emulate(browser, width, theme)
    browser.get(page.as_uri())
    _drawn(browser, theme)


def _emulate(browser: Any, width: int, theme: str) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    )


def _drawn(browser: Any, theme: str) -> None:
    until(browser, lambda: browser.execute_script("return document.documentElement.dataset.charts") == theme)


def find(browser: Any, selector: str) -> Any:
    return browser.find_element(By.CSS_SELECTOR, selector)


def find_all(browser: Any, selector: str) -> list[Any]:
    return browser.find_elements(By.CSS_SELECTOR, selector)


def until(browser: Any, holds: Callable[[], Any]) -> None:
    WebDriverWait(browser, SECONDS).until(lambda _: holds())


def hover(browser: Any, element: Any) -> None:
    ActionChains(browser).move_to_element(element).perform()


def check_page(browser: Any, page: Path) -> None:
    """Check a page at both widths in both themes, which follow the device: it fits, charts are drawn, nothing fails.

    The answer is on the first screen, its chart shows numbers on hover, and a table opens and sorts.
    """
    show(browser, page, 390, "light")
    for width, theme in ((390, "light"), (390, "dark"), (1280, "dark"), (1280, "light")):
        _emulate(browser, width, theme)
        _drawn(browser, theme)
        sizes = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert sizes[0] <= sizes[1] == width, (page, width)
        assert len(find_all(browser, "figure.chart svg")) == len(find_all(browser, "figure.chart")) > 0
        assert find(browser, ".verdict .number, .verdict .sentence").rect["y"] < 400, page
        assert find(browser, ".opening .plot").rect["y"] < 900, page
        assert browser.execute_script("return getComputedStyle(document.body).color") == INK[theme]
        text = "return getComputedStyle(document.querySelector('svg text')).fill"
        assert browser.execute_script(text) == INK[theme]
    hover(browser, find(browser, ".opening .plot svg"))
    until(browser, lambda: find(browser, "#vg-tooltip-element.visible").text)
    for closed in find_all(browser, "details.table summary")[:1]:
        closed.click()
        heading = find(browser, "details.table[open] thead th")
        find(browser, "details.table[open] thead button").click()
        assert heading.get_attribute("aria-sort") == "ascending"
        cells = [cell.text.casefold() for cell in find_all(browser, "details.table[open] tbody th")]
        assert len(cells) < 2 or cells[0] <= cells[-1]
    assert browser.get_log("browser") == [], page

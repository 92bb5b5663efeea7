"""The page of `adamas report` in headless Chromium, at two sizes and in both colour schemes.

The tests need Debian's packages chromium and chromium-driver, and download nothing.
"""

import os
import shutil

import pytest

from adamas.report import write_report
from tests.support.pages import TABLE, write_table

pytestmark = pytest.mark.browser

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
GROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(24, 24, 27)"}
LONG = "A" * 150
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


WORDS_OUTSIDE = """
return [...document.querySelectorAll("figure")].flatMap(figure => {
  const card = figure.getBoundingClientRect();
  return [...figure.querySelectorAll("text")].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < card.left || box.right > card.right;
  }).map(text => text.textContent);
})
"""


def missing(what):
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing: install the packages chromium and chromium-driver, and selenium.")
    pytest.skip(f"{what} is missing")


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        missing("selenium")
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    for name, path in programs.items():
        if path is None:
            missing(name)
    options = webdriver.ChromeOptions()
    options.binary_location = programs["chromium"]
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(programs["chromedriver"]))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Writes a page about two tables, with words too long for any line, and returns its address."""
    root = tmp_path_factory.mktemp("experiments")
    write_table(root)
    long = TABLE.replace("DP-SGD", LONG).replace("three rules", LONG).replace("σ = 1", LONG)
    write_table(root, "paper/long", long, cells=[("sgd", "a")], private=False, epsilon="inf", machine=LONG)
    write_report([root], root / "page.html")
    return (root / "page.html").as_uri()


def show(driver, page, size="desktop", scheme="light"):
    """Clears the browser's log, opens a page and unfolds its details."""
    width, height = SIZES[size]
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    driver.get_log("browser")
    driver.get(page)
    driver.execute_script("for (const one of document.querySelectorAll('details')) one.open = true;")


@pytest.mark.parametrize("scheme", GROUNDS)
@pytest.mark.parametrize("size", SIZES)
def test_a_page_fits_the_screen_and_shows_all_figures(driver, page, size, scheme):
    show(driver, page, size, scheme)
    ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == GROUNDS[scheme]
    inner, outer = driver.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert inner <= outer == SIZES[size][0]
    figures = driver.find_elements("css selector", "figure svg")
    assert len(figures) == 7 + 4  # of paper/table, and of paper/long, which has one column with a run
    for figure in figures:
        assert figure.is_displayed()
        assert figure.size["width"] > 200
        assert figure.size["height"] > 80
        assert figure.aria_role in ("image", "img")
        assert len(figure.accessible_name) > 30
    assert driver.execute_script(WORDS_OUTSIDE) == []
    assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert driver.get_log("browser") == []


@pytest.mark.parametrize("size", SIZES)
def test_wide_tables_scroll_in_their_own_box(driver, page, size):
    show(driver, page, size)
    boxes = "return [...document.querySelectorAll('.wide')].map(box => [box.scrollWidth, box.clientWidth])"
    widths = driver.execute_script(boxes)
    assert max(outer for _, outer in widths) <= SIZES[size][0]
    if size == "phone":
        assert any(inner > outer for inner, outer in widths)


def paper_table(driver):
    return driver.find_elements("css selector", "table.sortable")[-1]  # paper/table comes after paper/long


def order(driver):
    rows = paper_table(driver).find_elements("css selector", "tbody th")
    return [row.text.split("\n")[0].removesuffix(" not in the paper") for row in rows]


@pytest.mark.parametrize("way", ["click", "enter", "space"])
def test_tables_sort_by_mouse_and_by_keyboard(driver, page, way):
    from selenium.webdriver.common.keys import Keys

    show(driver, page)
    heads = paper_table(driver).find_elements("css selector", "thead th")
    buttons = [head.find_element("css selector", "button") for head in heads]

    def press(button):
        if way == "click":
            button.click()
        else:
            button.send_keys(Keys.ENTER if way == "enter" else Keys.SPACE)

    original = ["DP-SGD", "DP-Adam", "DP-AdamBC"]
    assert order(driver) == original
    assert {head.get_attribute("aria-sort") for head in heads} == {"none"}
    for direction, expected in (
        ("descending", ["DP-Adam", "DP-SGD", "DP-AdamBC"]),
        ("ascending", ["DP-AdamBC", "DP-SGD", "DP-Adam"]),
        ("none", original),
    ):
        press(buttons[1])
        assert heads[1].get_attribute("aria-sort") == direction
        assert order(driver) == expected
    press(buttons[0])
    assert heads[0].get_attribute("aria-sort") == "ascending"
    assert order(driver) == ["DP-Adam", "DP-AdamBC", "DP-SGD"]
    press(buttons[1])
    assert heads[0].get_attribute("aria-sort") == "none"  # one column at a time
    assert "σ = 1" in buttons[1].accessible_name
    assert driver.get_log("browser") == []


def test_the_keyboard_reaches_the_table_heads_and_the_index_links_to_the_tables(driver, page):
    from selenium.webdriver.common.keys import Keys

    show(driver, page)
    driver.find_element("css selector", "nav a[href='#table1']").send_keys(Keys.ENTER)
    assert driver.execute_script("return scrollY") > 500
    reached = set()
    for _ in range(20):
        driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(driver.switch_to.active_element.tag_name)
    assert {"summary", "button", "div"} <= reached  # the div is a box that scrolls


def test_no_other_script_runs(driver, page):
    show(driver, page)
    driver.execute_script(
        "const one = document.createElement('script');"
        "one.textContent = 'window.ran = true';"
        "document.body.append(one);"
    )
    assert driver.execute_script("return window.ran === undefined")
    assert any("Content Security Policy" in entry["message"] for entry in driver.get_log("browser"))


def test_a_page_can_be_read_without_scripts(driver, page):
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(driver, page)
        assert paper_table(driver).find_elements("css selector", "th button") == []
        assert order(driver) == ["DP-SGD", "DP-Adam", "DP-AdamBC"]
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})

"""The report in a real browser, on a phone and on a wide screen: drawn, readable, usable with keys alone."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import grassia
from browser import CONTRAST, PHONE, WIDE, complaints, open_browser
from grassia import backends
from grassia.report import Live, Watch, write

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, 30)) * np.r_[6.0, 5.0, 4.0, np.linspace(2.0, 0.5, 27)]
    labels = np.array(["setosa", "virginica", "versicolor"])[np.arange(1500) % 3]
    X[:, 0] += 12.0 * (labels == "setosa")
    watch = Watch()
    result = grassia.eigenspace(
        grassia.from_rows(X, n_components=6),
        3,
        solver="grassia",
        backend=backends.Threads(faults=["slow:0:10x", "crash:2@9", "corrupt:3@4"]),
        callbacks=watch,
        rng=0,
    )
    scores = (X - X.mean(axis=0)) @ result.vectors
    path = tmp_path_factory.mktemp("browser") / "report.html"
    return write(path, result, watch=watch, scores=scores, labels=labels)


@pytest.fixture(scope="module", params=[PHONE, WIDE])
def browser(request, report, tmp_path_factory):
    opened = open_browser(request.param, tmp_path_factory.mktemp("profile"))
    opened.set_page_load_timeout(60)
    yield opened
    opened.quit()


@pytest.fixture
def opened(browser, report):
    browser.get("about:blank")
    browser.get(report.as_uri())
    return browser


def tabs(browser):
    return browser.find_elements("css selector", "nav a")


def test_nothing_is_complained_about_and_nothing_is_loaded(opened):
    for tab in tabs(opened):
        tab.click()
    assert complaints(opened) == []
    loaded = opened.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in loaded if not name.startswith("data:")] == []


def test_tabs_show_one_part_at_a_time(opened):
    names = [tab.get_attribute("href").partition("#")[2] for tab in tabs(opened)]
    assert names[:4] == ["overview", "convergence", "spectrum", "workers"]
    for tab, name in zip(tabs(opened), names, strict=True):
        tab.click()
        shown = [s for s in opened.find_elements("css selector", "section") if s.is_displayed()]
        assert [section.get_attribute("id") for section in shown] == [name]
        assert tab.get_attribute("aria-selected") == "true"
        assert opened.execute_script("return location.hash") == f"#{name}"


def test_tabs_can_be_walked_through_with_the_arrow_keys(opened):
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    first, second, *_, last = tabs(opened)
    first.send_keys(keys.ARROW_RIGHT)
    assert second.get_attribute("aria-selected") == "true"
    assert opened.switch_to.active_element == second
    second.send_keys(keys.END)
    assert last.get_attribute("aria-selected") == "true"
    last.send_keys(keys.ARROW_RIGHT)
    assert first.get_attribute("aria-selected") == "true"


DRAWN = """
return Array.from(document.querySelectorAll('figure')).map(function (figure) {
  var shown = Array.from(figure.querySelectorAll('svg')).filter(svg => svg.getBoundingClientRect().width > 0);
  var marks = shown.length ? Array.from(shown[0].querySelectorAll('path,rect')).filter(function (mark) {
    var box = mark.getBoundingClientRect(); return box.width + box.height > 2; }).length : 0;
  var words = shown.length ? Array.from(shown[0].querySelectorAll('text')) : [];
  var texts = words.filter(t => t.textContent.trim());
  var least = Math.min.apply(null, texts.map(t => t.getBoundingClientRect().height));
  var box = shown.length ? shown[0].getBoundingClientRect() : {left: 0, right: 0, width: 0, height: 0};
  var off = texts.filter(function (t) { var b = t.getBoundingClientRect();
    return b.left < box.left - 1 || b.right > box.right + 1; }).map(t => t.textContent);
  return {id: figure.id, pictures: shown.length, marks: marks, least: least, width: box.width,
          height: box.height, off: off};
}).filter(one => one.pictures > 0);
"""


def test_every_chart_is_drawn_once_inside_of_the_screen_with_letters_one_can_read(opened):
    seen = {}
    for tab in tabs(opened):
        tab.click()
        assert opened.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        seen |= {one["id"]: one for one in opened.execute_script(DRAWN)}
    wanted = ["convergence", "spectrum", "variance", "timeline", "staleness", "traffic", "rows"]
    assert set(seen) == {f"chart-{name}" for name in wanted}
    for one in seen.values():
        assert one["pictures"] == 1, one
        assert one["marks"] >= 3, one
        assert one["width"] > 300, one
        assert one["height"] > 90, one
        assert one["least"] >= 11, one
        assert one["off"] == [], one


SETTLED = (
    "var done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50)));"
)
POINT = """
var mark = arguments[0], box = mark.getBoundingClientRect();
var at = {x: box.left + box.width / 2, y: box.top + box.height / 2};
if (mark.classList.contains('point')) {  // the middle of a cloud of points may lie between them
  at = mark.getPointAtLength(0).matrixTransform(mark.getScreenCTM());
  at.x += 3;
}
var x = Math.round(at.x), y = Math.round(at.y);  // pointers move by whole pixels, and marks may be narrower
var there = document.elementFromPoint(x, y).closest('[data-tip]');
return [x, y, there && there.getAttribute('data-tip')];
"""


@pytest.mark.parametrize("name", ["convergence", "spectrum", "workers", "rows"])
def test_tooltips_say_what_is_under_the_pointer(name, opened):
    actions = pytest.importorskip("selenium.webdriver.common.actions.action_builder")
    opened.find_element("css selector", f"nav a[href='#{name}']").click()
    tip = opened.find_element("id", "tip")
    marks = opened.find_elements("css selector", f"#{name} [data-tip]")
    mark = next(mark for mark in marks if mark.is_displayed() and mark.rect["height"] > 3)
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", mark)
    opened.execute_async_script(SETTLED)  # scrolling takes a tooltip away
    x, y, said = opened.execute_script(POINT, mark)
    pointer = actions.ActionBuilder(opened)
    pointer.pointer_action.move_to_location(x, y)
    pointer.perform()
    assert tip.is_displayed()
    assert said in [one.get_attribute("data-tip") for one in marks]
    assert tip.text == said.strip()
    box = opened.execute_script("return arguments[0].getBoundingClientRect().toJSON()", tip)
    assert box["left"] >= 0
    assert box["right"] <= opened.execute_script("return innerWidth")
    pointer.pointer_action.move_to_location(2, 2)
    pointer.perform()
    assert not tip.is_displayed()


def test_tooltips_can_be_read_with_the_keys_alone(opened):
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    opened.find_element("css selector", "nav a[href='#convergence']").click()
    svg = next(s for s in opened.find_elements("css selector", "#convergence svg") if s.is_displayed())
    opened.execute_script("arguments[0].focus()", svg)
    opened.switch_to.active_element.send_keys(keys.ARROW_RIGHT)
    tip = opened.find_element("id", "tip")
    first = tip.text
    assert "certified bound" in first
    opened.switch_to.active_element.send_keys(keys.ARROW_RIGHT)
    assert tip.is_displayed()
    assert tip.text != first


def test_every_word_stands_out_from_what_is_behind_it(opened):
    for tab in tabs(opened):
        tab.click()
        opened.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        assert opened.execute_script(CONTRAST) == []


def test_tables_open_and_scroll_inside_of_the_screen(opened):
    opened.find_element("css selector", "nav a[href='#spectrum']").click()
    opened.find_element("css selector", "#chart-spectrum summary").click()
    table = opened.find_element("css selector", "#chart-spectrum table")
    assert table.is_displayed()
    assert len(table.find_elements("tag name", "tr")) == 5
    assert opened.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_without_scripts_everything_is_shown_one_after_the_other(report, tmp_path):
    browser = open_browser(WIDE, tmp_path, scripts=False)
    try:
        browser.get(report.as_uri())
        assert not browser.find_elements("css selector", "[role=tab]")
        assert all(s.is_displayed() for s in browser.find_elements("css selector", "section"))
        assert len([s for s in browser.find_elements("css selector", "svg") if s.is_displayed()]) == 7
        assert browser.find_elements("css selector", "svg [data-tip] title")
    finally:
        browser.quit()


def test_a_page_opened_while_the_run_goes_on_looks_for_news_until_its_end(tmp_path):
    path = tmp_path / "live.html"
    rows = tmp_path / "x.npy"
    rng = np.random.default_rng(3)
    np.save(rows, rng.standard_normal((600, 12)) * np.r_[4.0, 3.0, np.linspace(1.5, 0.5, 10)])
    assert Live(path).every <= 5.0
    command = [sys.executable, "-m", "grassia", "pca", str(rows), "-k", "2", "--solver", "grassia", "-w", "3"]
    slow = [
        "--backend",
        "threads",
        "--fault",
        "delay:*:60ms",
        "--report",
        str(path),
        "-o",
        str(tmp_path / "m"),
    ]
    browser = open_browser(WIDE, tmp_path / "profile")
    run = subprocess.Popen([*command, *slow, "-q"], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60.0
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        browser.get(f"{path.as_uri()}#workers")
        assert "RUNNING" in browser.find_element("tag name", "header").text
        assert run.wait(timeout=90) == 0
        while "CONVERGED" not in browser.find_element("tag name", "header").text:
            assert time.monotonic() < deadline + 60.0, "the page has not loaded itself anew"
            time.sleep(0.2)
        assert browser.find_element("id", "workers").is_displayed()  # the part one was looking at
        assert complaints(browser) == []
    finally:
        run.kill()
        browser.quit()

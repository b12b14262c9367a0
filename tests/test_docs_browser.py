"""The documentation in a real browser, on a phone and on a wide screen: every page, the menus, the search."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from browser import CONTRAST, PHONE, WIDE, complaints, open_browser

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parent.parent
FIRST = "docs/index.html"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--fail-on-warning", "--keep-going", "--conf-dir", "docs", "--doctree-dir"]
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(folder / "doctrees"), ".", str(folder / "html")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def address(site):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    serving.join()
    server.server_close()


@pytest.fixture(scope="module", params=[PHONE, WIDE])
def browser(request, tmp_path_factory):
    opened = open_browser(request.param, tmp_path_factory.mktemp("profile"))
    opened.set_page_load_timeout(60)
    opened.implicitly_wait(5)
    opened.width = request.param
    yield opened
    opened.quit()


def until(browser, script: str) -> None:
    """Wait for what is true soon, or fail."""
    wait = pytest.importorskip("selenium.webdriver.support.wait").WebDriverWait
    wait(browser, 10).until(lambda _: browser.execute_script(script), script)


PAGE = """
return {
  wide: document.documentElement.scrollWidth - innerWidth,
  off: Array.from(document.querySelectorAll('article img, article pre, article .table-wrapper, article dt'))
    .filter(e => e.getClientRects().length && e.getBoundingClientRect().right > innerWidth + 1)
    .map(e => e.tagName + ' ' + (e.id || e.className) + ' ' + e.textContent.slice(0, 40)),
  pictures: Array.from(document.images)
    .map(i => [i.getAttribute('src').slice(0, 60), i.complete && i.naturalWidth > 0,
               i.alt.trim() && i.alt !== i.getAttribute('src')]),
  heading: document.querySelectorAll('h1').length,
  language: document.documentElement.lang,
  elsewhere: performance.getEntriesByType('resource').map(e => e.name)
    .filter(n => !n.startsWith(location.origin) && !n.startsWith('data:')),
};
"""


def test_every_page_opens_without_complaint_and_fits_the_screen(browser, address, site):
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")} - {"index.html"}
    assert len(pages) > 30
    complaints(browser)
    for page in sorted(pages):
        browser.get(f"{address}/{page}")
        until(browser, f"return document.readyState === 'complete' && location.pathname === '/{page}'")
        seen = browser.execute_script(PAGE)
        assert complaints(browser) == [], page
        assert seen["wide"] <= 0, page
        assert seen["off"] == [], page
        assert seen["heading"] == (page != "search.html"), page  # whose heading is of level 2
        assert seen["language"] == "en", page
        assert seen["elsewhere"] == [], page
        for source, drawn, described in seen["pictures"]:
            assert drawn, f"{page}: {source} is not drawn"
            assert described, f"{page}: {source} has no alternative text"


def menu(browser):
    return browser.find_element("css selector", ".sidebar-drawer")


RESTED = """
var done = arguments[0];
Promise.all(document.getAnimations().map(a => a.finished)).then(() => done());
"""


def shown(browser, element) -> bool:
    """Whether it is on the screen, once what moves has come to rest."""
    browser.execute_async_script(RESTED)
    box = browser.execute_script("return arguments[0].getBoundingClientRect().toJSON()", element)
    return element.is_displayed() and 0 <= box["left"] < box["right"] <= browser.width


def test_the_menu_leads_from_page_to_page(browser, address):
    browser.get(f"{address}/{FIRST}")
    if browser.width == PHONE:
        opener = browser.find_element("css selector", ".mobile-header .nav-overlay-icon")
        assert not shown(browser, menu(browser))
        opener.click()
        assert shown(browser, menu(browser))
        browser.execute_script("document.querySelector('.sidebar-overlay').click()")  # beside the menu
        assert not shown(browser, menu(browser))
        opener.click()
    assert shown(browser, menu(browser))
    menu(browser).find_element("link text", "Choosing a solver").click()
    until(browser, "return location.pathname === '/docs/solvers.html'")
    assert browser.find_element("css selector", "h1").text.startswith("Choosing a solver")
    current = browser.find_element("css selector", ".sidebar-tree .current-page > a")
    assert current.get_attribute("textContent") == "Choosing a solver"


def test_the_contents_of_a_page_lead_to_its_parts(browser, address):
    browser.get(f"{address}/docs/faults.html")
    contents = browser.find_element("css selector", ".toc-drawer")
    if browser.width == PHONE:
        assert not shown(browser, contents)
        browser.find_element("css selector", ".mobile-header .toc-overlay-icon").click()
    assert shown(browser, contents)
    contents.find_element("link text", "Checkpoints").click()
    assert browser.current_url.endswith("faults.html#checkpoints")
    top = "document.getElementById('checkpoints').getBoundingClientRect().top"
    until(browser, f"return -5 <= {top} && {top} < 200")  # it scrolls there


def results(browser) -> list[str]:
    found = browser.find_elements("css selector", "#search-results ul.search li a")
    return [link.get_attribute("href") for link in found]


@pytest.mark.parametrize("place", ["served", "from a folder"])
def test_the_search_finds_pages_and_functions(place, browser, address, site):
    start = address if place == "served" else site.as_uri()
    browser.get(f"{start}/{FIRST}")
    complaints(browser)
    if browser.width == PHONE:
        browser.find_element("css selector", ".mobile-header .nav-overlay-icon").click()
        shown(browser, menu(browser))
    browser.find_element("css selector", "input[name=q]").send_keys("straggler\n")
    assert browser.find_elements("css selector", "#search-results ul.search li a")
    assert any("docs/tasks.html" in link for link in results(browser))
    browser.get(f"{start}/search.html?q=principal_angles")
    wanted = "a[href*='api/geometry.html#grassia.geometry.principal_angles']"
    browser.find_element("css selector", f"#search-results {wanted}").click()
    assert "principal_angles" in browser.find_element("css selector", "dt:target").text
    assert complaints(browser) == []


def test_the_first_page_is_found_from_the_folder_alone(browser, site):
    browser.get((site / "index.html").as_uri())
    until(browser, f"return location.href.endsWith('/{FIRST}')")
    assert browser.find_element("css selector", "article h1").text.startswith("grassia")


DARK = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
LETTERS = """
var done = arguments[0], picture = document.querySelector("img[src$='architecture.svg']");
fetch(picture.src).then(r => r.text()).then(function (text) {
  var frame = document.createElement('div');
  frame.innerHTML = text;
  frame.style.width = picture.getBoundingClientRect().width + 'px';
  document.body.append(frame);
  var svg = frame.querySelector('svg');
  svg.style.width = '100%'; svg.style.height = 'auto';
  function rgb(text) { return text.match(/[\\d.]+/g).map(Number); }
  function light(c) { return [0, 1, 2].map(function (i) { var v = c[i] / 255;
    return v <= 0.03928 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4); })
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0); }
  var boxes = Array.from(svg.querySelectorAll('rect'));
  done(Array.from(svg.querySelectorAll('text')).map(function (t) {
    var b = t.getBoundingClientRect(), x = b.left + b.width / 2, y = b.top + b.height / 2;
    var under = boxes.filter(function (r) { var o = r.getBoundingClientRect();
      return o.left <= x && x <= o.right && o.top <= y && y <= o.bottom; }).pop();
    var o = under.getBoundingClientRect();
    var a = light(rgb(getComputedStyle(t).fill)), c = light(rgb(getComputedStyle(under).fill));
    return {text: t.textContent, height: b.height, inside: o.left <= b.left && b.right <= o.right,
            contrast: (Math.max(a, c) + 0.05) / (Math.min(a, c) + 0.05)};
  }));
});
"""


@pytest.fixture(params=["light", "dark"])
def scheme(request, browser):
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", DARK if request.param == "dark" else {"features": []}
    )
    yield request.param
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_drawing_can_be_read(scheme, browser, address):
    browser.get(f"{address}/docs/developing.html")
    letters = browser.execute_async_script(LETTERS)
    assert {"Your program", "Result"} <= {one["text"] for one in letters}
    for one in letters:
        assert one["inside"], one
        assert one["height"] >= 11, one
        assert one["contrast"] >= 4.5, one


@pytest.mark.parametrize(
    "page", ["docs/start", "docs/solvers", "docs/clusters", "docs/api/estimators", "search"]
)
def test_every_word_stands_out_from_what_is_behind_it(page, scheme, browser, address):
    browser.get(f"{address}/{page}.html?q=worker")
    until(browser, "return document.querySelector('h1, #search-results li') !== null")
    assert browser.execute_script(CONTRAST) == []


def test_the_colours_can_be_changed(browser, address):
    browser.get(f"{address}/{FIRST}")
    theme = "return document.body.dataset.theme"
    before = browser.execute_script(theme)
    where = ".mobile-header" if browser.width == PHONE else ".content-icon-container"
    browser.find_element("css selector", f"{where} .theme-toggle").click()
    assert browser.execute_script(theme) != before
    browser.execute_script("localStorage.clear()")


def test_without_scripts_pages_can_be_read_and_left(site, tmp_path):
    browser = open_browser(WIDE, tmp_path, scripts=False)
    try:
        browser.get((site / FIRST).as_uri())
        assert browser.find_element("css selector", "h1").is_displayed()
        browser.find_element("css selector", ".sidebar-tree").find_element(
            "link text", "Five minutes"
        ).click()
        assert browser.find_element("css selector", "h1").text.startswith("Five minutes")
    finally:
        browser.quit()

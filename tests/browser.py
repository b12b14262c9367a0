"""Chromium without a window, for the tests marked `browser`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conftest import unavailable

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
)
PHONE, WIDE = 375, 1440

#: Returns the texts that hardly stand out from what is behind them: contrast, element, text.
CONTRAST = """
function rgb(text) { return text.match(/[\\d.]+/g).map(Number); }
function light(c) { return [0, 1, 2].map(function (i) { var v = c[i] / 255;
  return v <= 0.03928 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4); })
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0); }
function behind(e) { for (; e; e = e.parentElement) { var c = rgb(getComputedStyle(e).backgroundColor);
  if (c.length < 4 || c[3] > 0) { return c; } } return [255, 255, 255]; }
return Array.from(document.querySelectorAll('body *')).filter(function (e) {
  return Array.from(e.childNodes).some(n => n.nodeType === 3 && n.textContent.trim()) &&
    e.getClientRects().length && !['SCRIPT', 'STYLE', 'title', 'desc'].includes(e.tagName);
}).map(function (e) {
  var style = getComputedStyle(e), own = e.namespaceURI.endsWith('svg') ? style.fill : style.color;
  var a = light(rgb(own)), b = light(behind(e));
  return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.tagName, e.textContent.slice(0, 30)];
}).filter(one => one[0] < 4.5);
"""


def open_browser(width: int, folder: Path, scripts: bool = True):
    """A browser with a screen of this width and its profile in `folder`; to be quit by the caller."""
    webdriver = pytest.importorskip("selenium.webdriver")
    binary = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        unavailable("there is no Chromium with its driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in [*ARGUMENTS.split(), f"--user-data-dir={folder}"]:
        options.add_argument(argument)
    if not scripts:
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width == PHONE}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    return opened


def complaints(browser) -> list[str]:
    """What the console has said since it was last asked."""
    return [entry["message"] for entry in browser.get_log("browser")]

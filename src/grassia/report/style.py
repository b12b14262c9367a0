"""How a report looks and behaves: one style sheet and one small script, both part of the page.

Colours are checked in the tests: text has a contrast of 4.5 or more against what is behind it, and what is to
be told apart in a chart 3 or more against white.
"""

from __future__ import annotations

__all__ = ["COLOURS", "CSS", "SCRIPT"]

COLOURS = {
    "text": "#1a2027",
    "soft": "#4a5561",
    "paper": "#ffffff",
    "shade": "#f2f4f7",
    "line": "#c9d0d8",
    "good": "#17643a",
    "bad": "#a11d1d",
    "busy": "#0b57a4",
    "c0": "#0b57a4",
    "c1": "#a8430a",
    "c2": "#1b6e45",
    "c3": "#7a3b9c",
    "c4": "#8a5a00",
    "c5": "#a11d5f",
    "c6": "#00707a",
    "c7": "#5b6470",
}

_VARIABLES = "".join(f"--{name}:{value};" for name, value in COLOURS.items())
_SERIES = "".join(
    f".line.c{i},.dots.c{i},.whisker.c{i}{{stroke:var(--c{i})}}.bar.c{i},.point.c{i}{{fill:var(--c{i})}}"
    f".key.c{i}{{background:var(--c{i})}}"
    for i in range(8)
)

CSS = (
    ":root{color-scheme:light;"
    + _VARIABLES
    + "}"
    + """
*{box-sizing:border-box}
body{margin:0;font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
color:var(--text);background:var(--paper);overflow-wrap:break-word}
header,main,footer,nav{max-width:1060px;margin:0 auto;padding:0 16px}
header{padding-top:20px}
h1{font-size:1.6rem;line-height:1.2;margin:0 0 4px}
h2{font-size:1.25rem;margin:28px 0 8px}
h3{font-size:1rem;margin:0 0 2px}
p{margin:6px 0 10px}
a{color:var(--c0)}
.soft{color:var(--soft)}
.badge{display:inline-block;font-weight:700;color:var(--paper);background:var(--soft);border-radius:4px;
padding:1px 9px}
.badge.good{background:var(--good)}.badge.bad{background:var(--bad)}.badge.on{background:var(--busy)}
dl.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:8px;margin:14px 0;
padding:0}
dl.facts div{background:var(--shade);border-radius:6px;padding:7px 10px}
dl.facts dt{color:var(--soft);font-size:.82rem}
dl.facts dd{margin:0;font-weight:600;font-variant-numeric:tabular-nums}
nav{border-bottom:1px solid var(--line);position:sticky;top:0;background:var(--paper);z-index:2;
padding-top:4px}
nav ul{list-style:none;display:flex;gap:2px;margin:0;padding:0;overflow-x:auto}
nav a{display:block;padding:9px 12px;color:var(--text);text-decoration:none;white-space:nowrap;
border-bottom:3px solid transparent}
nav a:hover{background:var(--shade)}
nav a[aria-selected=true]{border-bottom-color:var(--c0);font-weight:700}
section[hidden]{display:none}
figure{margin:16px 0 26px}
figcaption p{margin:0 0 6px;color:var(--soft);font-size:.92rem}
svg{display:block;width:100%;height:auto;font:12px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;
font-variant-numeric:tabular-nums}
svg.square{max-width:560px}
svg text{fill:var(--soft)}
svg text.name,svg text.mark{fill:var(--text)}
svg text.mark{paint-order:stroke;stroke:var(--paper);stroke-width:3px}
.narrow{display:none}
.grid{stroke:#e3e7ec;fill:none}.tick,.axis{stroke:#77818c;fill:none}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.line.dashed{stroke-dasharray:6 4}
.dots{fill:none;stroke-width:8;stroke-linecap:round}
.level{stroke:var(--text);stroke-dasharray:5 4;fill:none}
.band{fill:#dfeadf}
.whisker{fill:none;stroke-width:2}
.hit{fill:transparent}
.bar:hover,.point:hover,.hit:hover{opacity:.8}
.hit:hover{fill:rgba(11,87,164,.09)}
.point{fill-opacity:.75}
.idle,.key.idle{fill:#e6eaef;background:#e6eaef}
.b1{fill:#b3cde6}.b2{fill:#7da9d3}.b3{fill:#3f7fbd}.b4{fill:var(--busy)}
.gone{fill:var(--bad)}
.key{display:inline-block;width:14px;height:14px;border-radius:3px;margin-right:6px;vertical-align:-2px;
border:1px solid rgba(0,0,0,.25)}
.key.busy{background:var(--busy)}.key.gone{background:var(--bad)}.key.band{background:#dfeadf}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;margin:6px 0;padding:0;font-size:.9rem}
details{margin:4px 0 0}
summary{cursor:pointer;color:var(--c0);padding:6px 0}
.scroll{overflow:auto;max-height:420px;border:1px solid var(--line);border-radius:6px}
.scroll:focus-visible,svg:focus-visible,a:focus-visible,summary:focus-visible{
outline:3px solid var(--c0);outline-offset:1px}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums;width:100%}
caption{text-align:left;padding:6px 8px;color:var(--soft)}
th,td{padding:4px 9px;text-align:right;border-top:1px solid var(--line);white-space:nowrap}
thead th{background:var(--shade);border-top:0;position:sticky;top:0}
th:first-child,td:first-child,td.text,th.text{text-align:left}
td.long{white-space:normal;min-width:220px;text-align:left}
pre{background:var(--shade);border-radius:6px;padding:10px 12px;overflow-x:auto;font-size:.85rem}
#tip{position:fixed;display:none;pointer-events:none;background:var(--text);color:var(--paper);border-radius:5px;
padding:5px 9px;font-size:.85rem;white-space:pre-line;max-width:280px;z-index:3}
footer{color:var(--soft);font-size:.85rem;padding-top:14px;padding-bottom:30px;margin-top:30px;
border-top:1px solid var(--line)}
@media (max-width:760px){.wide{display:none}.narrow{display:block;max-width:520px}nav{position:static}
nav ul{flex-wrap:wrap}h1{font-size:1.35rem}
dl.facts{grid-template-columns:repeat(2,1fr)}nav a{padding:9px 9px}}
@media print{nav,#tip{display:none}section[hidden]{display:block}}
"""
    + _SERIES
)

SCRIPT = """
(function () {
  'use strict';
  var links = Array.prototype.slice.call(document.querySelectorAll('nav a'));
  var panels = links.map(function (a) { return document.getElementById(a.getAttribute('href').slice(1)); });
  document.querySelector('nav ul').setAttribute('role', 'tablist');
  function show(i, focus) {
    links.forEach(function (a, j) {
      a.setAttribute('aria-selected', String(i === j));
      a.tabIndex = i === j ? 0 : -1;
      panels[j].hidden = i !== j;
    });
    if (focus) { links[i].focus(); }
  }
  links.forEach(function (a, i) {
    a.parentNode.setAttribute('role', 'presentation');
    a.setAttribute('role', 'tab');
    a.id = 'tab-' + panels[i].id;
    a.setAttribute('aria-controls', panels[i].id);
    panels[i].setAttribute('role', 'tabpanel');
    panels[i].setAttribute('aria-labelledby', a.id);
    a.addEventListener('click', function (event) {
      event.preventDefault();
      try { history.replaceState(null, '', '#' + panels[i].id); } catch (error) { /* a sandboxed frame */ }
      show(i, false);
    });
    a.addEventListener('keydown', function (event) {
      var step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) { event.preventDefault(); show((i + step + links.length) % links.length, true); }
      if (event.key === 'Home') { event.preventDefault(); show(0, true); }
      if (event.key === 'End') { event.preventDefault(); show(links.length - 1, true); }
      if (event.key === ' ') { event.preventDefault(); a.click(); }
    });
  });
  var wanted = panels.map(function (p) { return '#' + p.id; }).indexOf(location.hash);
  show(Math.max(wanted, 0), false);

  // Browsers take a refresh of an address with a fragment for a jump inside of the page, and load nothing.
  var again = document.querySelector('meta[http-equiv=refresh]');
  if (again) { setTimeout(function () { location.reload(); }, 1000 * again.content - 200); }

  var tip = document.getElementById('tip');
  function place(x, y) {
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8)) + 'px';
    tip.style.top = (y + 18 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 10 : y + 18) + 'px';
  }
  function tell(element, x, y) {
    if (!element) { tip.style.display = 'none'; return; }
    tip.textContent = element.getAttribute('data-tip');
    tip.style.display = 'block';
    place(x, y);
  }
  function under(event) { return event.target.closest ? event.target.closest('[data-tip]') : null; }
  Array.prototype.forEach.call(document.querySelectorAll('[data-tip] title'), function (title) {
    title.parentNode.removeChild(title);
  });
  function look(event) { tell(under(event), event.clientX, event.clientY); }
  document.addEventListener('mousemove', look);
  document.addEventListener('click', look);
  document.addEventListener('scroll', function () { tell(null); }, true);
  Array.prototype.forEach.call(document.querySelectorAll('svg'), function (svg) {
    var marks = svg.querySelectorAll('[data-tip]'), at = -1;
    if (!marks.length) { return; }
    svg.setAttribute('tabindex', '0');
    svg.addEventListener('keydown', function (event) {
      var step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (event.key === 'Escape') { tell(null); }
      if (!step) { return; }
      event.preventDefault();
      at = Math.max(0, Math.min(marks.length - 1, at + step));
      var box = marks[at].getBoundingClientRect();
      tell(marks[at], box.left + box.width / 2, box.top + box.height / 2);
    });
    svg.addEventListener('blur', function () { tell(null); });
  });
})();
"""

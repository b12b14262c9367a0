"""The page: one HTML file with everything in it, whether or not there are scripts or a wide screen."""

from __future__ import annotations

import math
from html import escape

import numpy as np

import grassia
from grassia.data.loaders import size_text
from grassia.report import figures, timeline
from grassia.report.charts import legend
from grassia.report.citing import bibtex, sentence
from grassia.report.contents import Contents
from grassia.report.forecast import SLOW, slowness
from grassia.report.parts import NARROW, facts, figure, table
from grassia.report.sample import forecast
from grassia.report.style import CSS, SCRIPT
from grassia.report.words import duration, in_words, number

__all__ = ["page"]

MOST_EVENTS = 500
MOST_WORKERS = 2000


def page(contents: Contents, refresh: float | None = None) -> str:
    """The whole page as text; while the run goes on it looks for news every `refresh` seconds."""
    sections = [
        ("overview", "Overview", _overview(contents)),
        ("convergence", "Convergence", _convergence(contents)),
        ("spectrum", "Spectrum", _spectrum(contents)),
        ("workers", "Workers", _workers(contents)),
        *((f"more-{i}", one.title, one.html) for i, one in enumerate(contents.more)),
        ("events", "Events", _events(contents)),
        ("cite", "Cite", _cite()),
    ]
    if contents.scatter is not None:
        sections.insert(4, ("rows", "Rows", figures.scatter(contents.scatter)))
    links = "".join(f'<li><a href="#{ident}">{escape(name)}</a></li>' for ident, name, _ in sections)
    body = "".join(
        f'<section id="{ident}"><h2>{escape(name)}</h2>{inside}</section>' for ident, name, inside in sections
    )
    again = ""
    if contents.goes_on and refresh is not None:
        again = f'<meta http-equiv="refresh" content="{max(1, round(refresh))}">'
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="generator" content="grassia {escape(grassia.__version__)}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">{again}'
        f'<title>{escape(contents.title)}</title><link rel="icon" href="data:,"><style>{CSS}</style></head>'
        f"<body><header><h1>{escape(contents.title)}</h1>{_status(contents, refresh)}</header>"
        f'<nav aria-label="Parts of this report"><ul>{links}</ul></nav><main>{body}</main>'
        f"<footer>Written {escape(contents.written)} by grassia {escape(grassia.__version__)}. "
        "This file needs no network.</footer>"
        f'<div id="tip" role="status"></div><script>{SCRIPT}</script></body></html>\n'
    )


def _status(contents: Contents, refresh: float | None) -> str:
    what = f'<p class="soft">{escape(contents.what)}</p>' if contents.what else ""
    if contents.goes_on:
        left = duration(forecast(contents.samples))
        news = "" if refresh is None else f" This page looks for news every {max(1, round(refresh))} s."
        said = f"The run goes on, as of {contents.written}; time to the tolerance: {left}.{news}"
        return f'<p><span class="badge on">RUNNING</span> {escape(said)}</p>{what}'
    if contents.status is None:
        said = "The log has no end: the run goes on, or was killed."
        return f'<p><span class="badge">NO END</span> {said}</p>{what}'
    kind = "good" if contents.converged else "bad"
    return (
        f'<p><span class="badge {kind}">{escape(contents.status)}</span> {escape(contents.advice)}</p>{what}'
    )


def _overview(contents: Contents) -> str:
    last, stats, certificate = contents.last, contents.stats, contents.certificate
    seconds = stats.get("seconds", None if last is None else last.time)
    updates = stats.get("updates", None if last is None else last.version)
    passes = stats.get("passes", None if last is None else last.passes)
    clock = " (virtual)" if stats.get("clock") == "virtual" else ""
    known = [
        ("Dimension k", None if contents.k is None else f"{contents.k}"),
        ("Sine asked for", number(contents.tol, "g")),
        ("Certified sine", None if certificate is None else f"≤ {certificate.sin_theta.value:.3g}"),
        ("Estimate", None if last is None or math.isnan(last.estimate) else f"{last.estimate:.3g}"),
        ("Time", None if seconds is None else duration(seconds) + clock),
        ("Passes over the data", None if passes is None else f"{passes:.1f}"),
        ("Updates", None if updates is None else f"{updates}"),
        ("Workers", f"{contents.workers}" if contents.workers else None),
        ("Features", None if contents.features is None else f"{contents.features}"),
        ("Solver", stats.get("solver")),
        ("Back-end", stats.get("backend")),
        ("Seed", None if stats.get("seed") is None else f"{stats['seed']}"),
        ("Sent", _bytes(stats.get("bytes_sent"))),
        ("Received", _bytes(stats.get("bytes_received"))),
        ("Left out", ", ".join(map(str, stats.get("excluded") or ())) or None),
        ("Begun", contents.started),
    ]
    said = "".join(f"<li>{escape(line)}</li>" for line in in_words(certificate, goes_on=contents.goes_on))
    exact = "" if certificate is None else f"<pre>{escape(str(certificate))}</pre>"
    reason = stats.get("solver_reason")
    why = f"<p>Why this solver: {escape(str(reason))}.</p>" if reason and reason != "asked for" else ""
    pairs = [(name, str(value)) for name, value in known if value is not None]
    return f"{facts(pairs)}{why}<h3>The certificate in words</h3><ul>{said}</ul>{exact}"


def _bytes(count: int | None) -> str | None:
    return None if count is None else size_text(int(count))


def _convergence(contents: Contents) -> str:
    return figures.convergence(contents) or "<p>Nothing was recorded on the way to the answer.</p>"


def _spectrum(contents: Contents) -> str:
    first = figures.spectrum(contents)
    if first is None:
        return "<p>There is no certificate, and so no eigenvalue that could be trusted.</p>"
    return first + (figures.variance(contents) or "<p>The total variance is not known.</p>")


def _workers(contents: Contents) -> str:
    parts = [_timeline(contents), _who(contents), figures.staleness(contents), figures.traffic(contents)]
    found = "".join(part for part in parts if part)
    return found or "<p>Nothing was recorded of the workers.</p>"


def _timeline(contents: Contents) -> str | None:
    times, busy, spells = timeline.shares(contents)
    if not busy.size or float(times[-1]) <= 0.0:
        return None
    rows = [
        (
            contents.name(w),
            f"{100 * float(share @ np.diff(times)) / float(times[-1]):.1f}",
            f"{len(spells[w])}",
            f"{sum(b - a for a, b in spells[w]):.3g}",
        )
        for w, share in enumerate(busy[:MOST_WORKERS])
    ]
    some = (
        ""
        if len(busy) <= timeline.MOST_ROWS
        else f" The first {timeline.MOST_ROWS} of {len(busy)} are shown."
    )
    lost = sum(len(spell) for spell in spells)
    return figure(
        "chart-timeline",
        "Timeline of every worker",
        f"The darker, the busier in that stretch of time.{some}",
        lambda width: timeline.draw(contents, width, 200 if width > NARROW else 80),
        table("Shares of the time", ("worker", "busy, %", "times lost", "seconds lost"), rows),
        said=f"{len(busy)} workers over {float(times[-1]):.3g} s; {lost} losses.",
        legend=legend([("busy", "busy"), ("idle", "idle"), ("gone", "lost")]),
    )


def _who(contents: Contents) -> str | None:
    answers, busy = contents.of_workers("answers"), contents.of_workers("busy_seconds")
    if not answers:
        return None
    busy = busy or [math.nan] * len(answers)
    last = contents.last
    seconds = contents.stats.get("seconds") or (last.time if last is not None else math.nan)
    slow = slowness([int(count) for count in answers], busy, [0.0] * len(answers))
    stale = _usual_staleness(contents, len(answers))
    rows = []
    for w, count in enumerate(answers[:MOST_WORKERS]):
        straggler = f"{slow[w]:.1f} times slower" if slow[w] >= SLOW else ""
        remark = ", ".join(text for text in (contents.note(w), straggler) if text)
        each = busy[w] / count if count else math.nan
        rate = count / seconds if seconds else math.nan
        rows.append(
            (contents.name(w), f"{int(count)}", number(rate), _brief(each), number(busy[w]), stale[w], remark)
        )
    head = ("worker", "answers", "a second", "each", "busy s", "staleness", "remark")
    return "<h3>Who did what</h3>" + table(
        "Workers; staleness is the median of what was seen", head, rows, texts=[6]
    )


def _brief(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "–"
    return f"{1e3 * seconds:.3g} ms" if seconds < 1.0 else f"{seconds:.3g} s"


def _usual_staleness(contents: Contents, workers: int) -> list[str]:
    """The median staleness of each worker while it was busy."""
    seen: list[list[int]] = [[] for _ in range(workers)]
    for sample in contents.samples:
        if sample.phase == "solving" and len(sample.states) == workers:
            for w, state in enumerate(sample.states):
                if state == "b":
                    seen[w].append(sample.staleness[w])
    return [f"{np.median(values):g}" if values else "–" for values in seen]


def _events(contents: Contents) -> str:
    if not contents.events:
        return "<p>None: no loss, no damaged reply, no refused certificate.</p>"
    rows = [
        (
            f"{event.time:.3g}",
            f"{event.version}",
            "–" if event.component is None else f"{event.component}",
            event.kind,
            event.text,
        )
        for event in contents.events[:MOST_EVENTS]
    ]
    more = len(contents.events) - len(rows)
    some = f"<p>And {more} more.</p>" if more > 0 else ""
    head = ("seconds", "update", "component", "what", "how")
    return table("What happened", head, rows, texts=[3, 4], long=4) + some


def _cite() -> str:
    return (
        f"<p>If this served you, please cite the paper and the software.</p><p>{escape(sentence())}</p>"
        f"<pre>{escape(bibtex())}</pre>"
    )

"""The HTML report: whole in itself, accessible, and with the numbers of the run."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import grassia
from grassia import backends
from grassia.report import Live, Log, Watch, from_log, from_result, save, write
from grassia.report.page import page
from grassia.report.timeline import busy_shares
from report_pages import Page, looks_for_news, parsed, run

NAMES = ["report.html", "from-log.html", "from-result.html"]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    log = Log(folder / "run.jsonl", every=0.02)
    X, watch, result = run(callbacks=[log])
    labels = ["<b>odd & even</b>" if i % 3 else "third" for i in range(len(X))]
    scores = (X - X.mean(axis=0)) @ result.vectors
    write(folder / "report.html", result, watch=watch, scores=scores, labels=labels)
    save(folder / "from-log.html", from_log(folder / "run.jsonl"))
    save(folder / "from-result.html", from_result(result))
    return folder, X, watch, result


@pytest.mark.parametrize("name", NAMES)
def test_nothing_outside_of_the_file_is_referred_to(name, seen):
    text = (seen[0] / name).read_text(encoding="utf-8")
    for element in Page(text).root.all():
        for attribute in ("src", "srcset", "href", "action", "data", "xlink:href"):
            target = element.attributes.get(attribute, "")
            assert not target or target.startswith("#") or target == "data:,", target
    assert not re.search(r"https?:|//[a-z]|@import|url\(|fetch\(|XMLHttpRequest|localStorage", text)
    assert not looks_for_news(text)


@pytest.mark.parametrize("name", NAMES)
def test_every_id_is_there_once_and_what_is_pointed_at_is_there(name, seen):
    root = parsed(seen[0] / name).root
    ids = [e.attributes["id"] for e in root.all() if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    for element in root.all():
        for target in element.attributes.get("aria-labelledby", "").split():
            assert target in ids
        href = element.attributes.get("href", "")
        assert not href.startswith("#") or href[1:] in ids


@pytest.mark.parametrize("name", NAMES)
def test_every_chart_has_a_title_a_description_and_a_table_with_numbers(name, seen):
    root = parsed(seen[0] / name).root
    figures = list(root.all("figure"))
    assert len(figures) >= (7 if name == "report.html" else 4)
    for figure in figures:
        (heading,) = figure.all("h3")
        assert heading.text.strip()
        for svg in figure.all("svg"):
            assert svg.attributes["role"] == "img"
            title, description = next(svg.all("title")), next(svg.all("desc"))
            assert svg.attributes["aria-labelledby"].split() == [
                title.attributes["id"],
                description.attributes["id"],
            ]
            assert title.text.strip()
            assert re.search(r"\d", description.text)
            assert len(list(svg.all())) > 10
        (table,) = figure.all("table")
        assert any(re.search(r"\d", cell.text) for cell in table.all("td"))
        assert all(head.attributes["scope"] in ("col", "row") for head in table.all("th"))
    drawn = {figure.attributes["id"] for figure in figures}
    assert {
        "chart-convergence",
        "chart-spectrum",
        "chart-variance",
        "chart-staleness",
        "chart-traffic",
    } <= drawn
    if name != "from-result.html":
        assert "chart-timeline" in drawn


def test_the_numbers_of_the_page_are_those_of_the_result(seen):
    folder, X, _, result = seen
    for name in NAMES:
        found = parsed(folder / name)
        rows = found.rows("chart-spectrum")
        np.testing.assert_allclose([float(row[1]) for row in rows[:3]], result.values, rtol=1e-9)
        shares = [float(row[1]) for row in found.rows("chart-variance")]
        truth = np.sort(np.linalg.eigvalsh(np.cov(X.T, bias=True)))[::-1]
        np.testing.assert_allclose(shares, 100 * truth[:3] / truth.sum(), rtol=1e-3)
        bound = f"{result.certificate.sin_theta.value:.3g}"
        assert bound in found.section("overview").text
        assert found.rows("chart-convergence")[-1][-1] == bound
        stale = found.rows("chart-staleness")
        assert sum(int(row[1]) for row in stale) == len(result.history)
        events = found.section("events").text
        assert all(event.kind in events for event in result.history.events)
        traffic = found.rows("chart-traffic")[-1]
        assert traffic[1:] == [f"{result.stats['bytes_sent']}", f"{result.stats['bytes_received']}"]
        assert result.status.name in next(found.root.all("header")).text
    workers = found = parsed(folder / "report.html").section("workers").text
    assert all(str(count) in workers for count in result.stats["answers"])
    assert "times slower" in workers


def test_the_log_and_the_run_give_the_same_page_but_for_what_only_one_knows(seen):
    folder, _, _, result = seen
    log = from_log(folder / "run.jsonl")
    direct = from_result(result, seen[2])
    assert log.certificate is not None
    for name in ("residual_norm", "captured", "identified", "next_lower", "sin_theta", "gap"):
        assert getattr(log.certificate, name) == getattr(direct.certificate, name)
    assert log.events == direct.events
    assert log.staleness == direct.staleness
    assert log.of_workers("answers") == direct.of_workers("answers")


def test_texts_of_users_cannot_become_markup(seen):
    text = (seen[0] / "report.html").read_text(encoding="utf-8")
    assert "<b>odd" not in text
    assert "&lt;b&gt;odd &amp; even" in text
    nasty = replace(from_result(seen[3]), title="</title><script>alert(1)</script>", what='"><img src=x>')
    made = Page(page(nasty))
    assert len(list(made.root.all("script"))) == 1
    assert not list(made.root.all("img"))


def test_nobody_is_busy_for_more_than_all_of_the_time_and_no_work_is_lost(seen):
    _, _, watch, result = seen
    times, shares = busy_shares(watch.samples)
    assert np.all((shares >= 0.0) & (shares <= 1.0 + 1e-12))
    worked = shares @ np.diff(times)
    assert np.all(worked >= 0.95 * np.minimum(result.stats["busy_seconds"], times[-1]))


def test_the_log_of_a_killed_run_makes_a_page_that_says_so(seen, tmp_path):
    lines = (seen[0] / "run.jsonl").read_text(encoding="utf-8").splitlines()
    cut = tmp_path / "cut.jsonl"
    cut.write_text("\n".join([*lines[:2], lines[2][:40]]), encoding="utf-8")
    text = page(from_log(cut))
    assert "no end" in text
    assert not looks_for_news(text)
    Page(text)


def test_pages_of_many_workers_stay_small_and_quick_to_read(tmp_path):
    X = np.random.default_rng(0).standard_normal((3000, 10)) * np.arange(10, 0, -1)
    watch = Watch(most=50)
    result = grassia.eigenspace(
        grassia.from_rows(X, n_components=400), 2, solver="nystrom", backend=backends.Simulated(), rng=0,
        callbacks=watch,
    )  # fmt: skip
    path = write(tmp_path / "r.html", result, watch=watch)
    assert path.stat().st_size < 3_000_000
    found = parsed(path)
    assert len(found.rows("chart-timeline")) == 400
    assert "256 of 400" in found.section("workers").text


# -- pages of runs that go on ------------------------------------------------------------------------------


def test_a_run_that_goes_on_looks_for_news_and_one_that_ended_does_not(tmp_path):
    path = tmp_path / "live.html"
    pages = []

    def look(progress):
        if path.exists() and progress.vectors is not None:
            pages.append(path.read_text(encoding="utf-8"))
            return True
        return False

    with Live(path, every=1e-3) as live:
        _, _, result = run(callbacks=[live, look])
    assert result.status.name == "INTERRUPTED"
    going, ended = Page(pages[0]), parsed(path)
    assert looks_for_news(pages[0])
    assert "goes on" in next(going.root.all("header")).text
    assert not looks_for_news(path.read_text(encoding="utf-8"))
    assert "INTERRUPTED" in next(ended.root.all("header")).text
    assert [p.name for p in tmp_path.iterdir()] == ["live.html"]


def test_a_run_that_fails_leaves_a_page_that_does_not_go_on(tmp_path):
    path = tmp_path / "live.html"

    def fail(progress):
        if path.exists():
            raise RuntimeError("as if")

    with pytest.raises(RuntimeError), Live(path, every=1e-3) as live:
        run(callbacks=[live, fail])
    text = path.read_text(encoding="utf-8")
    assert "RuntimeError" in text
    assert not looks_for_news(text)


def test_a_full_disk_does_not_cost_the_run(tmp_path):
    path = tmp_path / "sub" / "live.html"
    path.parent.mkdir()
    live = Live(path, every=1e-3)
    path.parent.rmdir()
    with pytest.warns(UserWarning, match="goes on without it"):
        _, _, result = run(callbacks=[live])
    assert result.converged

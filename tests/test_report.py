"""The HTML report: whole in itself, accessible, and with the numbers of the run."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning

import grassia
from grassia import backends
from grassia.cli import main
from grassia.errors import InvalidInput
from grassia.report import Live, Log, Sample, Watch, from_log, from_result, save, write
from grassia.report.axes import linear, logarithmic
from grassia.report.contents import scatter_of
from grassia.report.page import page
from grassia.report.style import COLOURS
from grassia.report.timeline import busy_shares, lost_spells
from grassia.result import Event

VOID = {"meta", "link", "br", "img", "input", "hr"}
ROOT = Path(__file__).resolve().parent.parent


class Element:
    def __init__(self, tag, attributes, parent):
        self.tag, self.attributes, self.parent = tag, dict(attributes), parent
        self.children, self.own = [], ""

    def all(self, tag=None):
        for child in self.children:
            if tag is None or child.tag == tag:
                yield child
            yield from child.all(tag)

    @property
    def text(self):
        return self.own + " ".join(child.text for child in self.children)


class Page(HTMLParser):
    """A parsed page; it refuses tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = self.at = Element("", {}, None)
        self.feed(text)
        self.close()
        assert self.at is self.root, f"<{self.at.tag}> is never closed"

    def handle_starttag(self, tag, attrs):
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute twice in <{tag}>"
        element = Element(tag, attrs, self.at)
        self.at.children.append(element)
        if tag not in VOID:
            self.at = element

    def handle_startendtag(self, tag, attrs):
        self.at.children.append(Element(tag, attrs, self.at))

    def handle_endtag(self, tag):
        assert self.at.tag == tag, f"</{tag}> closes <{self.at.tag}>"
        self.at = self.at.parent

    def handle_data(self, data):
        self.at.own += data

    def section(self, ident):
        return next(s for s in self.root.all("section") if s.attributes["id"] == ident)

    def rows(self, ident):
        """The cells of the table of a figure."""
        figure = next(f for f in self.root.all("figure") if f.attributes["id"] == ident)
        (table,) = figure.all("table")
        return [[cell.text for cell in row.children] for row in table.all("tr")][1:]


def looks_for_news(text: str) -> bool:
    """Whether a page loads itself anew, after a second or more."""
    again = [m for m in Page(text).root.all("meta") if m.attributes.get("http-equiv") == "refresh"]
    return len(again) == 1 and int(again[0].attributes["content"]) >= 1


def run(**options):
    """A run with a slow worker, a crash and a damaged reply, and who looked on."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((800, 20)) * np.r_[5.0, 4.0, 3.0, np.linspace(1.5, 0.5, 17)]
    faults = ["slow:0:10x", "crash:2@9", "corrupt:1@4"]
    watch = Watch()
    callbacks = [watch, *options.pop("callbacks", [])]
    result = grassia.eigenspace(
        grassia.from_rows(X, n_components=4),
        3,
        solver="grassia",
        backend=backends.Threads(faults=faults),
        rng=0,
        callbacks=callbacks,
        **options,
    )
    return X, watch, result


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


def parsed(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


NAMES = ["report.html", "from-log.html", "from-result.html"]


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


# -- parts ------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_and_series_told_from_the_paper():
    for behind in ("paper", "shade"):
        for name in ("text", "soft", "c0"):
            assert contrast(COLOURS[name], COLOURS[behind]) >= 4.5
    for badge in ("good", "bad", "busy", "soft"):
        assert contrast(COLOURS["paper"], COLOURS[badge]) >= 4.5
    for i in range(8):
        assert contrast(COLOURS[f"c{i}"], COLOURS["paper"]) >= 4.5


def sample(moment, busy, waited=None, states=None):
    n = len(busy)
    plain = {"phase": "solving", "version": 0, "passes": 0.0, "residual": 1.0, "target": 1.0, "estimate": 1.0}
    more = {
        "bound": math.nan,
        "answers": [0] * n,
        "staleness": [0] * n,
        "sent": 0,
        "received": 0,
        "events": 0,
    }
    return Sample(
        time=moment, busy=busy, waited=waited or [0.0] * n, states=states or "i" * n, **plain, **more
    )


def test_work_is_laid_back_from_when_its_answer_came():
    # Worker 0 answers at 4 what took it 3 seconds; worker 1 is out since 2 and never answers.
    samples = [
        sample(t, [3.0 if t == 4 else 0.0, 0.0], [0.0, max(0.0, t - 2.0)]) for t in (1.0, 2.0, 3.0, 4.0)
    ]
    times, shares = busy_shares(samples)
    np.testing.assert_allclose(times, [0.0, 1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(shares, [[0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]])


def test_nobody_is_busy_for_more_than_all_of_the_time_and_no_work_is_lost(seen):
    _, _, watch, result = seen
    times, shares = busy_shares(watch.samples)
    assert np.all((shares >= 0.0) & (shares <= 1.0 + 1e-12))
    worked = shares @ np.diff(times)
    assert np.all(worked >= 0.95 * np.minimum(result.stats["busy_seconds"], times[-1]))


def test_a_worker_is_lost_from_its_loss_to_its_return_or_to_the_end():
    events = [Event(1.0, 0, "worker lost", 2, ""), Event(3.0, 0, "worker restored", 2, "")]
    events += [Event(5.0, 0, "worker lost", 0, ""), Event(6.0, 0, "certificate refused", None, "")]
    assert lost_spells(events, [[0, 1], [2]], 9.0) == [[(5.0, 9.0)], [(1.0, 3.0)]]


@pytest.mark.parametrize(
    "values", [[0.0, 1.0], [3.0, 3.0], [-5.0, 1e6], [1e-9, 2e-9], [0.0, 0.0], [7.3], [math.nan]]
)
def test_axes_hold_all_values_between_their_ends(values):
    for axis in (linear(values), linear(values, zero=True), logarithmic(values)):
        assert axis.low < axis.high
        assert len(axis.ticks) >= 2
        for value in values:
            if math.isfinite(value) and (value > 0.0 or not axis.log):
                assert axis.low <= value * (1 + 1e-9) or axis.low <= value
                assert value <= axis.high * (1 + 1e-9) or value <= axis.high
                assert 0.0 <= axis.at(value) <= 1.0


def test_of_many_rows_a_fair_selection_is_shown_and_what_does_not_fit_is_refused():
    labels = [f"{i % 4}" for i in range(10_000)]  # every so many-th row would miss most of them
    found = scatter_of(np.arange(30_000.0).reshape(-1, 3), labels, most=1000)
    assert (len(found.points), found.rows) == (1000, 10_000)
    assert all(200 <= found.labels.count(label) <= 300 for label in "0123")
    rows = [int(point[0]) // 3 for point in found.points]
    assert rows == sorted(set(rows))
    assert [labels[row] for row in rows] == found.labels
    assert scatter_of(np.zeros((5, 1))) is None
    with pytest.raises(InvalidInput, match="labels"):
        scatter_of(np.zeros((5, 2)), labels=["a"])


def test_the_citation_is_that_of_the_project():
    from grassia.report import citing

    project = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f'title: "{citing.TITLE}"' in project
    names = re.findall(r"family-names: (\S+)\n\s+given-names: (\S+)", project)
    assert [(family, given) for given, family in citing.AUTHORS] == names


# -- logs that are not whole, and the command -------------------------------------------------------------


def test_the_log_of_a_killed_run_makes_a_page_that_says_so(seen, tmp_path):
    lines = (seen[0] / "run.jsonl").read_text(encoding="utf-8").splitlines()
    cut = tmp_path / "cut.jsonl"
    cut.write_text("\n".join([*lines[:2], lines[2][:40]]), encoding="utf-8")
    text = page(from_log(cut))
    assert "no end" in text
    assert not looks_for_news(text)
    Page(text)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "no log"),
        ("hello\n", "not JSON"),
        ('{"grassia-log": 1}\n', "replay"),
        ('{"grassia-run": 1}\n', "damaged"),
        ('{"grassia-run": 99}\n', "no log"),
        ('[1]\n{"grassia-run": 1}\n', "no log"),
    ],
)
def test_what_is_no_log_is_one_line_and_code_2(content, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("x.jsonl").write_text(content)
    assert main(["report", "x.jsonl"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
    assert not Path("report.html").exists()


@pytest.mark.parametrize("form", ["npy", "npz", "csv", "parquet"])
def test_the_command_makes_a_page_of_a_model_and_of_its_log(form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    X = rng.standard_normal((150, 5)) * [5.0, 3.0, 1.0, 0.7, 0.5]
    frame = pd.DataFrame(X, columns=list("abcde"))
    frame["kind"] = ["long" if row[0] > 0 else "short" for row in X]
    frame.to_csv("t.csv", index=False)
    arguments = ["pca", "t.csv", "-k", "2", "--label", "kind", "--format", form, "-o", "m", "-q"]
    assert main([*arguments, "--log", "run.jsonl", "--report", "run.html"]) == 0
    assert main(["report", "m", "-o", "model.html"]) == 0
    assert main(["report", "m", "run.jsonl", "-o", "both.html"]) == 0
    values = json.loads(Path("m/model.json").read_text())["eigenvalues"]
    for name in ("run.html", "model.html", "both.html"):
        found = parsed(Path(name))
        np.testing.assert_allclose([float(r[1]) for r in found.rows("chart-spectrum")[:2]], values, rtol=1e-9)
        groups = {row[0]: int(row[1]) for row in found.rows("chart-rows")}
        assert groups == frame["kind"].value_counts().to_dict()
        assert "CONVERGED" in next(found.root.all("header")).text
    assert main(["report", "m", "m"]) == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--report", "x.npy"], "one of the inputs"),
        (["--report", "r.txt"], ".html"),
        (["--report", "mine.html"], "mine.html"),
        (["--report", "nowhere/r.html"], "nowhere"),
        (["--log", "mine.html"], "mine.html"),
        (["--log", "nowhere/run.jsonl"], "nowhere"),
        (["--log", "."], "folder"),
    ],
)
def test_nothing_of_the_user_is_written_over(arguments, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).standard_normal((50, 4)))
    Path("mine.html").write_text("<p>my own page</p>")
    before = Path("x.npy").read_bytes()
    assert main(["pca", "x.npy", "-k", "2", "-o", "m", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
    assert Path("mine.html").read_text() == "<p>my own page</p>"
    assert Path("x.npy").read_bytes() == before
    assert not Path("m").exists()


def test_a_run_that_cannot_begin_leaves_no_report_and_no_log_and_an_older_log_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).standard_normal((50, 4)))
    Path("old.jsonl").write_text('{"grassia-run": 1}\n')
    Path("mine").mkdir()
    Path("mine", "thesis.txt").touch()
    for log in ("new.jsonl", "old.jsonl"):
        assert main(["pca", "x.npy", "-k", "9", "--report", "r.html", "--log", log]) == 2
        assert main(["pca", "x.npy", "-k", "2", "-o", "mine", "--report", "r.html", "--log", log]) == 2
        assert main(["pca", "x.npy", "-k", "2", "--report", "nowhere/r.html", "--log", log]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "old.jsonl", "x.npy"]
    assert Path("old.jsonl").read_text() == '{"grassia-run": 1}\n'


def test_a_report_replaces_an_older_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).standard_normal((50, 4)) * [4.0, 3.0, 1.0, 1.0])
    for name in ("m", "n"):
        assert (
            main(["pca", "x.npy", "-k", "2", "-o", name, "--report", "r.html", "--log", "l.jsonl", "-q"]) == 0
        )
    assert "CONVERGED" in Path("r.html").read_text(encoding="utf-8")


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


def test_what_is_remembered_is_bounded_however_long_a_run_is():
    watch = Watch(most=8)
    X = np.random.default_rng(0).standard_normal((200, 6)) * np.arange(6, 0, -1)
    with pytest.warns(ConvergenceWarning):
        grassia.eigenspace(
            grassia.from_rows(X, n_components=2), 2, solver="oja", callbacks=watch, rng=0, max_passes=500
        )
    assert 2 <= len(watch.samples) <= 9
    times = [one.time for one in watch.samples]
    assert times == sorted(times)

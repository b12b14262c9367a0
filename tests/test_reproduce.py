"""The paper's experiments: what is measured is what it says, and work done once is not done again."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import itertools
import os
import re
import signal
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from scipy.sparse.linalg import LinearOperator

import grassia
from grassia.backends.service import speeds
from grassia.experiments import problems, protocol, report, table1
from grassia.experiments.curves import Curve, Method, Range, Store, Task, compute, start
from grassia.experiments.figures import Line, Panel, compose
from grassia.experiments.protocol import GRASSIA, Group
from grassia.experiments.report import Results
from grassia.experiments.reproduce import Reproduction
from grassia.geometry import geodesic_distance

pytest.importorskip("matplotlib")  # the figures need the extra `plot`

PASSES = Range("samples", 6.0, 7)
TICKS = Range("time", 30.0, 31)
problem = cache(problems.get)


def method(solver, evaluate="return", **parameters):
    return Method(solver, solver, tuple(parameters.items()), evaluate)


# -- problems -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["made rows", "made images"])
def test_the_oracle_is_that_of_dense_eigh_and_gaps_are_differences_of_traces(name):
    one = problem(name)
    rows = np.asarray(one.rows)
    A = rows.T @ rows / len(rows)
    values, vectors = np.linalg.eigh(A)
    assert geodesic_distance(one.oracle, vectors[:, ::-1][:, : one.k]) <= 1e-12
    np.testing.assert_allclose(one.values, values[::-1][: one.k + 1], rtol=1e-10)
    rng = np.random.default_rng(0)
    points = [
        np.linalg.qr(one.oracle + size * rng.standard_normal(one.oracle.shape))[0] for size in (1, 0.1, 1e-3)
    ]
    best = values[::-1][: one.k].sum()
    expected = [best - np.trace(W.T @ A @ W) for W in points]
    np.testing.assert_allclose(one.gaps(points), expected, atol=1e-13 * best * len(A))


def test_gaps_keep_their_digits_far_below_rounding_of_the_traces():
    """Turned by an angle t in one plane the gap is (lambda_k - lambda_{k+1}) sin(t)^2, exactly."""
    one = problem("made images")
    vectors = np.linalg.eigh(one.matrix)[1][:, ::-1]
    for angle in (1e-3, 1e-6, 1e-9):
        W = vectors[:, : one.k].copy()
        W[:, -1] = np.cos(angle) * W[:, -1] + np.sin(angle) * vectors[:, one.k]
        expected = (one.values[one.k - 1] - one.values[one.k]) * np.sin(angle) ** 2
        assert one.gaps([W])[0] == pytest.approx(expected, rel=1e-4)


def test_batches_are_in_order_and_the_last_one_is_short():
    one = problem("made rows")
    assert one.parts == (50,) * 8 + (5,)
    opened = [loader.open() for loader in one.components]
    at = 0
    for size, part in zip(one.parts, opened, strict=True):
        block = one.rows[at : at + size]
        np.testing.assert_allclose(part.apply(np.eye(40)), block.T @ block / size, atol=1e-12)
        at += size


# -- curves -------------------------------------------------------------------------------------


def test_a_serial_curve_is_that_of_a_literal_gradient_descent():
    one = problem("made rows")
    curve = compute(Task("made rows", method("rgd", step=0.1), 3, PASSES), one)
    A = one.rows.T @ one.rows / len(one.rows)
    W, expected = start(one, 3), []
    for _ in range(7):
        expected.append(geodesic_distance(W, one.oracle))
        U, _, Vt = np.linalg.svd(W + 0.2 * (A @ W - W @ (W.T @ A @ W)), full_matrices=False)
        W = U @ Vt
    np.testing.assert_array_equal(curve.x, 405.0 * np.arange(7))
    np.testing.assert_array_equal(curve.calls, 9 * np.arange(7))
    np.testing.assert_allclose(curve.distance, expected, atol=1e-10)


def test_on_the_cluster_a_round_takes_as_long_as_the_slowest_worker():
    one = problem("made images")
    curve = compute(Task("made images", method("rgd", step=1e-7), 1, TICKS), one)
    slowest = max(speeds(20, 1, 5, np.random.default_rng(1)).seconds)
    moved = curve.x[1:][np.diff(curve.distance) != 0.0]
    assert slowest > 1
    # The first product is free: that step was made when the clock began to run.
    np.testing.assert_array_equal(moved, [1, *(slowest * np.arange(1, 1 + 30 // slowest))])


def test_every_method_of_a_seed_begins_at_the_same_point():
    one = problem("made rows")
    begun = {
        compute(Task("made rows", m, 0, PASSES), one).distance[0]
        for m in protocol.serial_methods("made rows")
    }
    assert len(begun) == 1
    assert begun == {geodesic_distance(start(one, 0), one.oracle)}
    assert geodesic_distance(start(one, 0), start(one, 1)) > 0.1


def test_a_run_that_is_done_early_ends_at_rounding():
    one = problem("made rows")
    curve = compute(Task("made rows", method("krylov"), 0, Range("samples", 60.0, 61)), one)
    assert curve.distance[-1] <= 1e-12
    assert curve.x[-1] < 60 * 405
    assert curve.at(1e9) == curve.distance[-1]


def test_a_curve_is_read_by_its_last_measured_point():
    curve = Curve(
        np.array([0.0, 10.0, 20.0]), np.array([2.0, 0.5, 0.1]), np.array([4.0, 1.0, 0.1]), np.zeros(3), ""
    )
    np.testing.assert_array_equal(curve.at(np.array([0.0, 9.0, 10.0, 19.9, 99.0])), [2.0, 2.0, 0.5, 0.5, 0.1])
    assert curve.gap_at(15.0) == 1.0
    assert (curve.reaches(0.5), curve.reaches(0.2), curve.reaches(0.01)) == (10.0, 20.0, np.inf)


# -- what is kept -------------------------------------------------------------------------------


def test_a_finished_curve_is_not_computed_again_unless_something_changed(tmp_path):
    task = Task("made rows", method("rgd", step=0.1), 0, PASSES)
    first = Store(tmp_path, problem)
    assert first.missing([task, task]) == [task]
    curve = first.add(task)
    again = Store(tmp_path, problem)
    assert again.missing([task]) == []
    kept = again.get(task)
    for name in ("x", "distance", "gap", "calls"):
        np.testing.assert_array_equal(getattr(kept, name), getattr(curve, name))
    renamed = dataclasses.replace(task, method=dataclasses.replace(task.method, label="another name"))
    changed = [
        dataclasses.replace(task, seed=1),
        dataclasses.replace(task, method=task.method.with_step(0.2)),
        dataclasses.replace(task, range=Range("samples", 7.0, 8)),
    ]
    assert again.missing([renamed]) == []
    assert again.missing(changed) == changed
    other_rows = dataclasses.replace(problem("made rows"), rows=2.0 * problem("made rows").rows)
    assert Store(tmp_path, lambda name: other_rows).missing([task]) == [task]


def test_a_damaged_file_is_computed_again(tmp_path):
    task = Task("made rows", method("rgd", step=0.1), 0, PASSES)
    Store(tmp_path, problem).add(task)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    assert Store(tmp_path, problem).missing([task]) == [task]


def test_measurements_of_the_table_are_kept_by_what_they_depend_on(tmp_path):
    row = table1.ROWS[0]
    point = table1.Point(row, 0.3, 1.0, 1e-4)
    store = table1.Store(tmp_path / "table.json", (0,))
    store.add(point)
    again = table1.Store(tmp_path / "table.json", (0,))
    assert again.missing([point]) == []
    assert again.get(point) == store.get(point)
    assert again.missing([dataclasses.replace(point, delta=0.2)])
    assert table1.Store(tmp_path / "table.json", (0, 1)).missing([point]) == [point]
    (tmp_path / "table.json").write_text("{broken")
    assert table1.Store(tmp_path / "table.json", (0,)).missing([point]) == [point]


# -- table 1 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("delta", [0.3, 0.04])
def test_the_family_has_the_gap_spread_and_start_it_says(k, delta):
    one = table1.instance(delta, k, 0)
    values, vectors = np.linalg.eigh(sum(one.parts) / len(one.parts))
    values = values[::-1]
    assert values[k - 1] - values[k] == pytest.approx(delta, abs=1e-12)
    assert values[0] - values[-1] == pytest.approx(1.0, abs=1e-12)
    assert geodesic_distance(one.oracle, vectors[:, ::-1][:, :k]) <= 1e-10
    assert geodesic_distance(one.start, one.oracle) == pytest.approx(0.5, abs=1e-10)
    assert max(np.linalg.norm(part - part.T) for part in one.parts) <= 1e-12


def test_products_of_local_steps_are_counted_as_they_are_made():
    one = table1.instance(0.2, 2, 0)
    counts = np.zeros(len(one.parts), dtype=int)

    def counting(i):
        def matmat(V):
            counts[i] += 1
            return one.parts[i] @ V

        return LinearOperator(
            (table1.D,) * 2, matvec=lambda v: matmat(v[:, None])[:, 0], matmat=matmat, dtype=float
        )

    row = next(row for row in table1.ROWS if row.solver == "fedpower")
    seen = []

    def watch(progress):
        if progress.version and (not seen or progress.version > len(seen)):
            seen.append((sum(progress.answers) - table1.N, int(counts.sum())))
        return len(seen) >= 14

    solver = dataclasses.replace(grassia.solvers.get("fedpower"), shift=0.0)
    grassia.eigenspace(
        [counting(i) for i in range(table1.N)],
        2,
        solver=solver,
        tol=1e-15,
        v0=one.start,
        rng=0,
        callbacks=watch,
    )
    expected = np.array([table1.products(row, answers) for answers, _ in seen])
    made = np.array([count for _, count in seen])
    np.testing.assert_array_equal(np.diff(made), np.diff(expected))
    assert set(np.diff(expected)) == {8, 16, 32}


def test_orthogonal_iteration_needs_what_its_ratio_says():
    """Rounds from one accuracy to another: log of their ratio over 2 log(lambda_k / lambda_{k+1})."""
    row = table1.ROWS[0]
    calls = [table1.measure(table1.Point(row, 0.12, 1.0, level), (0, 1)).calls for level in (1e-4, 1e-10)]
    rounds = np.log(1e6) / (2 * np.log(0.9 / 0.78))
    assert (calls[1] - calls[0]) / table1.N == pytest.approx(rounds, abs=1.5)


def test_slow_workers_make_grassia_stale_and_dear_and_leave_rounds_alone():
    by_name = {row.solver: row for row in table1.ROWS}
    fast, slow = (table1.measure(table1.Point(by_name["grassia"], 0.3, s, 1e-6), (0,)) for s in (1.0, 8.0))
    assert slow.tau > 3 * fast.tau > 0
    assert slow.calls > fast.calls
    rounds = [
        table1.measure(table1.Point(by_name["orthogonal"], 0.3, s, 1e-6), (0,)).calls for s in (1.0, 8.0)
    ]
    assert rounds[0] == rounds[1]


def test_a_step_that_never_arrives_counts_as_infinite(monkeypatch):
    hopeless = dataclasses.replace(table1.ROWS[1], steps=(50.0,))
    monkeypatch.setattr(table1, "MOST_CALLS", 400)
    assert table1.measure(table1.Point(hopeless, 0.1, 1.0, 1e-8), (0,)).calls == np.inf


def test_fits_find_the_laws_they_are_given():
    x = np.array([2.0, 4.0, 8.0, 16.0])
    assert table1.power_law(x, 3.0 * x**-1.7).exponent == pytest.approx(-1.7)
    assert table1.per_factor_e(1.0 / x, 5.0 + 2.5 * np.log(x)).exponent == pytest.approx(2.5)
    assert table1.power_law(x[:2], x[:2]) is None
    assert table1.power_law(x, np.array([1.0, np.inf, np.inf, 2.0])) is None


# -- words and pictures -------------------------------------------------------------------------


def made_results(distances, axis="samples"):
    """Results whose curves are given: label -> distance at 0, 1, 2."""
    labels = tuple(Method(label, "grassia", (("step", 1.0),)) for label in distances)
    group = Group("some data", labels, Range(axis, 2.0, 3))
    x = np.arange(3.0) * (100 if axis == "samples" else 1)
    curves = {
        label: [Curve(x, np.array(values), np.array(values) ** 2, np.zeros(3), "")]
        for label, values in distances.items()
    }
    return Results(group, curves, 100)


def test_a_claim_is_confirmed_only_by_the_numbers():
    others = {"VR-PCA": [1, 0.5, 0.4], "RGD": [1, 0.6, 0.5], "IARG with deflation": [1, 1, 1]}
    won = made_results({GRASSIA: [1, 0.2, 0.1], "Block Oja": [1, 0.8, 0.8], **others})
    assert [claim.verdict for claim in report.serial_claims([won])] == ["Confirmed"] * 3
    lost = made_results({GRASSIA: [1, 0.9, 0.3], "Block Oja": [1, 0.8, 0.31], **others})
    claims = report.serial_claims([lost])
    assert [claim.verdict for claim in claims] == ["Not confirmed"] * 3
    assert "VR-PCA at 1 of them, between 1 and 1 passes" in claims[0].found
    assert str(claims[0]).startswith("- **Not confirmed.**")


def test_the_claims_of_the_cluster_name_who_is_ahead():
    found = {
        GRASSIA: [1, 0.5, 1e-5],
        "Oja": [1, 0.4, 0.3],
        "Delayed-Oja": [1, 0.6, 0.5],
        "Distributed RGD": [1, 0.9, 0.7],
        "IARG with deflation": [1, 1, 1],
    }
    first, second, third = report.cluster_claims(made_results(found, "time"))
    assert first.verdict == "Not confirmed"
    assert "Oja at 1 of them, between 1 and 1 ticks" in first.found
    assert "GRASSIA 2 / 2" in first.found
    assert second.verdict == "Confirmed"
    assert third.verdict == "Confirmed"
    assert report.Claim("", 0.98, "").verdict == "Confirmed at 98 %"
    said = report.seeds_above(made_results(found, "time"))
    assert "GRASSIA: 0 of 1; Oja: 1 of 1" in said
    assert "Oja" in report.not_the_best(made_results({**found, "Oja": [1, 0.1, 1e-9]}, "time"))


@pytest.mark.parametrize("panels", [1, 2])
@pytest.mark.parametrize("label", ["method", "a method of a rather long name, with its step"])
def test_a_legend_hides_nothing_and_no_two_lines_look_alike_in_grey(panels, label):
    x = np.linspace(0.0, 1.0, 50)
    lines = [Line(f"{label} {i}", x, np.exp(-i * x)[None, :], i) for i in range(12)]
    figure = compose([Panel("", "x", "y", lines)] * panels)
    importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    for axes in figure.axes:
        assert not box.overlaps(axes.get_tightbbox())
        looks = [(line.get_marker(), str(line._dash_pattern)) for line in axes.get_lines()]
        assert all(a != b for a, b in itertools.combinations(looks, 2))
    assert len(legend.get_texts()) == 12
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0


# -- the command --------------------------------------------------------------------------------


def command(*arguments, **environment):
    return [sys.executable, "-m", "grassia", "reproduce", *arguments], {**os.environ, **environment}


def run(*arguments, cwd, **environment):
    line, variables = command(*arguments, **environment)
    return subprocess.run(
        line, cwd=cwd, env=variables, capture_output=True, text=True, timeout=120, check=False
    )


def whole(folder, what, names):
    """The summary of a part, after a look at every file it should come with."""
    text = (folder / f"{what}.md").read_text(encoding="utf-8")
    assert set(re.findall(r"!\[[^\]]*\]\((.*?)\.png\)", text)) == set(names)
    for name in names:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        with (folder / f"{name}.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert {row["seed"] for row in rows} == {"0", "1"}
        assert all(f"| {row['method']} |" in text for row in rows)
    return text


class Counted:
    """A display that shows nothing and counts the pieces of work."""

    def __init__(self):
        self.pieces = 0

    def __call__(self, what, work, do, name):
        for piece in work:
            assert name(piece)
            do(piece, lambda part: None)
            self.pieces += 1


def test_the_first_figure_is_written_whole_and_a_second_run_computes_nothing(tmp_path):
    first, second = Counted(), Counted()
    job = Reproduction(tmp_path, first, "made", quick=True, extended=True, grid=True)
    assert job.run(["fig1"]) == tmp_path / "fig1.md"
    assert first.pieces > 50
    text = whole(tmp_path, "fig1", ["fig1", "fig1-variants", "fig1-extended", "fig1-grid"])
    # The step reported as the best is the one with the smallest number in its row.
    searched = re.findall(r"^\| made rows \|(.*)\|$", text, re.MULTILINE)
    assert len(searched) == 5
    for row in searched:
        _, _, best, *ends = (cell.strip() for cell in row.split("|"))
        steps = dict(zip([f"{step:.2g}" for step in protocol.SERIAL_GRID], map(float, ends), strict=True))
        assert steps[best] == min(steps.values())
    dataclasses.replace(job, display=second, extended=False, grid=False).run(["fig1"])
    assert second.pieces == 0
    again = whole(tmp_path, "fig1", ["fig1", "fig1-variants"])
    assert text.startswith(again.rstrip())


def test_the_command_writes_the_second_figure_whole(tmp_path):
    done = run("fig2", "--data", "made", "--quick", "--output", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("written: out/fig2.md")
    assert "> 60" in whole(tmp_path / "out", "fig2", ["fig2", "delays"])


def test_an_interrupt_has_code_130_and_leaves_whole_curves(tmp_path):
    line, variables = command("fig2", "--data", "made", "--output", "out", PYTHONUNBUFFERED="1")
    with subprocess.Popen(
        line, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline().startswith("figure 2 1/15")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "grassia: interrupted; what is finished is in out; go on with the same command\n"
    kept = list((tmp_path / "out" / "curves").iterdir())
    assert kept
    for path in kept:
        with np.load(path) as file:
            assert file["distance"].size == file["x"].size


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["fig3"], "fig3"),
        (["fig1", "--data", "none"], "none"),
        (["fig1", "--data", "made", "--output", "taken"], "taken"),
        ([], "what"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(arguments, named, tmp_path):
    (tmp_path / "taken").write_text("a file")
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert named in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_without_the_data_one_line_names_the_remedies(tmp_path):
    block = tmp_path / "block"
    block.mkdir()
    (block / "sitecustomize.py").write_text("import sys\nsys.modules['pooch'] = None\n")
    done = run("fig1", cwd=tmp_path, GRASSIA_DATA="", PYTHONPATH=str(block))
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    for remedy in ("grassia[data]", "GRASSIA_DATA"):
        assert remedy in done.stderr

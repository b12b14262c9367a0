"""Gradient baselines against literal transcriptions of their recursions."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gradient_baselines import each_backend, gradient, random_start, seven_components
from grassia.backends import Serial
from grassia.geometry import orthonormality_error
from grassia.solvers import DelayedOja, Grassia, Iarg, Oja, Rgd
from problems import heterogeneous, iterates

UPDATES = 100


@pytest.fixture(scope="module")
def problem():
    return seven_components()


@pytest.fixture(scope="module")
def W0():
    return random_start()


def polar(X):
    U, _, Vt = np.linalg.svd(X, full_matrices=False)
    return U @ Vt


def answers(log, n):
    """The batches of answers after the opening: (component, version it was asked at)."""
    batches = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    replies = [[(m[2], m[3]) for m in batch["m"] if m[0] == "reply"] for batch in batches if "m" in batch]
    opened = 0
    while opened < n:
        opened += len(replies.pop(0))
    assert opened == n
    return replies


@each_backend
def test_rgd_is_its_transcription(problem, W0, backend):
    found = iterates(problem, Rgd(step=0.05), backend(), W0, UPDATES)
    W = W0
    for t in range(1, UPDATES + 1):
        W = polar(W - 0.05 * gradient(problem.A, W))
        assert np.abs(found[t] - W).max() <= 1e-10


def oja_step(W, V, A, step):
    return polar(W + step * A @ V)


def delayed_oja_step(W, V, A, step):
    return polar(W - step * gradient(A, V))


@pytest.mark.parametrize(("order", "decay"), [("cyclic", 0.0), ("shuffled", 0.01)])
@pytest.mark.parametrize(
    ("kind", "move"), [(Oja, oja_step), (DelayedOja, delayed_oja_step)], ids=["oja", "delayed-oja"]
)
@each_backend
def test_the_stochastic_methods_are_their_transcriptions(
    problem, W0, backend, kind, move, decay, order, tmp_path
):
    log = tmp_path / "run.jsonl"
    found = iterates(problem, kind(step=0.05, decay=decay, order=order), backend(), W0, UPDATES, record=log)
    expected = [W0]
    visits = []
    for batch in answers(log, 7):
        for i, version in batch:
            step = 0.05 / (1.0 + decay * (len(expected) - 1)) * 7 * problem.weights[i]
            expected.append(move(expected[-1], expected[version], problem.components[i], step))
            visits.append(i)
    assert max(found) >= UPDATES
    assert max(np.abs(W - expected[t]).max() for t, W in found.items()) <= 1e-10
    if backend is Serial:
        assert sorted(found) == list(range(max(found) + 1))
        assert (visits[:98] == list(range(7)) * 14) == (order == "cyclic")
        assert all(sorted(visits[j : j + 7]) == list(range(7)) for j in range(0, 98, 7))


def iarg_with_deflation(problem, W0, step, tol, batches):
    """{version: (frozen vectors and the one sought)}, and how often the frozen ones were begun anew."""
    n, (d, k) = len(problem.components), W0.shape
    w = problem.weights
    U, start, t, tolerance, cycles = np.zeros((d, 0)), W0, 0, tol, 0
    v, values = W0[:, :1], []
    past = {0: v}
    table, captured, small, began = {}, {}, set(), 0
    path = {0: v}
    for batch in batches:
        waiting = len(table) < n
        fresh = [(i, s) for i, s in batch if s >= began and not (waiting and i in table)]
        deflation = np.eye(d) - U @ U.T
        for i, s in fresh:
            B = deflation @ problem.components[i] @ deflation
            table[i], captured[i] = gradient(B, past[s]), (past[s].T @ B @ past[s]).item()
        if not fresh or len(table) < n:
            continue
        G = sum(w[i] * table[i] for i in range(n))
        v = v - step * G
        v = v / np.linalg.norm(v)
        t += 1
        past[t], path[t] = v, np.hstack([U, v])
        now = sum(w[i] * captured[i] for i in range(n))
        goal = tolerance * max(abs(value) for value in [*values, now])
        small = small | {i for i, _ in fresh} if np.linalg.norm(G) / 2.0 <= goal else set()
        if len(small) < n or k == 1:
            continue
        u = start[:, :1]
        sign = 1.0 if (u.T @ v).item() >= 0.0 else -1.0
        mirror = (u + sign * v) / np.linalg.norm(u + sign * v)
        start = (start - 2.0 * mirror @ (mirror.T @ start))[:, 1:]
        U, values = np.hstack([U, v]), [*values, now]
        if U.shape[1] == k:
            U, start, values, tolerance, cycles = U[:, :0], U, [], 0.1 * tolerance, cycles + 1
        t += 1
        v, began = start[:, :1], t
        table, captured, small = {}, {}, set()
        past[t], path[t] = v, np.hstack([U, v])
    return path, cycles


@pytest.mark.parametrize(("table", "resum_passes"), [("worker", 2), ("worker", 50), ("server", 50)])
@each_backend
def test_iarg_with_deflation_is_its_transcription(problem, W0, backend, table, resum_passes, tmp_path):
    log = tmp_path / "run.jsonl"
    solver = Iarg(step=0.05, deflation_tol=3e-2, table=table, resum_passes=resum_passes)
    found = iterates(problem, solver, backend(), W0, 150, record=log)
    expected, _ = iarg_with_deflation(problem, W0, 0.05, 3e-2, answers(log, 7))
    widths = set()
    for t, W in found.items():
        width = expected[t].shape[1]
        widths.add(width)
        assert np.abs(W[:, :width] - expected[t]).max() <= 1e-10
        assert orthonormality_error(W) <= 1e-13
    assert max(found) >= 150
    assert {1, 2} <= widths


def test_iarg_that_starts_over_is_its_transcription(W0, tmp_path):
    problem = heterogeneous(n=3, d=20, k=3, seed=4, gap=0.9)
    log = tmp_path / "run.jsonl"
    found = iterates(problem, Iarg(step=0.2, deflation_tol=0.1), Serial(), W0, 250, record=log)
    expected, cycles = iarg_with_deflation(problem, W0, 0.2, 0.1, answers(log, 3))
    assert cycles >= 2
    for t, W in found.items():
        assert np.abs(W[:, : expected[t].shape[1]] - expected[t]).max() <= 1e-10


@each_backend
def test_iarg_alone_is_one_vector_of_grassia(problem, W0, backend, tmp_path):
    """The paper says so: the same update on the sphere."""
    log = tmp_path / "run.jsonl"
    found = iterates(problem, Iarg(step=0.1), backend(), W0[:, :1], UPDATES, record=log)
    expected, _ = iarg_with_deflation(problem, W0[:, :1], 0.1, 1e-6, answers(log, 7))
    assert max(np.abs(w - expected[t]).max() for t, w in found.items()) <= 1e-10
    if backend is Serial:
        other = iterates(problem, Grassia(step=0.1), Serial(), W0[:, :1], UPDATES)
        assert all(np.array_equal(found[t], other[t]) for t in range(UPDATES))

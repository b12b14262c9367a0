"""What was measured for Table 1, as a table, a figure and a file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from grassia.experiments import table1
from grassia.experiments.figures import Line, Panel
from grassia.experiments.report import table
from grassia.messages import Array


def axis_values(axis: str, points: Sequence[table1.Point], store: table1.Store) -> tuple[Array, Array]:
    """(1/delta, tau or 1/epsilon; products) of measured points."""
    measured = [store.get(point) for point in points]
    x = {
        "delta": [1.0 / point.delta for point in points],
        # What waits for everybody has no staleness: the slowness of the workers stands for it.
        "tau": [
            point.slowness if point.row.waits else one.tau
            for point, one in zip(points, measured, strict=True)
        ],
        "epsilon": [1.0 / point.level for point in points],
    }[axis]
    return np.array(x), np.array([one.calls for one in measured])


def scaling_table(store: table1.Store, quick: bool) -> str:
    """Fitted exponents beside the paper's."""
    rows = []
    for row in table1.ROWS:
        points = table1.points(row, quick)
        cells = [row.label, f"O({row.bound})"]
        delta = table1.power_law(*axis_values("delta", points["delta"], store))
        cells.append(f"{_exponent(delta)} ({row.delta:g})")
        if "tau" in points:
            x, calls = axis_values("tau", points["tau"], store)
            tau, late = table1.power_law(x, calls), table1.power_law(x[-3:], calls[-3:])
            bound = "none" if row.tau is None else f"{row.tau:g}"
            cells.append(f"{_exponent(tau)}, largest three {_exponent(late)} ({bound})")
        else:
            cells.append("sequential")
        x, calls = axis_values("epsilon", points["epsilon"], store)
        law, slope = table1.power_law(x, calls), table1.per_factor_e(1.0 / x, calls)
        if row.epsilon > 0:
            cells.append(f"power of 1/ε: {_exponent(law)} ({row.epsilon:g})")
        else:
            cells.append(
                "-" if slope is None else f"{slope.exponent:.3g} log(1/ε), R² {slope.r2:.3f} (linear)"
            )
        rows.append(cells)
    head = ["method", "paper's bound", "power of 1/δ (paper)", "power of τ (paper)", "in ε (paper)"]
    return table(head, rows)


def _exponent(fit: table1.Fit | None) -> str:
    return "-" if fit is None else f"{fit.exponent:.2f}"


def scaling_panels(store: table1.Store, quick: bool) -> list[Panel]:
    """Products against 1/delta, tau and 1/epsilon."""
    titles = {
        "delta": r"$1/\delta$",
        "tau": r"staleness $\tau$ (slowness, where all wait)",
        "epsilon": r"$1/\varepsilon$",
    }
    made = []
    for axis, title in titles.items():
        lines = []
        for number, row in enumerate(table1.ROWS):
            points = table1.points(row, quick)
            if axis in points:
                x, calls = axis_values(axis, points[axis], store)
                keep = np.isfinite(calls)
                # GRASSIA, the last row, looks as it does in the other figures.
                style = (number + 1) % len(table1.ROWS)
                lines.append(Line(row.label, x[keep], calls[keep][None, :], style))
        made.append(Panel("", title, "component products", lines, log_x=True))
    return made


def write_scaling_csv(path: Path, store: table1.Store, quick: bool) -> None:
    """Every measured point of Table 1."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "varied", "delta", "slowness", "epsilon", "tau", "products", "step"])
        for row in table1.ROWS:
            for axis, points in table1.points(row, quick).items():
                for point in points:
                    one = store.get(point)
                    writer.writerow(
                        [
                            row.label,
                            axis,
                            point.delta,
                            point.slowness,
                            point.level,
                            one.tau,
                            f"{one.calls:.6g}",
                            "" if one.step is None else f"{one.step:.3g}",
                        ]
                    )

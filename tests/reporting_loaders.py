"""Loaders that write down what a worker has imported; in a module of its own, so that they travel by name."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

from grassia.component import Component, Moments

WATCHED = ("scipy", "sklearn")


@dataclass(frozen=True)
class ReportingLoader:
    """Opens what `whole` opens, and has it report to files in `folder`."""

    whole: Any
    folder: str

    @property
    def n_features(self) -> int | None:
        return self.whole.n_features

    def open(self) -> Component:
        opened = ReportingComponent(self.whole.open(), self.folder)
        opened.report("opened")
        return opened


class ReportingComponent(Component):
    """The component as it is."""

    def __init__(self, whole: Component, folder: str) -> None:
        super().__init__(whole.n_features)
        self._whole, self._folder = whole, folder

    def report(self, what: str) -> None:
        found = [name for name in WATCHED if name in sys.modules]
        with open(os.path.join(self._folder, str(os.getpid())), "a", encoding="ascii") as file:
            file.write(f"{' '.join([what, *found])}\n")

    def _measure(self) -> Moments:
        moments = self._whole.moments()
        self.report("measured")
        return moments

    def _product(self, V: Any) -> Any:
        product = self._whole.apply(V)
        self.report("multiplied")
        return product

    def _product_single(self, V: Any) -> Any:
        product = self._whole.apply(V, single=True)
        self.report("multiplied in single precision")
        return product

    def recenter(self, mean: Any) -> None:
        self._whole.recenter(mean)


def reports(folder: Any) -> dict[int, set[str]]:
    """What each process has written, by its id."""
    return {int(path.name): set(path.read_text("ascii").splitlines()) for path in folder.iterdir()}

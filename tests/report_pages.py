"""HTML reports as tests see them: parsed, and made of a run to which something happened."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np

import grassia
from grassia import backends
from grassia.report import Watch

VOID = {"meta", "link", "br", "img", "input", "hr"}


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


def parsed(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


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

"""Check the built site: links resolve, nothing is fetched from elsewhere, every public name has an entry.

Run it with `make docs`, or `python docs/check_site.py FOLDER`.
"""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

SUBPACKAGES = ("backends", "data", "datasets", "geometry", "report", "solvers", "theory")
PACKAGES = ("grassia", *(f"grassia.{name}" for name in SUBPACKAGES))
# Elements whose address a browser fetches by itself, to show the page.
FETCHED = {"img", "script", "iframe", "source", "video", "audio", "embed", "object", "link"}


class Page(HTMLParser):
    """The anchors of a page, where it links to, and the pictures that nothing describes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, str]] = []
        self.undescribed: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        self.links += [(tag, given[name]) for name in ("href", "src", "data") if given.get(name)]
        if tag == "img" and given.get("alt", "").strip() in ("", given.get("src")):
            self.undescribed.append(given.get("src", ""))


def problems(site: Path) -> Iterator[str]:
    """What is wrong with the pages of a site, a line each."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        yield from (f"{name}: a picture without alternative text: {source}" for source in page.undescribed)
        for tag, address in page.links:
            parts = urlsplit(address)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                if tag in FETCHED:
                    yield f"{name}: fetched from elsewhere: {address}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                yield f"{name}: no such file: {address}"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{name}: no such anchor: {address}"


def public_names() -> Iterator[str]:
    """Every name that the package exports."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            if not name.startswith("__") and f"{package}.{name}" not in PACKAGES:
                yield f"{package}.{name}"


def undocumented(site: Path) -> list[str]:
    """Public names that the API reference does not have."""
    *_, packed = (site / "objects.inv").read_bytes().split(b"\n", 4)
    entries = (line.split(" ", 2) for line in zlib.decompress(packed).decode().splitlines())
    known = {name for name, kind, _ in entries if kind.startswith("py:")}
    short = {name.removeprefix("grassia.") for name in known}
    return [
        name
        for name in public_names()
        if name not in known
        and name.removeprefix("grassia.data.") not in short  # the same object as grassia.X
    ]


def main(arguments: list[str]) -> int:
    """Check everything; the exit code says whether it holds."""
    site = Path(arguments[0] if arguments else "site")
    found = [*problems(site), *(f"not in the API reference: {name}" for name in undocumented(site))]
    for problem in found:
        print(problem, file=sys.stderr)
    print(f"{len(list(site.rglob('*.html')))} pages in {site}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

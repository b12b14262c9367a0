"""The parts that pages are made of: figures with a title and a table, tables, lists of facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

__all__ = ["NARROW", "WIDE", "Drawing", "facts", "figure", "table", "thinned"]

WIDE, SQUARE, NARROW = 860.0, 560.0, 340.0

#: Given a width, what is inside of the picture, and its height.
Drawing = Callable[[float], tuple[str, float]]


def figure(
    ident: str,
    title: str,
    text: str,
    draw: Drawing,
    numbers: str,
    *,
    said: str,
    legend: str = "",
    square: bool = False,
) -> str:
    """A chart for wide and for narrow screens, with a title, what it shows in words, and its numbers.

    Parameters
    ----------
    ident : str
        Unique in the page.
    text : str
        How to read it.
    said : str
        What a person who does not see it should know.
    square : bool
        About as high as it is wide.
    """
    wide = ("wide square", SQUARE) if square else ("wide", WIDE)
    pictures = []
    for kind, width in (wide, ("narrow", NARROW)):
        inside, height = draw(width)
        name = f"{ident}-{kind.split()[0]}"
        pictures.append(
            f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" role="img" '
            f'aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{escape(title)}</title>'
            f'<desc id="{name}-desc">{escape(said)}</desc>{inside}</svg>'
        )
    return (
        f'<figure id="{ident}"><figcaption><h3>{escape(title)}</h3><p>{escape(text)}</p></figcaption>'
        f"{legend}{''.join(pictures)}"
        f"<details><summary>The numbers of this chart</summary>{numbers}</details></figure>"
    )


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    texts: Sequence[int] = (),
    long: int = -1,
) -> str:
    """A table; the first column heads the rows. `texts` are columns of text, `long` one that may wrap."""
    heads = "".join(
        f'<th scope="col"{_kind(i, texts, -1)}>{escape(name) or "&nbsp;"}</th>' for i, name in enumerate(head)
    )
    lines = []
    for row in rows:
        cells = "".join(f"<td{_kind(i, texts, long)}>{escape(cell)}</td>" for i, cell in enumerate(row) if i)
        lines.append(f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>')
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption, quote=True)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _kind(column: int, texts: Sequence[int], long: int) -> str:
    if column == long:
        return ' class="long"'
    return ' class="text"' if column in texts else ""


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names with values."""
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs)
    return f'<dl class="facts">{items}</dl>'


def thinned(count: int, most: int) -> list[int]:
    """At most about so many numbers below `count`, evenly spread; the last is one of them.

    >>> thinned(10, 4)
    [0, 3, 6, 9]
    """
    stride = max(1, -(-count // most))
    taken = list(range(0, count, stride))
    if taken and taken[-1] != count - 1:
        taken.append(count - 1)
    return taken

"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

__all__ = ["show_table"]


def show_table(console: Console, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table without lines; all but the first column are aligned to the right.

    Where nobody looks on, it is never cut to the width of a terminal.
    """
    table = Table(box=None, pad_edge=False, header_style="dim")
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    if not console.is_terminal:
        console = Console(file=console.file, width=200, highlight=False, color_system=None)
    console.print(table)

"""How to cite, as `CITATION.cff` of the project has it (which is not part of an installed package)."""

from __future__ import annotations

import grassia

__all__ = ["AUTHORS", "TITLE", "bibtex", "sentence"]

TITLE = "Incremental Aggregation on the Grassmannian for Asynchronous Eigenspace Computation"
AUTHORS = (("Xiaolu", "Wang"), ("Jiang", "Hu"), ("Hoi-To", "Wai"))


def sentence() -> str:
    """One line for a person."""
    names = [f"{given} {family}" for given, family in AUTHORS]
    return f"{', '.join(names[:-1])} and {names[-1]}: {TITLE}. Manuscript."


def bibtex() -> str:
    """For a bibliography: the paper, and the software.

    >>> bibtex().count("@")
    2
    """
    authors = " and ".join(f"{family}, {given}" for given, family in AUTHORS)
    return (
        f"@unpublished{{grassia-paper,\n  title  = {{{TITLE}}},\n  author = {{{authors}}},\n"
        "  note   = {Manuscript}\n}\n"
        f"@software{{grassia,\n  title   = {{grassia}},\n  author  = {{{{The grassia developers}}}},\n"
        f"  version = {{{grassia.__version__}}}\n}}"
    )

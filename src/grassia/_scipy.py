"""scipy, only where it is needed: its sparse arrays and operators are told from others without importing it.

A worker that multiplies dense rows has no use for scipy, whose import would take longer than all else of its
start, and half its memory. What is asked about an object is answered all the same: it can be one of
scipy's only where somebody has imported that part of scipy, if only to unpickle the object. Whoever makes
objects of scipy's imports it in the function that does.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

__all__ = ["is_linear_operator", "issparse", "loaded"]


def loaded(module: str) -> Any:
    """The module, where somebody in this process has imported it; None otherwise."""
    # One that another thread is about to import is there already, but not all of it: this waits for the rest.
    return import_module(module) if module in sys.modules else None


def issparse(value: Any) -> bool:
    """`scipy.sparse.issparse`.

    >>> import scipy.sparse
    >>> issparse([[1.0]]), issparse(scipy.sparse.eye_array(3))
    (False, True)
    """
    sparse = loaded("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(value))


def is_linear_operator(value: Any) -> bool:
    """Whether it is a `scipy.sparse.linalg.LinearOperator`.

    >>> import scipy.sparse
    >>> operator = scipy.sparse.linalg.aslinearoperator(scipy.sparse.eye_array(3))
    >>> is_linear_operator(len), is_linear_operator(operator)
    (False, True)
    """
    linalg = loaded("scipy.sparse.linalg")
    return linalg is not None and isinstance(value, linalg.LinearOperator)

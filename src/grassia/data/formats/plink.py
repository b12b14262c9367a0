"""Genotypes in PLINK 1 binary files (`.bed` with its `.bim` and `.fam`), through bed-reader.

Samples are rows, variants are columns, and an entry counts the copies of the first allele: 0, 1 or 2.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grassia._optional import require
from grassia.data.formats.decoding import DecodedBlocks, local_path, naming
from grassia.errors import InvalidComponent, InvalidInput

__all__ = ["PlinkOpener", "PlinkStore", "open_path"]

_RULE = "a PLINK 1 .bed file with its .bim and .fam beside it"
_MISSING = -127  # bed-reader's own for int8
_MAGIC = b"\x6c\x1b"
# Genotypes read at a time, one byte each.
_BLOCK_BYTES = 32 << 20
# The four genotypes in a byte, as four bytes: 3 stands for one that is missing.
_UNPACKED = np.array([[(byte >> shift) & 3 for shift in (0, 2, 4, 6)] for byte in range(256)], dtype=np.int8)
_HAS_MISSING = (_UNPACKED == 3).any(axis=1)
_UNPACKED[_UNPACKED == 3] = _MISSING


def open_path(path: str, missing: str = "error", count_A1: bool = True) -> PlinkOpener:
    """The opener of a `.bed` file.

    Parameters
    ----------
    path : str
    missing : {"error", "mean"}
        What to make of a genotype that is missing: an error that names the first, or the mean of its
        variant over the samples of this file that have it. The means take one pass over the file, made here.
    count_A1 : bool
        Whether entries count the first allele of the `.bim` file, as PLINK 1.9 does, or the second.

    Notes
    -----
    The usual `.bed` file has one variant after the other, so that any range of samples is spread over all of
    it, and reading one costs a pass over the file. So a component keeps the genotypes it has read, four in a
    byte, up to 512 MB in each process (2000 million genotypes). What is beyond that is read anew in every
    pass over the rows, 32 million genotypes at a time.

    Examples
    --------
    >>> import tempfile
    >>> from bed_reader import to_bed
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     to_bed(f"{folder}/x.bed", np.array([[0, 2], [1, 2], [2, 0]], dtype=np.int8))
    ...     print(open_path(f"{folder}/x.bed").open().read(1, 3))
    [[1 2]
     [2 0]]
    """
    if missing not in ("error", "mean"):
        raise InvalidInput(f'missing must be "error" or "mean"; got {missing!r}')
    opener = PlinkOpener(local_path(path), count_A1=bool(count_A1))
    if missing == "error":
        return opener
    store = opener.open()
    return PlinkOpener(opener.path, opener.count_A1, store.means().tobytes())


@dataclass(frozen=True)
class PlinkOpener:
    """A `.bed` file; with the means of its variants (float64) where they stand for what is missing."""

    path: str
    count_A1: bool = True
    means: bytes | None = field(default=None, repr=False)
    kind = "PLINK"

    @property
    def name(self) -> str:
        return self.path

    @property
    def note(self) -> str:
        return "" if self.means is None else "missing genotypes are the variant's mean"

    def files(self) -> list[str]:
        """The three files, none of which may change."""
        stem = os.path.splitext(self.path)[0]
        return [self.path, f"{stem}.bim", f"{stem}.fam"]

    def open(self) -> PlinkStore:
        return PlinkStore(self)


class PlinkStore:
    """An open `.bed` file: int8, or float64 where means stand for what is missing."""

    sparse = False
    chunk_rows = 1

    def __init__(self, opener: PlinkOpener) -> None:
        bed_reader = require("bed_reader", "plink")
        self._path = opener.path
        _require_magic(opener.path)
        for file in opener.files()[1:]:
            if not os.path.isfile(file):
                raise InvalidComponent(f"{opener.path} must be {_RULE}; there is no {file}")
        with naming(opener.path, _RULE):
            # The worker's own limit on threads is that of its products.
            self._bed = bed_reader.open_bed(opener.path, count_A1=opener.count_A1, num_threads=1)
            m, d = (int(size) for size in self._bed.shape)
        if min(m, d) == 0:
            raise InvalidComponent(f"{opener.path} must not be empty; it has {m} samples x {d} variants")
        self.shape = m, d
        self._require_size()
        self._means = None if opener.means is None else np.frombuffer(opener.means)
        self.dtype = np.dtype(np.int8 if self._means is None else np.float64)
        self.stored = m * d
        step = max(1, _BLOCK_BYTES // d)
        self._bounds = [*range(0, m, step), m]
        self._blocks = DecodedBlocks(self._bounds, self._packed, keep=True)

    @property
    def feature_names(self) -> list[str]:
        """The variants' identifiers, as the `.bim` file has them."""
        with naming(self._path, _RULE):
            return [str(name) for name in self._bed.sid]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Samples ``start:stop``, all variants."""
        packed = self._blocks.read(start, stop)
        padded = _UNPACKED.view(np.int32).ravel()[packed].view(np.int8)
        genotypes: NDArray[Any] = padded[:, : self.shape[1]]
        rows, places = np.nonzero(_HAS_MISSING[packed])
        columns = (4 * places[:, None] + np.arange(4)).ravel()
        rows = np.repeat(rows, 4)
        # The last byte of a row may stand for fewer than four.
        lacking = columns < self.shape[1]
        rows, columns = rows[lacking], columns[lacking]
        lacking = genotypes[rows, columns] == _MISSING
        rows, columns = rows[lacking], columns[lacking]
        if self._means is not None:
            filled: NDArray[Any] = genotypes.astype(np.float64)
            filled[rows, columns] = self._means[columns]
            return filled
        if rows.size:
            raise InvalidComponent(self._missing(start + int(rows[0]), int(columns[0])))
        return genotypes

    def means(self) -> NDArray[np.float64]:
        """The mean of each variant over the samples that have it; 0 where none has."""
        m, d = self.shape
        means = np.zeros(d)
        step = max(1, _BLOCK_BYTES // m)
        for first in range(0, d, step):
            genotypes = self._genotypes(np.s_[:, first : first + step])
            known = genotypes != _MISSING
            sums = np.where(known, genotypes, 0).sum(axis=0, dtype=np.int64)
            means[first : first + step] = sums / np.maximum(known.sum(axis=0), 1)
        return means

    def release(self) -> None:
        self._blocks.release()

    def close(self) -> None:
        self._bed = None

    def _packed(self, i: int) -> NDArray[np.uint8]:
        """Block i of the samples, four variants in a byte."""
        genotypes = self._genotypes(np.s_[self._bounds[i] : self._bounds[i + 1], :])
        packed = np.zeros((genotypes.shape[0], -(-self.shape[1] // 4)), dtype=np.uint8)
        for place in range(4):
            part = genotypes[:, place::4].view(np.uint8)
            # What is missing has its highest bit set, and becomes 3.
            packed[:, : part.shape[1]] |= ((part & 3) | ((part >> 7) * 3)) << np.uint8(2 * place)
        return packed

    def _genotypes(self, index: Any) -> NDArray[np.int8]:
        with naming(self._path, _RULE):
            found: NDArray[np.int8] = self._bed.read(index, dtype="int8", order="C")
        return found

    def _missing(self, row: int, column: int) -> str:
        sample, variant = self._bed.iid[row], self._bed.sid[column]
        return (
            f"genotypes must not be missing; that of sample {row} ({sample}) at variant {column} ({variant}) "
            f"in {self._path} is; give from_rows(path, options={{'missing': 'mean'}}) instead of the path "
            "for the variant's mean, or leave out such samples and variants with PLINK's --geno and --mind"
        )

    def _require_size(self) -> None:
        m, d = self.shape
        with open(self._path, "rb") as file:
            by_variant = file.read(3)[2:] == b"\x01"
        expected = 3 + (d * -(-m // 4) if by_variant else m * -(-d // 4))
        found = os.path.getsize(self._path)
        if found != expected:
            raise InvalidComponent(
                f"{self._path} must have {expected} bytes for the {m} samples of its .fam and the {d} "
                f"variants of its .bim file; it has {found}: it is damaged, or they do not belong together"
            )


def _require_magic(path: str) -> None:
    with naming(path, _RULE), open(path, "rb") as file:
        begin = file.read(3)
    if begin[:2] != _MAGIC or len(begin) < 3:
        raise InvalidComponent(
            f"{path} must be {_RULE}; it begins with {begin!r}, not with {_MAGIC!r} "
            "(the text files of genomic intervals that are also called .bed hold no genotypes)"
        )

"""Rows in a file: the workers map it, nobody loads it."""

import tempfile
from pathlib import Path

import numpy as np

import grassia

rng = np.random.default_rng(0)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "rows.npy"
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(20_000, 100))
    scales = np.r_[3.0, 2.0, np.linspace(1.0, 0.1, 98)]
    for start in range(0, len(rows), 5_000):  # written block by block, as a large file would be
        rows[start : start + 5_000] = rng.standard_normal((5_000, 100)) * scales
    rows.flush()

    components = grassia.from_rows(path, n_components=4)
    print(components.describe())
    result = grassia.eigenspace(components, k=2, backend="processes", rng=0)
    print(result.certificate)

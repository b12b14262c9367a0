"""PCA of rows in memory on four local processes."""

import numpy as np

import grassia

rng = np.random.default_rng(0)
scales = np.r_[3.0, 2.5, 2.0, np.linspace(1.0, 0.1, 47)]
X = rng.standard_normal((4000, 50)) * scales + 1.0

components = grassia.from_rows(X, n_components=4)
result = grassia.eigenspace(components, k=3, backend="processes", rng=0)

print(result.status.name, result.values)
print(result.certificate)
scores = (X - result.stats["mean"]) @ result.vectors
print("scores", scores.shape)

"""Data and comparisons that the tests of the estimators share."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from sklearn import datasets

#: scikit-learn's own small data sets, one row a sample.
TABLES = {
    "iris": datasets.load_iris().data,
    "digits": datasets.load_digits().data,
    "breast cancer": datasets.load_breast_cancer().data,
}


def term_counts(documents: int = 400, words: int = 600, topics: int = 6, seed: int = 0) -> sp.csr_array:
    """A sparse matrix like one of word counts: a few topics, words as unequally frequent as in language."""
    rng = np.random.default_rng(seed)
    frequency = 1.0 / np.arange(1, words + 1)
    topic_words = rng.dirichlet(200.0 * frequency / frequency.sum() + 0.01, size=topics)
    mixtures = rng.dirichlet(np.full(topics, 0.3), size=documents) @ topic_words
    lengths = rng.poisson(60, size=documents)
    counts = [rng.multinomial(n, p) for n, p in zip(lengths, mixtures, strict=True)]
    return sp.csr_array(np.array(counts, dtype=np.float64))


def relative(expected, found) -> float:
    """The largest difference over the largest entry expected."""
    expected, found = np.asarray(expected, dtype=np.float64), np.asarray(found, dtype=np.float64)
    assert expected.shape == found.shape
    largest = np.max(np.abs(expected), initial=0.0)
    return float(np.max(np.abs(expected - found), initial=0.0) / (largest if largest > 0.0 else 1.0))


def entry_by_entry(expected, found) -> float:
    """The largest relative difference of any one entry."""
    expected, found = np.asarray(expected, dtype=np.float64), np.asarray(found, dtype=np.float64)
    assert expected.shape == found.shape
    return float(np.max(np.abs(found - expected) / np.abs(expected), initial=0.0))


def with_variance(model, least: float = 1e-9) -> int:
    """How many components of a model have more than rounding as their singular value."""
    return int(np.sum(model.singular_values_ > least * model.singular_values_[0]))

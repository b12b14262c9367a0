"""Tiled passes over data: products with ``X^T X`` that read the rows once, moments, scans.

The textbook way, ``X.T @ (X @ V)``, streams ``X`` from memory twice and keeps an ``m x b``
intermediate. Here a tile of rows is multiplied by ``V`` and then, still in cache, by the result.
Nothing in this package checks its arguments: the components do.
"""

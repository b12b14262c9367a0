"""Geometry of the Grassmannian Gr(d, k): the k-dimensional subspaces of R^d.

A point is held as an orthonormal d x k matrix whose columns span the subspace. Two matrices that
differ by a k x k rotation from the right are the same point; every distance here is blind to that
rotation, every tangent vector turns with it.

All functions are pure, and all of them take NumPy arrays, torch tensors or any other array with
the array API standard's operations and its ``linalg`` extension. Results stay in the namespace,
on the device and in the dtype (float32 or float64) of the arguments. Arguments called `W` and `V`
are taken to be orthonormal without a check, since the check would cost as much as the work;
`orthonormality_error` measures it and `polar` repairs it.
"""

from grassia.geometry.bases import align, procrustes, ritz
from grassia.geometry.distances import (
    chordal_distance,
    geodesic_distance,
    principal_angles,
    projection_distance,
)
from grassia.geometry.points import orthonormality_error, orthonormalize, polar, random_point
from grassia.geometry.tangents import exp, log, project, riemannian_gradient

__all__ = [
    "align",
    "chordal_distance",
    "exp",
    "geodesic_distance",
    "log",
    "orthonormality_error",
    "orthonormalize",
    "polar",
    "principal_angles",
    "procrustes",
    "project",
    "projection_distance",
    "random_point",
    "riemannian_gradient",
    "ritz",
]

"""`grassia.geometry` on other array libraries: the same numbers, the same kind of array back."""

from __future__ import annotations

import numpy as np
import pytest
from array_api_compat import array_namespace, device

from grassia import geometry as geo
from grassia.errors import InvalidInput

NAMESPACES = [
    pytest.param("array_api_strict"),
    pytest.param("torch", marks=pytest.mark.torch),
]
SHAPES = [(12, 3), (5, 5), (6, 1), (1, 1)]


@pytest.fixture(params=NAMESPACES)
def xp(request):
    return pytest.importorskip(request.param)


def sample(d, k):
    rng = np.random.default_rng(100 * d + k)
    W, V = geo.random_point(d, k, rng), geo.random_point(d, k, rng)
    A = rng.standard_normal((d, d))
    return {
        "W": W,
        "V": V,
        "G": rng.standard_normal((d, k)),
        "AW": (A + A.T) @ W,
        "Xi": 0.3 * geo.project(W, rng.standard_normal((d, k))),
        # One matrix for each path of polar: near orthonormal, middling, badly conditioned.
        "near": W + 0.01 * rng.standard_normal((d, k)),
        "middling": W * np.logspace(0.0, -1.0, k),
        "bad": W * np.logspace(0.0, -4.0, k),
    }


# What each call returns is fixed by its arguments: nothing here is free up to signs or rotations.
CALLS = {
    "polar, near orthonormal": lambda s: geo.polar(s["near"]),
    "polar, middling": lambda s: geo.polar(s["middling"]),
    "polar, ill-conditioned": lambda s: geo.polar(s["bad"]),
    "project": lambda s: geo.project(s["W"], s["G"]),
    "riemannian_gradient": lambda s: geo.riemannian_gradient(s["W"], s["AW"]),
    "log": lambda s: geo.log(s["W"], geo.exp(s["W"], s["Xi"])),
    "exp": lambda s: geo.exp(s["W"], s["Xi"]),
    "principal_angles": lambda s: geo.principal_angles(s["W"], s["V"]),
    "principal_angles, unequal": lambda s: geo.principal_angles(s["W"][:, :1], s["V"]),
    "procrustes": lambda s: geo.procrustes(s["W"], s["V"]),
    "align": lambda s: geo.align(s["W"], s["V"]),
    "ritz values": lambda s: geo.ritz(s["W"], s["AW"])[0],
    "random_point": lambda s: geo.random_point(*s["W"].shape, np.random.default_rng(7), s["W"]),
}
SCALARS = {
    "geodesic_distance": lambda s: geo.geodesic_distance(s["W"], s["V"]),
    "chordal_distance": lambda s: geo.chordal_distance(s["W"], s["V"]),
    "projection_distance": lambda s: geo.projection_distance(s["W"], s["V"]),
    "orthonormality_error": lambda s: geo.orthonormality_error(s["G"]),
}


def to(xp, arrays, dtype="float64"):
    return {name: xp.asarray(a, dtype=getattr(xp, dtype)) for name, a in arrays.items()}


def to_numpy(array):
    return np.asarray(array)


def assert_same_kind(result, argument):
    assert array_namespace(result) is array_namespace(argument)
    assert result.dtype == argument.dtype
    assert device(result) == device(argument)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CALLS)
def test_arrays_agree_with_numpy_to_1e_12_and_keep_their_kind(xp, name, shape):
    arrays = sample(*shape)
    there = to(xp, arrays)
    result = CALLS[name](there)
    assert_same_kind(result, there["W"])
    np.testing.assert_allclose(to_numpy(result), CALLS[name](arrays), rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SCALARS)
def test_distances_are_python_floats_and_agree_with_numpy_to_1e_12(xp, name, shape):
    arrays = sample(*shape)
    result = SCALARS[name](to(xp, arrays))
    assert type(result) is float
    assert result == pytest.approx(SCALARS[name](arrays), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", CALLS)
def test_float32_stays_float32_and_is_near_the_float64_result(xp, name):
    arrays = sample(12, 3)
    there = to(xp, arrays, "float32")
    result = CALLS[name](there)
    assert_same_kind(result, there["W"])
    # The ill-conditioned case loses four of seven digits to the rounding of its argument.
    tolerance = 2e-2 if "ill" in name else 2e-5
    np.testing.assert_allclose(to_numpy(result), CALLS[name](arrays), rtol=0.0, atol=tolerance)


@pytest.mark.parametrize("name", ["near", "middling", "bad"])
def test_numpy_float32_is_kept_and_orthonormal_to_single_precision(name):
    Q = geo.polar(sample(12, 3)[name].astype(np.float32))
    assert Q.dtype == np.float32
    assert np.linalg.norm(Q.T.astype(np.float64) @ Q - np.eye(3)) < 1e-6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_polar_is_orthonormal_to_the_precision_of_its_dtype(xp, dtype):
    there = to(xp, sample(12, 3), dtype)
    bound = 20.0 * float(xp.finfo(there["W"].dtype).eps)
    for name in ("near", "middling", "bad"):
        assert geo.orthonormality_error(geo.polar(there[name])) < bound


def test_exp_undoes_log_as_points(xp):
    s = to(xp, sample(12, 3))
    reached = geo.exp(s["W"], geo.log(s["W"], s["V"]))
    assert geo.geodesic_distance(reached, s["V"]) < 1e-12


def test_the_ritz_rotation_diagonalises_in_the_same_library(xp):
    s = to(xp, sample(12, 3))
    values, turn = geo.ritz(s["W"], s["AW"])
    assert_same_kind(turn, s["W"])
    H, turn = to_numpy(s["W"].T @ s["AW"]), to_numpy(turn)
    np.testing.assert_allclose(turn.T @ H @ turn, np.diag(to_numpy(values)), atol=1e-12)


def test_orthonormalize_completes_the_span_and_drops_what_is_dependent(xp):
    s = sample(12, 3)
    X = np.concatenate([s["G"], s["G"][:, :1], s["W"][:, :2]], axis=1)
    W, there = xp.asarray(s["W"]), xp.asarray(X)
    Q = geo.orthonormalize(there, against=W)
    assert_same_kind(Q, W)
    assert tuple(Q.shape) == (12, 3)
    joint = np.concatenate([s["W"], to_numpy(Q)], axis=1)
    np.testing.assert_allclose(joint.T @ joint, np.eye(6), atol=1e-14)
    np.testing.assert_allclose(joint @ (joint.T @ X), X, atol=1e-12)
    assert tuple(geo.orthonormalize(W, against=W).shape) == (12, 0)
    assert tuple(geo.orthonormalize(0.0 * W).shape) == (12, 0)


def test_bad_values_are_refused_in_every_library(xp):
    s = sample(12, 3)
    broken = s["W"].copy()
    broken[0, 0] = np.nan
    for function in (geo.log, geo.principal_angles, geo.procrustes, geo.exp, geo.ritz):
        with pytest.raises(InvalidInput, match="finite"):
            function(xp.asarray(s["W"]), xp.asarray(broken))
    with pytest.raises(InvalidInput, match="finite"):
        geo.polar(xp.asarray(broken))
    with pytest.raises(InvalidInput, match="full column rank"):
        geo.polar(xp.asarray(np.ones((4, 2))))
    with pytest.raises(InvalidInput, match="float32 or float64"):
        geo.polar(xp.asarray(np.eye(3, dtype=np.int64)))


def test_arrays_of_two_libraries_are_refused_together(xp):
    W = sample(12, 3)["W"]
    with pytest.raises(InvalidInput, match="one array library"):
        geo.log(W, xp.asarray(W))

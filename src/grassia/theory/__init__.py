"""The paper's results as functions: constants, steps, rates, and both sides of every statement.

`constants`, `steps` and `rates` are for choosing a step and predicting a run. `identities`, `bounds` and
`trajectory` evaluate the two sides of each numbered result at a dense instance, with the paper's constants as
keywords; the tests hold them to it. Numbers of lemmas, propositions and theorems are those of the paper.

Symbols: `delta = lambda_k - lambda_{k+1}`, `nu = lambda_1 - lambda_d` of A, `nu_avg` the weighted mean of
the components' own spreads, `tau` the largest staleness, `C_po = 2 + 4 sqrt(k) / 3`.
"""

from grassia.theory.bounds import (
    aggregate_norms,
    chordal_gap_bounds,
    cosine_law,
    dominance_coefficient,
    geodesic_step,
    gradient_dominance,
    gradient_lipschitz,
    log_decomposition,
    objective_gap_bounds,
    polar_injectivity,
    weak_quasi_convexity,
)
from grassia.theory.certified import CertifiedConstants, certified_constants
from grassia.theory.constants import ALPHA, ZETA, Constants, exact_constants, polar_constant, spread
from grassia.theory.identities import (
    Spectrum,
    cosine_sine,
    gradient_energy,
    objective_gap,
    shift_invariance,
    value_gap,
)
from grassia.theory.monitor import Finding, Monitor, Oracle, Report
from grassia.theory.planning import Observed, Plan, Promise, plan
from grassia.theory.rates import (
    broad_envelope,
    broad_iterations,
    broad_rate,
    delayed_recursion,
    local_envelope,
    local_iterations,
    local_rate,
    recursion_condition,
    switch_charge,
)
from grassia.theory.statement import Sides
from grassia.theory.steps import (
    basin_step,
    broad_step,
    compatibility_step,
    descent_step,
    injectivity_step,
    local_step,
    logarithm_step,
    lyapunov_weight,
)
from grassia.theory.trajectory import (
    Trajectory,
    basin_compatibility,
    basin_invariance,
    broad_convergence,
    follow,
    local_convergence,
    lyapunov,
    one_step_descent,
    staleness_error,
)

__all__ = [
    "ALPHA",
    "ZETA",
    "CertifiedConstants",
    "Constants",
    "Finding",
    "Monitor",
    "Observed",
    "Oracle",
    "Plan",
    "Promise",
    "Report",
    "Sides",
    "Spectrum",
    "Trajectory",
    "aggregate_norms",
    "basin_compatibility",
    "basin_invariance",
    "basin_step",
    "broad_convergence",
    "broad_envelope",
    "broad_iterations",
    "broad_rate",
    "broad_step",
    "certified_constants",
    "chordal_gap_bounds",
    "compatibility_step",
    "cosine_law",
    "cosine_sine",
    "delayed_recursion",
    "descent_step",
    "dominance_coefficient",
    "exact_constants",
    "follow",
    "geodesic_step",
    "gradient_dominance",
    "gradient_energy",
    "gradient_lipschitz",
    "injectivity_step",
    "local_convergence",
    "local_envelope",
    "local_iterations",
    "local_rate",
    "local_step",
    "log_decomposition",
    "logarithm_step",
    "lyapunov",
    "lyapunov_weight",
    "objective_gap",
    "objective_gap_bounds",
    "one_step_descent",
    "plan",
    "polar_constant",
    "polar_injectivity",
    "recursion_condition",
    "shift_invariance",
    "spread",
    "staleness_error",
    "switch_charge",
    "value_gap",
    "weak_quasi_convexity",
]

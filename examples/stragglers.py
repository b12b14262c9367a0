"""One problem three times: all workers well, one ten times slower, one that dies and comes back.

The answers agree, and the certificate says so each time. Faults are injected; see docs/faults.md.
"""

import numpy as np

import grassia
from grassia import backends, geometry

rng = np.random.default_rng(0)
scales = np.r_[3.0, 2.5, 2.0, np.linspace(1.0, 0.1, 197)]
X = rng.standard_normal((8000, 200)) * scales
components = grassia.from_rows(X, n_components=4)

reference = None
for faults in ([], ["slow:0:10x"], ["slow:0:10x", "crash:2@3"]):
    engine = backends.Processes(faults=faults)
    result = grassia.eigenspace(components, k=3, solver="nystrom", backend=engine, rng=0)
    if reference is None:
        reference = result.vectors
    angle = geometry.projection_distance(result.vectors, reference)
    print(f"{', '.join(faults) or 'no faults'}: {result.status.name}, sine to the first {angle:.1e}")
    print(f"  answers {result.stats['answers']}, {result.stats['seconds']:.1f} s")
    for event in result.history.events:
        print(f"  {event.time:.2f} s: {event.kind}, component {event.component}: {event.text}")

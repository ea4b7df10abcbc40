"""Functions of models' corners, fused, beside `jax.jit` of the same: `python -m benchmarks corners`.

Each list is a module, each family a prefix of the names. `.vjp` is a derivative, given cotangents, `.vag` the value and
the gradient of a loss.
"""

# Importing a list registers its functions.
from . import (  # noqa: F401
    attention,
    audio,
    detection,
    images,
    losses,
    movement,
    norms,
    numbers,
    optimizers,
    quantization,
    recurrences,
    reductions,
    rl,
    stencils,
)

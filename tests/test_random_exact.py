"""Random programs of what users write, on special values and in every surrounding, against JAX alone.

A failing one is shrunk and printed with its seed as fusion text. `Exact(seed)` makes it again.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from random_exact import Exact
from random_programs import is_float

import jax_fuser as jf


def stacked(arguments):
    return [jnp.stack([x, x]) for x in arguments]


def second(results):
    return [y[1] for y in results]


# How a program may be called: (function, arguments) -> outputs.
CALLS = {
    "alone": lambda f, args: f(args),
    "jit": lambda f, args: jax.jit(f)(args),
    "donated": lambda f, args: jax.jit(f, donate_argnums=0)([jnp.array(x) for x in args]),
    "captured": lambda f, args: jf.fuse(lambda x: f([x, *args[1:]]), name="captured")(args[0]),
    "vmap": lambda f, args: second(jax.vmap(f)(stacked(args))),
    "vmap of some": lambda f, args: second(jax.vmap(lambda x: f([x, *args[1:]]))(stacked(args[:1])[0])),
    "scan": lambda f, args: second(lax.scan(lambda c, x: (c, f(x)), 0, stacked(args))[1]),
    "carried": lambda f, args: lax.fori_loop(0, 2, lambda _, c: f(args), jax.tree.map(jnp.zeros_like, f(args))),
    "cond": lambda f, args: jax.jit(lambda p: lax.cond(p, f, lambda a: jax.tree.map(jnp.zeros_like, f(a)), args))(True),
}


def failure(program, call):
    try:
        got = CALLS[call](jf.fuse(program.run), program.arguments)
        bad = [why for g, i in zip(got, program.outputs, strict=True) if (why := program.wrong(g, i))]
    except Exception as error:
        bad = [f"{type(error).__name__}: {error}"]
    return f"{call}: {bad[0]}\n{program.report()}" if bad else ""


@pytest.mark.parametrize("call", CALLS)
def test_random_programs(device, call):
    found = failure(Exact([list(CALLS).index(call)], steps=10), call)
    assert not found, found


def test_programs_are_what_they_are_for():
    """Most values are exact, there are infinities and NaN among them, and empty arrays."""
    programs = [Exact([20, i], steps=4) for i in range(12)]
    values = [np.asarray(p.pool[i]) for p in programs for i in p.exact()]
    assert len(values) > 0.8 * sum(len(p.pool) for p in programs)
    floats = [x.astype(np.float64) for x in values if is_float(x.dtype)]
    assert any(np.isnan(x).any() for x in floats) and any(np.isinf(x).any() for x in floats)
    assert any(x.size == 0 for x in values)

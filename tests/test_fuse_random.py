"""Random pointwise programs against the same program in float64. A failing one is shrunk and printed as fusion text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_fuser as jf

EXTENTS = (3, 5, 4)
UNARY = [jnp.sin, jnp.tanh, jax.nn.sigmoid, jnp.negative, jnp.abs, lambda x: jnp.exp(-x * x), lambda x: 1 / (1 + x * x)]
BINARY = [jnp.add, jnp.subtract, jnp.maximum, jnp.minimum, lambda x, y: x / (1 + y * y), lambda x, y: jnp.sin(x) * y]
INTEGER = [jnp.add, jnp.subtract, jnp.multiply, jnp.bitwise_xor, jnp.maximum, lambda x, y: x // (jnp.abs(y) % 7 + 1)]
COMPARE = [jnp.greater, jnp.less_equal, jnp.equal]
# Relative to the largest value. Each value may have been rounded to bfloat16 a few times on its way.
TOLERANCE = 4e-2


def is_float(x):
    return jnp.issubdtype(x.dtype, jnp.floating)


class Program:
    """Steps chosen from a seed: (function, numbers of the values it takes)."""

    def __init__(self, seed, steps=14, smooth=False):
        self.seed, self.steps = seed, []
        # A derivative is not defined where two values are equal, which rounding decides.
        self.unary = [f for f in UNARY if not (smooth and f is jnp.abs)]
        self.binary = [f for f in BINARY if not (smooth and f in (jnp.maximum, jnp.minimum))]
        rng = np.random.default_rng(seed)
        self.inputs = []
        for dtype in ("float32", "float32", "bfloat16", "int32", "int8"):
            shape = [int(n if rng.random() < 0.75 else 1) for n in EXTENTS][rng.integers(0, 2) :]
            values = rng.standard_normal(shape) if "float" in dtype else rng.integers(-9, 9, shape)
            self.inputs.append(jnp.asarray(values.astype("float32")).astype(dtype))
        # (type, exact): only exact values may decide anything, since rounding differs.
        pool = [(jax.typeof(x), True) for x in self.inputs]
        for _ in range(steps):
            f, operands, exact = self.step(rng, pool)
            pool.append((jax.eval_shape(f, *(pool[i][0] for i in operands)), exact))
            self.steps.append((f, operands))

    def step(self, rng, pool):
        kind, choice = rng.integers(8), int(rng.integers(1 << 30))

        def pick(test=lambda x, exact: True):
            return int(rng.choice([i for i, p in enumerate(pool) if test(*p)]))

        def pick_float():
            return pick(lambda x, _: is_float(x))

        if kind < 2:
            return self.unary[choice % len(self.unary)], [pick_float()], False
        if kind < 4:
            return self.binary[choice % len(self.binary)], [pick_float(), pick_float()], False
        if kind == 4:
            return INTEGER[choice % len(INTEGER)], [pick(lambda x, _: not is_float(x)) for _ in range(2)], True
        if kind == 5:
            x = pick(lambda x, exact: exact)
            y = pick(lambda y, exact: exact and y.dtype == pool[x][0].dtype)
            compare = COMPARE[choice % len(COMPARE)]
            operands = [x, y, pick_float(), pick_float()]
            return lambda x, y, a, b: jnp.where(compare(x, y), a, b), operands, False
        x = pick()
        floating, rank = is_float(pool[x][0]), len(pool[x][0].shape)
        if kind == 6:
            to = self.inputs[choice % (3 if floating else 5)].dtype
            return lambda x: cast(jnp.clip(x, -9, 9), to), [x], not floating and not is_float(jnp.zeros(0, to))
        if rank < 3:
            return lambda x: jnp.broadcast_to(x, (EXTENTS[0], *x.shape)), [x], pool[x][1]
        if choice % 2:
            return lambda x: x[:, None].squeeze(1), [x], pool[x][1]
        return lambda x: (x.transpose(2, 1, 0) + 1).transpose(2, 1, 0), [x], pool[x][1]

    def run(self, inputs):
        """Return the last three values."""
        pool = list(inputs)
        for f, operands in self.steps:
            pool.append(f(*(pool[i] for i in operands)))
        return pool[-3:]

    def failure(self, got, want):
        """Return None, or the first wrong result; alone it is the smallest failing program."""
        for i, (g, w) in enumerate(zip(got, want)):
            if error(g, w) <= TOLERANCE:
                continue
            alone = jf.fuse(lambda x, i=i: self.run(x)[i], name="failing")
            text = alone.lower(self.inputs).as_text("fusion")
            return f"seed {self.seed}, result {i}\n{np.asarray(g)}\nexpected\n{np.asarray(w)}\n{text}"
        return None


def cast(x, to):
    # Every float of the truth stays a float64.
    return x if x.dtype == "float64" else x.astype("float64" if jax.config.jax_enable_x64 and to.kind != "i" else to)


def run_all(programs, inputs):
    return [p.run(x) for p, x in zip(programs, inputs)]


def error(got, want):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return np.max(np.abs(got - want) / max(1.0, np.abs(want).max(initial=0)), initial=0)


@pytest.mark.parametrize("seed", range(10))
def test_random_programs(device, seed):
    programs = [Program([seed, i]) for i in range(10)]
    inputs = [p.inputs for p in programs]
    results = jf.fuse(lambda xs: run_all(programs, xs))(inputs)
    with jax.enable_x64(True):
        wide = [[x.astype("float64") if is_float(x) else x for x in xs] for xs in inputs]
        truth = jax.jit(lambda xs: run_all(programs, xs))(wide)
    failures = [p.failure(got, want) for p, got, want in zip(programs, results, truth)]
    assert not any(failures), "\n\n".join(f for f in failures if f)


@pytest.mark.parametrize("seed", range(2))
def test_random_derivatives(device, seed):
    program = Program([seed, 100], smooth=True)

    def loss(run):
        return lambda xs: sum(jnp.sum(y.astype("float32")) for y in run([*xs, *program.inputs[3:]]) if is_float(y))

    floats = [x.astype("float32") for x in program.inputs[:3]]
    got, want = jax.grad(loss(jf.fuse(program.run)))(floats), jax.grad(loss(program.run))(floats)
    for g, w in zip(got, want):
        assert error(g, w) < 1e-4

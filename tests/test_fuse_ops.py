"""Every op that `fuse` supports, in every dtype it takes, on special values, against the same JAX function alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tolerances import TOL

import jax_fuser as jf

F32, F64, BF16, F16 = "float32", "float64", "bfloat16", "float16"
FLOATS = (F32, F64, BF16, F16)
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTS = SIGNED + UNSIGNED
NUMBERS = FLOATS + INTS
BOOL = ("bool",)

# name: (function, dtypes, how many operands[, tolerance scale]); one row per op.
OPS = {
    "neg": (lax.neg, NUMBERS, 1),
    "abs": (lax.abs, FLOATS + SIGNED, 1),
    "sign": (lax.sign, NUMBERS, 1),
    "square": (lax.square, NUMBERS, 1),
    "not": (lax.bitwise_not, INTS + BOOL, 1),
    "population_count": (lax.population_count, INTS, 1),
    "clz": (lax.clz, INTS, 1),
    "floor": (lax.floor, FLOATS, 1),
    "ceil": (lax.ceil, FLOATS, 1),
    "round_even": (jnp.round, FLOATS, 1),
    "round_away": (lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), FLOATS, 1),
    "is_finite": (lax.is_finite, FLOATS, 1),
    "exp": (lax.exp, FLOATS, 1),
    "exp2": (lax.exp2, FLOATS, 1),
    "expm1": (lax.expm1, FLOATS, 1),
    "log": (lax.log, FLOATS, 1),
    "log2": (jnp.log2, FLOATS, 1),
    "log1p": (lax.log1p, FLOATS, 1),
    "logistic": (lax.logistic, FLOATS, 1),
    "sqrt": (lax.sqrt, FLOATS, 1),
    "rsqrt": (lax.rsqrt, FLOATS, 1),
    "cbrt": (lax.cbrt, FLOATS, 1),
    "sin": (lax.sin, FLOATS, 1),
    "cos": (lax.cos, FLOATS, 1),
    "tan": (lax.tan, FLOATS, 1),
    "asin": (lax.asin, FLOATS, 1),
    "acos": (lax.acos, FLOATS, 1),
    "atan": (lax.atan, FLOATS, 1),
    "sinh": (lax.sinh, FLOATS, 1),
    "cosh": (lax.cosh, FLOATS, 1),
    "tanh": (lax.tanh, FLOATS, 1),
    "asinh": (lax.asinh, FLOATS, 1),
    "acosh": (lax.acosh, FLOATS, 1),
    "atanh": (lax.atanh, FLOATS, 1),
    "erf": (lax.erf, FLOATS, 1),
    "erfc": (lax.erfc, FLOATS, 1),
    "erf_inv": (lax.erf_inv, FLOATS, 1),
    "lgamma": (lax.lgamma, FLOATS, 1),
    # At 0 the versions of JAX differ.
    "digamma": (lambda x: lax.digamma(jnp.where(x == 0, 1, x)), FLOATS, 1),
    "add": (lax.add, NUMBERS, 2),
    "sub": (lax.sub, NUMBERS, 2),
    "mul": (lax.mul, NUMBERS, 2),
    "div": (lax.div, NUMBERS, 2),
    "rem": (lax.rem, NUMBERS, 2),
    "max": (lax.max, NUMBERS + BOOL, 2),
    "min": (lax.min, NUMBERS + BOOL, 2),
    "pow": (lax.pow, FLOATS, 2),
    "atan2": (lax.atan2, FLOATS, 2),
    "nextafter": (lax.nextafter, FLOATS, 2),
    "and": (lax.bitwise_and, INTS + BOOL, 2),
    "or": (lax.bitwise_or, INTS + BOOL, 2),
    "xor": (lax.bitwise_xor, INTS + BOOL, 2),
    "shift_left": (lax.shift_left, INTS, 2),
    "shift_right_logical": (lax.shift_right_logical, INTS, 2),
    "shift_right_arithmetic": (lax.shift_right_arithmetic, INTS, 2),
    "eq": (lax.eq, NUMBERS + BOOL, 2),
    "ne": (lax.ne, NUMBERS + BOOL, 2),
    "lt": (lax.lt, NUMBERS + BOOL, 2),
    "le": (lax.le, NUMBERS + BOOL, 2),
    "gt": (lax.gt, NUMBERS + BOOL, 2),
    "ge": (lax.ge, NUMBERS + BOOL, 2),
    "select": (lambda x, y: lax.select(x > y, x, y), NUMBERS, 2),
    "select_n": (lambda x, y: lax.select_n((x > y).astype(jnp.int32) + (x == y), x, y, -x), FLOATS + SIGNED, 2),
    "clamp": (lambda x, y: lax.clamp(y - y + y.dtype.type(1), x, y.dtype.type(3)), INTS, 2),
    "clip": (lambda x: jnp.clip(x, -0.5, 2), FLOATS, 1),
    "integer_pow_0": (lambda x: lax.integer_pow(x, 0), NUMBERS, 1),
    "integer_pow_5": (lambda x: lax.integer_pow(x, 5), NUMBERS, 1),
    "integer_pow_-3": (lambda x: lax.integer_pow(x, -3), FLOATS, 1),
    "pow_of_int": (lambda x: lax.pow(x, jnp.full(x.shape, 3, jnp.int8)), FLOATS, 1),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 11, 52) + x, (F32, F64), 1),
    "stop_gradient": (lambda x: lax.stop_gradient(x) + x, NUMBERS, 1),
    "floor_divide": (lambda x, y: x // y, NUMBERS, 2),
    "mod": (lambda x, y: x % y, NUMBERS, 2),
    "logaddexp": (jnp.logaddexp, FLOATS, 2),
    "hypot": (jnp.hypot, FLOATS, 2),
    "copysign": (jnp.copysign, (F32, BF16, F16), 2),
    "sinc": (jnp.sinc, FLOATS, 1),
    "nan_to_num": (lambda x: jnp.nan_to_num(x) + 1, FLOATS, 1),
    "isnan": (jnp.isnan, FLOATS, 1),
    "signbit": (jnp.signbit, (F32, BF16, F16), 1),
}
# Sums of rounding errors in units of the table's tolerance: ill-conditioned or defined by several others.
SCALE = {"pow": 4, "tan": 4, "lgamma": 4, "digamma": 4, "erf_inv": 4, "mod": 4, "sinc": 4}
# Rows whose result follows from the dtype itself.
OF_ITS_DTYPE = ("nextafter", "nan_to_num")


def values(dtype, seed):
    """Special values, then random ones; every pair of special values meets when two of these are zipped."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, 64).astype(bool)
    if dtype in INTS:
        info = np.iinfo(dtype)
        special = np.array([0, 1, 2, 3, 7, 31, 33, 100, info.min, info.min + 1, info.max, info.max - 1], dtype)
        random = rng.integers(info.min, info.max, 50, dtype, endpoint=True)
    else:
        info = jnp.finfo(dtype)
        special = [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, info.max, -info.max]
        special = np.array([*special, info.tiny, 1e-3, 20.0, -20.0, 88.0, 3.0]).astype(info.dtype)
        random = (rng.standard_normal(50) * 2).astype(info.dtype)
    pairs = np.repeat(special, len(special)) if seed == 0 else np.tile(special, len(special))
    return np.concatenate([pairs, random])


def check(name, got, want):
    """Integers, booleans, infinities and NaNs are equal; floats agree to the tolerance of their dtype, one by one."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype and got.shape == want.shape
    if got.dtype.name not in TOL:
        return list(np.flatnonzero(got != want))
    tiny = float(jnp.finfo(got.dtype).tiny) * 4
    tol = TOL[got.dtype.name] * SCALE.get(name, 1)
    got, want = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(got - want) <= tol * np.maximum(np.abs(want), 1e-2) + tiny
    return list(np.flatnonzero(~(near | (got == want) | (np.isnan(got) & np.isnan(want)))))


def truth(functions, dtype, operands):
    """The functions by themselves; in f32 for the narrow floats, whose own intermediate rounding a fusion avoids."""

    @jax.jit
    def run(*xs):
        wide = [x.astype(F32) for x in xs] if dtype in (BF16, F16) else xs
        results = {name: f(*(xs if name in OF_ITS_DTYPE else wide)) for name, f in functions.items()}
        return {name: y.astype(dtype) if wide is not xs and y.dtype == F32 else y for name, y in results.items()}

    return run(*operands)


def compare(functions, dtype, operands):
    @jf.fuse
    def ops(*xs):
        return {name: f(*xs) for name, f in functions.items()}

    got, want = ops(*operands), truth(functions, dtype, operands)
    failures = []
    for name in functions:
        for i in check(name, got[name], want[name])[:3]:
            xs = ", ".join(str(x[i]) for x in operands)
            failures.append(f"{name}({xs}) = {got[name][i]}, expected {want[name][i]}")
    assert not failures, "\n".join(failures)
    return ops


@pytest.mark.parametrize("dtype", NUMBERS + BOOL)
@pytest.mark.parametrize("arity", [1, 2])
def test_op(device, dtype, arity):
    with jax.enable_x64(True):
        functions = {name: f for name, (f, dtypes, n) in OPS.items() if n == arity and dtype in dtypes}
        operands = [values(dtype, seed) for seed in range(arity)]
        ops = compare(functions, dtype, operands)
        report = jf.explain(ops)(*operands)
    allowed = ("moves or casts data between ops of XLA",)
    assert [c for c in report.cuts if c.reason not in allowed] == []
    assert report.regions


@pytest.mark.parametrize(("dtype", "least", "most"), [("f32", -126, 127), ("f64", -1022, 1023)])
def test_logarithms_of_powers_of_two_are_exact(device, dtype, least, most):
    exponents = np.arange(least, most + 1.0)
    b = jf.ir.Builder("exponents")
    b.output(b.pointwise("log2", [b.input("x", dtype, [exponents.size])]))
    with jax.enable_x64(True):
        x = jnp.asarray(np.ldexp(1.0, exponents.astype(int)), {"f32": F32, "f64": F64}[dtype])
        np.testing.assert_array_equal(jf.ir.run(b.finish(), x)[0], exponents)


@pytest.mark.parametrize("source", NUMBERS + BOOL)
def test_convert(device, source):
    # Values out of range convert as XLA converts them.
    with jax.enable_x64(True):
        x = jnp.asarray(values(source, 0)[:: 7 if source in FLOATS else 1])
        f = jf.fuse(lambda x: [x == x, *(lax.convert_element_type(x, to) for to in NUMBERS + BOOL)])
        for got, want in zip(f(x)[1:], (lax.convert_element_type(x, to) for to in NUMBERS + BOOL)):
            assert got.dtype == want.dtype
            got, want = (np.asarray(a, "float64" if want.dtype.name in FLOATS else None) for a in (got, want))
            np.testing.assert_array_equal(got, want, err_msg=f"{source} to {got.dtype}")


PAIRS = [(F32, "int32"), (F64, "uint64"), (BF16, "int16"), (F16, "uint16"), ("int8", "uint8")]


@pytest.mark.parametrize("types", PAIRS)
def test_bitcast(device, types):
    with jax.enable_x64(True):
        there, back = types
        x = values(back, 0)
        x = x[np.asarray(~jnp.isnan(x.view(jnp.dtype(there))))]  # a machine may quiet a NaN
        f = jf.fuse(lambda x: lax.bitcast_convert_type(lax.bitcast_convert_type(x, there), back) ^ 1)
        np.testing.assert_array_equal(f(x), x ^ 1)


@pytest.mark.parametrize(
    ("shape", "order"),
    [((257, 33), (1, 0)), ((40, 40, 40), (1, 2, 0)), ((5, 257, 33), (2, 0, 1)), ((17, 31, 2, 33), (3, 0, 1, 2))],
    ids=str,
)
def test_transposes_of_axes_that_move_together(device, shape, order):
    # Axes that stay neighbours are one loop, which the tiles of a transpose cut wherever they end.
    x, y = jnp.arange(np.prod(shape), dtype="float32").reshape(shape), jnp.ones([shape[a] for a in order])
    f = lambda x, y: jnp.transpose(x, order) + y  # noqa: E731
    np.testing.assert_array_equal(jf.fuse(f)(x, y), f(x, y))
    source = jf.ir.lower(jf.ir.trace(f, x, y), "cuda").as_text("source")  # needs no GPU
    assert "__shared__" in source and "__syncthreads" in source


def test_function_named_like_a_result():
    x = jnp.arange(4.0)
    np.testing.assert_array_equal(jf.fuse(lambda x: x * 2 + 1, name="t1")(x), x * 2 + 1)


def test_what_is_too_large_for_its_dtype_is_not_finite(device):
    # Computed in f32, 300 * 300 fits; as the f16 that it is, a loss scale must see it.
    x = jnp.asarray([300.0, 1.0, 2.0], F16)
    finite, infinite, product = jf.fuse(lambda x: (jnp.isfinite(x * x), jnp.isinf(x * x), x * x))(x)
    np.testing.assert_array_equal(finite, [False, True, True])
    np.testing.assert_array_equal(infinite, [True, False, False])
    np.testing.assert_array_equal(finite, jnp.isfinite(product))

"""Rules of jax_fuser/_trace.py for arithmetic that is more than one op of its own, and for casts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_fuser._ffi import known_dtype_name

if TYPE_CHECKING:
    from jax_fuser._trace_writer import Writer

Ids = list[int]
Equation = Any


def integer_pow(w: Writer, eqn: Equation, x: Ids) -> Ids:
    power, aval = eqn.params["y"], eqn.outvars[0].aval
    if power == 0:
        return [w.full(aval, 1)]
    base, left, product = x[0], abs(power), None
    while left:
        if left & 1:
            product = base if product is None else w.op("mul", [product, base], eqn)
        left >>= 1
        if left:
            base = w.op("mul", [base, base], eqn)
    assert product is not None
    return [product if power > 0 else w.op("div", [w.full(aval, 1), product], eqn)]


def power(w: Writer, eqn: Equation, x: Ids) -> Ids:
    # An integer exponent is converted first, as JAX does.
    return [w.op("pow", [x[0], w.builder.convert(x[1], known_dtype_name(eqn.outvars[0].aval.dtype))], eqn)]


def one_minus_square(w: Writer, eqn: Equation, x: Ids) -> Ids:
    one = w.full(eqn.outvars[0].aval, 1)
    return [w.op("mul", [w.op("add", [one, *x], eqn), w.op("sub", [one, *x], eqn)], eqn)]


def polynomial(w: Writer, eqn: Equation, x: Ids) -> Ids:
    variable, *coefficients = x
    total = coefficients.pop()
    for c in reversed(coefficients):
        total = w.op("add", [w.op("mul", [total, variable], eqn), c], eqn)
    return [total]


def round_(w: Writer, eqn: Equation, x: Ids) -> Ids:
    return [w.op("round_away" if int(eqn.params["rounding_method"]) == 0 else "round_even", x, eqn)]


def select_n(w: Writer, eqn: Equation, x: Ids) -> Ids:
    which, result, *cases = x
    aval = eqn.invars[0].aval
    if aval.dtype == np.bool_:
        return [w.op("select", [which, *reversed(cases), result], eqn)] if cases else [result]
    for i, case in enumerate(cases, 1):
        bound = w.full(eqn.outvars[0].aval.update(dtype=aval.dtype), i)
        result = w.op("select", [w.op("ge", [which, bound], eqn), case, result], eqn)
    return [result]


def convert(w: Writer, eqn: Equation, x: Ids) -> Ids:
    to = eqn.params["new_dtype"]
    if x[0] in w.known and not np.issubdtype(to, np.integer):
        return [w.constant(to, w.known[x[0]])]
    return [w.builder.convert(x[0], known_dtype_name(eqn.params["new_dtype"]), w.label(eqn))]


def refuse_convert(eqn: Equation) -> str | None:
    old, new = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    # Lanes of 8-bit floats are f32, which would round first.
    return f"rounds {old} to {new}" if old == np.float64 and "float8" in str(new) else None


def widens(eqn: Equation) -> bool:
    return eqn.outvars[0].aval.dtype.itemsize >= eqn.invars[0].aval.dtype.itemsize


def bitcast(w: Writer, eqn: Equation, x: Ids) -> Ids:
    return [w.builder.bitcast(x[0], known_dtype_name(eqn.params["new_dtype"]), w.label(eqn))]


def refuse_bitcast(eqn: Equation) -> str | None:
    old, new = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    if np.bool_ in (old, new) or old.itemsize != new.itemsize:
        return f"changes the width of an element, {old} to {new}"
    return None


def refuse_clamp(eqn: Equation) -> str | None:
    return "clamps booleans" if eqn.outvars[0].aval.dtype == np.bool_ else None


def keeps_precision(eqn: Equation) -> bool:
    exponent, mantissa = _float_bits(eqn.outvars[0].aval.dtype)
    return bool(eqn.params["exponent_bits"] >= exponent and eqn.params["mantissa_bits"] >= mantissa)


def reduce_precision(w: Writer, eqn: Equation, x: Ids) -> Ids:
    if keeps_precision(eqn):
        return x
    aval = eqn.outvars[0].aval
    dtype = known_dtype_name(aval.dtype)
    own_exponent, own_mantissa = _float_bits(aval.dtype)
    unsigned = np.dtype(f"uint{8 * aval.dtype.itemsize}")

    def full(value: int) -> int:
        return w.full(aval.update(dtype=unsigned), value)

    value = w.rounded(x[0], aval.dtype)
    bits = w.builder.bitcast(value, known_dtype_name(unsigned), w.label(eqn))
    gone = own_mantissa - eqn.params["mantissa_bits"]
    if gone > 0:
        # To the nearest, ties to even.
        odd = w.op("and_", [w.op("shift_right_logical", [bits, full(gone)], eqn), full(1)], eqn)
        up = w.op("add", [odd, full((1 << gone >> 1) - 1)], eqn)
        mask = (1 << 8 * unsigned.itemsize) - (1 << gone)
        bits = w.op("and_", [w.op("add", [bits, up], eqn), full(mask)], eqn)
    if eqn.params["exponent_bits"] < own_exponent:
        # What is too large becomes infinite, what is too small zero.
        infinite, sign = ((1 << own_exponent) - 1) << own_mantissa, 1 << 8 * unsigned.itemsize - 1
        middle, most = (1 << own_exponent - 1) - 1, (1 << eqn.params["exponent_bits"] - 1) - 1
        exponent = w.op("and_", [bits, full(infinite)], eqn)
        zero = w.op("and_", [bits, full(sign)], eqn)
        is_large = w.op("gt", [exponent, full(middle + most << own_mantissa)], eqn)
        is_small = w.op("le", [exponent, full(middle - most << own_mantissa)], eqn)
        bits = w.op("select", [is_large, w.op("or_", [zero, full(infinite)], eqn), bits], eqn)
        bits = w.op("select", [is_small, zero, bits], eqn)
    result = w.builder.bitcast(bits, dtype, w.label(eqn))
    return [w.op("select", [w.op("ne", [value, value], eqn), value, result], eqn)]


def refuse_precision(eqn: Equation) -> str | None:
    return "rounds to no mantissa bit, which leaves no NaN" if eqn.params["mantissa_bits"] == 0 else None


def _float_bits(dtype: Any) -> tuple[int, int]:
    return {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23), "float64": (11, 52)}[str(dtype)]


def grouped_product(w: Writer, eqn: Equation, x: Ids) -> Ids:
    p, out = eqn.params, eqn.outvars[0].aval
    how = p["transpose_rhs"], known_dtype_name(out.dtype), out.shape[-1], w.label(eqn)
    return [w.builder.grouped_product(p["mode"], x, *how, leaves_padding=p["leaves_padding"])]


def refuse_product(eqn: Equation) -> str | None:
    # Only products that some kernel ends with what follows them are worth being parts of a fusion.
    lhs, rhs = (v.aval for v in eqn.invars[:2])
    if eqn.params["mode"] == "batch":
        return "a grouped product that has a ragged batch axis"
    if eqn.params["mode"] == "contraction" and lhs.dtype.itemsize != 2:
        return f"a grouped product that sums over the rows of groups of {lhs.dtype}"
    if eqn.params["mode"] == "contraction" and (lhs.shape[1] % 8 or rhs.shape[1] % 8):
        return (
            "a grouped product that sums over the rows of groups, "
            f"of {lhs.shape[1]} and {rhs.shape[1]} columns, which are not both multiples of 8"
        )
    for aval in (lhs, rhs, eqn.outvars[0].aval):
        if str(aval.dtype) not in ("bfloat16", "float16", "float32"):
            return f"a grouped product of {aval.dtype}"
    if not all(math.prod(v.aval.shape) for v in eqn.invars):
        return "a grouped product without elements"
    return None

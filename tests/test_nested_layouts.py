"""Folds, norms and moves of nested tensors of every layout and dtype against a loop over groups in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_nested_reduce import EMPTY, NORMALISATIONS, REDUCTIONS, reference
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import nested

# Storage up to its rows, extents, first rows where storage has gaps; dense dimensions and dtype.
CASES = {
    "no groups": ((5,), [], None, (3,), "float32"),
    "no groups, no rows": ((0,), [], None, (), "bfloat16"),
    "no rows": ((0,), [0, 0], None, (3,), "int32"),
    "no columns": ((7,), [3, 0, 2], None, (0,), "float32"),
    "no columns of integers": ((7,), [3, 0, 2], None, (2, 0), "int8"),
    "one empty group": ((3,), [0], None, (2,), "float16"),
    "one group": ((7,), [7], None, (), "float64"),
    "several empty": ((11,), [0, 3, 0, 0, 5, 0], None, (2, 2), "bfloat16"),
    "booleans": ((9,), [3, 0, 4], None, (3,), "bool"),
    "integers": ((9,), [3, 0, 4], None, (3,), "uint8"),
    "gaps": ((13,), [3, 0, 2, 1], [7, 2, 0, 11], (3,), "float16"),
    "outer": ((2, 9), [[2, 0, 4], [0, 0, 9]], None, (3,), "float32"),
    "outer, shared": ((2, 9), [2, 0, 4], None, (), "float64"),
    "outer, gaps": ((2, 9), [[2, 0, 3], [1, 2, 1]], [[6, 0, 1], [0, 3, 8]], (2,), "bfloat16"),
    "two outer": ((2, 3, 6), [[[1, 2], [0, 0], [6, 0]], [[0, 5], [2, 2], [3, 1]]], None, (3,), "float32"),
    "two outer, shared": ((2, 3, 6), [4, 1], None, (), "int32"),
    "no outer": ((0, 6), np.zeros((0, 2), int), None, (3,), "float32"),
}


class Case:
    """A nested tensor whose padding is NaN, or large, and the rows of each group in NumPy, by outer index."""

    def __init__(self, name):
        lead, extents, starts, dense, dtype = CASES[name]
        self.outer, self.dense, self.dim = lead[:-1], dense, len(lead) - 1
        self.extents = np.asarray(extents, np.int32)
        own = np.broadcast_to(self.extents, (*self.outer, self.extents.shape[-1]))
        places = np.cumsum(own, -1) - own if starts is None else np.broadcast_to(starts, own.shape)
        whole = np.random.default_rng(0).uniform(0.5, 1.5, (*lead, *dense))
        whole = np.round(2 * whole) - (dtype == "bool") if np.dtype(dtype).kind in "iub" else whole
        whole = whole.astype(jnp.dtype(dtype))
        data = np.full_like(whole, np.nan if jnp.issubdtype(dtype, jnp.inexact) else 1 if dtype == "bool" else 99)
        self.spans = {o: [slice(s, s + n) for s, n in zip(places[o], own[o])] for o in np.ndindex(*self.outer)}
        for o, spans in self.spans.items():
            for span in spans:
                data[o][span] = whole[o][span]
        self.longest = int(own.max(initial=0))
        self.parts = {o: [data[o][span] for span in spans] for o, spans in self.spans.items()}
        first = None if starts is None else jnp.asarray(starts, jnp.int32)
        self.nt, self.data = jf.NestedTensor(jnp.asarray(data), jnp.asarray(self.extents), first, self.dim), data

    def each(self, f, shape=()):
        """Return `f` of the groups' rows for each outer index, stacked; `shape` is that of one where there is none."""
        found = [f(parts) for parts in self.parts.values()]
        return np.reshape(found, (*self.outer, *(np.shape(found[0]) if found else shape)))

    def stored(self, parts, columns):
        """Return rows of groups, by outer index, in storage; zero elsewhere."""
        out = np.zeros((*self.data.shape[: self.dim + 1], *columns))
        for o, spans in self.spans.items():
            for span, part in zip(spans, parts[o]):
                out[o][span] = part
        return out


def together(parts, dense):
    return np.concatenate([np.zeros((0, *dense)), *(np.float64(p) for p in parts)])


def right(case, f, axis):
    """Return a fold or a norm in float64; of nothing a fold has the value that the dtype has for it."""
    dtype, groups = case.data.dtype, case.extents.shape[-1]

    def one(x, at):
        if x.shape[at] == 0 and f in ("max", "min") and dtype.kind in "iub":
            bounds = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            return np.full(np.delete(x.shape, at), float(bounds[f == "min"]))
        return reference(f, np.float64(x), at)

    if axis == "ragged" and f in EMPTY:
        shape = (groups, *case.dense)
        return case.each(lambda parts: np.reshape([one(p, 0) for p in parts], shape), shape)
    if axis == "group" and f in EMPTY:
        return case.each(lambda parts: one(together(parts, case.dense), 0), case.dense)
    if axis == "group":
        ends = {o: np.cumsum([len(p) for p in parts])[:-1] for o, parts in case.parts.items()}
        rows = {o: one(together(parts, case.dense), 0) for o, parts in case.parts.items()}
        return case.stored({o: np.split(r, ends[o]) if groups else [] for o, r in rows.items()}, case.dense)
    at = 0 if axis == "ragged" else len(case.dense)
    columns = case.dense[:-1] if f in EMPTY else case.dense
    return case.stored({o: [one(p, at) for p in own] for o, own in case.parts.items()}, columns)


@pytest.mark.parametrize("name", CASES)
def test_folds_and_norms(name):
    with jax.enable_x64(CASES[name][-1] == "float64"):
        case = Case(name)
        axes = ["ragged", "group", *([-1] if case.dense else [])]
        all_of = {f"{f} {axis}": (f, axis) for f in REDUCTIONS + NORMALISATIONS for axis in axes}
        got = jax.jit(lambda nt: {key: getattr(nested, f)(nt, axis) for key, (f, axis) in all_of.items()})(case.nt)
    for key, of in all_of.items():
        want, result = right(case, *of), getattr(got[key], "data", got[key])
        finite = np.isfinite(want)
        np.testing.assert_array_equal(np.float64(result)[~finite], want[~finite], err_msg=key)
        # Rows of equal integers differ from their mean by its rounding, which eps alone divides.
        scale = 8 if case.data.dtype.kind in "iub" else 2
        assert_close(np.where(finite, result, 0).astype(result.dtype), np.where(finite, want, 0), scale=scale)


def padded(case, length, fill=0, parts=None):
    """Return each group's rows in a block of `length`."""
    dense = case.dense
    out = np.full((*case.outer, case.extents.shape[-1], length, *dense), fill, case.data.dtype)
    for o, own in (parts or case.parts).items():
        for g, part in enumerate(own):
            out[o][g][: len(part)] = part[:length]
    return out


@pytest.mark.parametrize("name", CASES)
def test_moves(name):
    with jax.enable_x64(CASES[name][-1] == "float64"):
        case = Case(name)
        dim, length, groups = case.dim, case.longest, case.extents.shape[-1]

        def moves(nt):
            yield nested.to_padded(nt, length + 1, fill=1), padded(case, length + 1, 1)
            yield nested.to_padded(nested.align(nt, 3), length), padded(case, length)
            twice = {o: [np.concatenate([p, p]) for p in own] for o, own in case.parts.items()}
            joined = nested.concat([nt, nt], "ragged")
            yield nested.to_padded(joined, 2 * length), padded(case, 2 * length, parts=twice)
            joined = nested.concat([nt, nt], "group")
            yield nested.to_padded(joined, length), np.concatenate([padded(case, length)] * 2, dim)
            yield nested.split(nt, "ragged", 2, blocks=True).extents, -(-case.extents // 2)
            if groups:
                yield nested.select(nt, groups - 1, length), padded(case, length)[(*[slice(None)] * dim, groups - 1)]
            if case.dense:
                merged = nested.to_padded(nested.merge(nt, dim + 1, dim + 2), length * case.dense[0])
                yield merged, padded(case, length).reshape(merged.shape)
            if case.extents.ndim > 1:
                merged = nested.merge(nt, dim - 1, dim + 1)
                yield merged.extents, case.extents.sum(-2)

        want = []

        def run(nt):
            got, known = zip(*moves(nt), strict=True)
            want.extend(known)
            return got

        for one, right in zip(jax.jit(run)(case.nt), want, strict=True):
            np.testing.assert_array_equal(one, right)

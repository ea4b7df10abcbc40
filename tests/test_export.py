"""`jax.export`: programs that another process runs, our pytrees in their signatures, sizes that are not known yet."""

import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jax_fuser as jf
from jax_fuser import _core

ALLOWED = [export.DisabledSafetyCheck.custom_call("jax_fuser.program")]
X = jax.random.normal(jax.random.key(0), (12, 32))
W = jax.random.normal(jax.random.key(1), (3, 32, 16))
SIZES = jnp.array([5, 0, 6], jnp.int32)
LOGITS = X[:, :4]
ROWS = jf.as_nested(X, extents=SIZES)
WEIGHTS = jf.repack_weights(jf.quantize(jnp.swapaxes(W, 1, 2), "int4"))


def everything(nt, w, weights, logits):
    rows = jf.nested.softmax(jf.grouped_matmul(nt, w, activation="gelu"))
    scale, experts, aux = jf.moe.route(logits, 2)
    sorted_rows, state = jf.moe.dispatch(nt.data, experts, num_experts=4)
    grads = jax.grad(lambda w: jf.fuse(jnp.tanh)(jf.ragged_dot(nt.data, w, nt.extents)).sum())(w)
    w13, w2 = jnp.concatenate([w, w[:1]]), jnp.swapaxes(jnp.concatenate([w, w[:1]]), 1, 2)[:, :8]
    layer = jf.moe.mlp(nt.data, experts, scale, w13, w2)
    scaled = jf.scaled_grouped_matmul(
        jf.nested.map(lambda x: x.astype("bfloat16"), nt), weights, preferred_element_type="float32"
    )
    return rows, aux, sorted_rows, state, state.stats(), grads, layer, scaled, jf.quantize(nt.data, "mxfp8")


RUN = """
import json, sys
import jax, numpy as np
from jax import export
import jax_fuser as jf
loaded = export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
given = np.load(sys.argv[2])
leaves = [given[name] for name in sorted(given.files)]
out = loaded.call(*jax.tree.unflatten(loaded.in_tree, leaves)[0])
sums = [float(np.asarray(x, np.float32).sum()) for x in jax.tree.leaves(out)]
print(json.dumps([str(loaded.platforms), repr(out[0]), *sums]))
"""


def test_another_process_runs_what_was_exported(tmp_path):
    """It needs nothing but the artefact and `import jax_fuser`."""
    pytest.importorskip("flatbuffers")
    args = (ROWS, W, WEIGHTS, LOGITS)
    exported = export.export(jax.jit(everything), platforms=["cpu", "cuda"], disabled_checks=ALLOWED)(*args)
    (tmp_path / "program").write_bytes(exported.serialize())
    leaves = jax.tree.leaves(args)
    np.savez(tmp_path / "args.npz", **{f"{i:02}": np.asarray(x) for i, x in enumerate(leaves)})
    run = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "program"), str(tmp_path / "args.npz")],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert run.returncode == 0, run.stderr
    platforms, rows, *sums = json.loads(run.stdout.splitlines()[-1])
    want = everything(*args)
    assert platforms == "('cpu', 'cuda')" and rows == repr(want[0])
    wanted = [float(np.asarray(x, np.float32).sum()) for x in jax.tree.leaves(want)]
    np.testing.assert_allclose(sums, wanted, rtol=1e-4, atol=1e-3)


def test_products_with_tails_have_no_other_custom_call():
    """Forward and backward, of weights of four bits, 8-bit floats and 16-bit ones."""
    pytest.importorskip("flatbuffers")
    tail = {"activation": "swiglu", "row_scale": jnp.arange(12.0), "bias": jnp.ones((3, 16))}

    def products(x, w, weights, sizes):
        return (
            jf.scaled_grouped_matmul(x, weights, sizes, **tail),
            jf.scaled_grouped_matmul(x, w, sizes, format="fp8_row", transpose_rhs=False, **tail),
            jf.grouped_matmul(x, w, sizes, **tail),
        )

    def both(x, w, *others):
        loss = lambda x, w: sum(out.astype(jnp.float32).sum() for out in products(x, w, *others))  # noqa: E731
        return products(x, w, *others), jax.grad(loss, (0, 1))(x, w)

    args = (X.astype("bfloat16"), W.astype("bfloat16"), WEIGHTS, SIZES)
    exported = export.export(jax.jit(both), platforms=["cpu", "cuda"], disabled_checks=ALLOWED)(*args)
    with pytest.raises(ValueError, match="custom calls whose targets have no compatibility guarantees"):
        export.export(jax.jit(products))(*args)
    got = export.deserialize(bytearray(exported.serialize())).call(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(both)(*args))):
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))


def symbolic(*arrays):
    """The types of arrays with 12 rows, as ones of `m` rows."""
    scope = export.SymbolicScope()

    def one(x):
        sizes = ", ".join("m" if size == 12 else str(size) for size in x.shape)
        return jax.ShapeDtypeStruct(export.symbolic_shape(sizes, scope=scope), x.dtype)

    return jax.tree.map(one, arrays)


IDS = jnp.zeros(12, jnp.int32)


@pytest.mark.parametrize(
    ("name", "array", "f", "args"),
    [
        ("grouped_matmul", "lhs", jf.grouped_matmul, (X, W, SIZES)),
        ("grouped_matmul", "lhs", jf.grouped_matmul, (ROWS, W)),
        ("ragged_dot", "lhs", jf.ragged_dot, (X, W, SIZES)),
        ("scaled_grouped_matmul", "lhs", jf.scaled_grouped_matmul, (X, WEIGHTS, SIZES)),
        ("scaled_grouped_matmul", "lhs", jf.scaled_grouped_matmul, (ROWS, WEIGHTS)),
        ("as_nested", "data", lambda x, extents: jf.as_nested(x, extents=extents), (X, SIZES)),
        ("from_segment_ids", "data", lambda x, ids: jf.nested.from_segment_ids(x, ids, 2), (X, IDS)),
        ("sort_by_group", "x", lambda x, ids: jf.nested.sort_by_group(x, ids, 2), (X, IDS)),
        ("from_padded", "padded", jf.nested.from_padded, (X, IDS)),
        ("add", "data", lambda nt: nt + 1, (ROWS,)),
        ("softmax", "data", jf.nested.softmax, (ROWS,)),
        ("to_padded", "data", lambda nt: jf.nested.to_padded(nt, 3), (ROWS,)),
        ("as_flattened", "data", jf.as_flattened, (ROWS,)),
        ("route", "logits", lambda logits: jf.moe.route(logits, 2), (LOGITS,)),
        ("dispatch", "x", lambda x, ids: jf.moe.dispatch(x, ids, num_experts=2), (X, IDS)),
        ("mlp", "x", jf.moe.mlp, (X, IDS[:, None], X[:, :1], W, W)),
        ("fuse: tanh", "argument 0", jf.fuse(jnp.tanh, name="tanh", schedule=lambda s: None), (X,)),
    ],
)
def test_symbolic_sizes_are_refused_by_name(name, array, f, args):
    with pytest.raises(
        jf.UserError, match=rf"^{name}: {array} has the shape \(m.*is symbolic; export the function for"
    ):
        export.export(jax.jit(f), disabled_checks=ALLOWED)(*symbolic(*args))


def test_fuse_leaves_symbolic_sizes_to_xla():
    """What has none keeps its kernel, and derivatives and batches follow."""
    pytest.importorskip("flatbuffers")

    @jf.fuse
    def layer(x, w):
        y = jax.nn.gelu(x @ jax.nn.softmax(w, axis=-1))
        return jax.nn.softmax(y, axis=-1) * jax.random.bernoulli(jax.random.key(0), 0.5, y.shape)

    def f(x, w):
        return jax.vmap(layer, (0, None))(x, w), jax.grad(lambda x: layer(x[0], w).sum())(x)

    x, w = jnp.stack([X, X + 1]), W[0]
    shapes = symbolic(x, w)
    with pytest.warns(RuntimeWarning, match=r"fuse: layer: argument 0 .*\(m, 32\).* runs as plain XLA ops"):
        exported = export.export(jax.jit(f), disabled_checks=ALLOWED)(*shapes)
    assert "jax_fuser.program" in exported.mlir_module()
    for got, want in zip(export.deserialize(bytearray(exported.serialize())).call(x, w), f(x, w)):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    with pytest.warns(RuntimeWarning):
        assert "has the size m, which only a call of the exported program knows" in str(
            jf.explain(layer)(*symbolic(X, w))
        )


ROWS_16 = X.astype("bfloat16")


@pytest.mark.parametrize(
    ("name", "f", "args"),
    [
        ("packed_matmul", jf.scaled_grouped_matmul, (ROWS_16, WEIGHTS, SIZES)),
        (
            "scaled_grouped_matmul",
            lambda x, w, sizes: jf.scaled_grouped_matmul(x, w, sizes, format="fp8_row", transpose_rhs=False),
            (ROWS_16, W, SIZES),
        ),
    ],
)
def test_other_gpus_say_what_was_exported_and_what_they_are(name, f, args):
    exported = export.export(jax.jit(f), platforms=["cuda"], disabled_checks=ALLOWED)(*args)
    hopper = _core.cuda_target_for(90)
    found = [p for p, _ in programs_of(exported.mlir_module()) if f"fusion {name}(" in p]
    assert found
    for program in found:
        _core.check_exported(program, hopper, hopper.replace("multiprocessors=132", "multiprocessors=78"))
        with pytest.raises(
            jf.UserError,
            match=rf"\[instantiate\] {name} was exported for a GPU of compute capability 9.0 with 132 multiprocessors, "
            "here is a GPU of compute capability 8.9 with .* export again on a machine with such a GPU, .* reason: ",
        ):
            _core.check_exported(program, hopper, _core.cuda_target_for(89))


GPUS = [(80, 108), (86, 16), (89, 60), (90, 132), (90, 78), (90, 16), (100, 148), (103, 160), (120, 188)]
S = jax.ShapeDtypeStruct


def layer_norm(x, scale):
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, -1, keepdims=True)
    return ((wide - mean) * jax.lax.rsqrt(jnp.var(wide, -1, keepdims=True) + 1e-5) * scale).astype(x.dtype)


def slopes(x, scale):
    return jax.vjp(jf.fuse(layer_norm), x, scale)[1](x)


@pytest.mark.parametrize(
    ("f", "args"),
    [
        *((jf.fuse(lambda x: x.sum(0)), [S(shape, dtype)]) for dtype in ("float32", "bfloat16")
          for shape in ((8192, 4096), (2048, 704), (2048, 7360), (2048, 6400), (16384, 1024), (65536, 96))),
        *((slopes, [S(shape, "bfloat16"), S(shape[1:], "float32")]) for shape in ((8192, 4096), (2048, 1537))),
        (jf.fuse(lambda x: jax.nn.softmax(x)), [S((64, 100000), "float32")]),
        (jf.fuse(lambda x: jnp.cumsum(x, 1)), [S((4, 300000), "float32")]),
        (lambda nt: jf.nested.softmax(nt), [jf.NestedTensor(S((65536, 2048), "bfloat16"), S((128,), "int32"))]),
    ],
)  # fmt: skip
def test_what_is_exported_brings_room_for_any_gpu(f, args):
    """Of any capability and of any number of multiprocessors."""

    def gpu(capability, multiprocessors):
        return re.sub("multiprocessors=[0-9]+", f"multiprocessors={multiprocessors}", _core.cuda_target_for(capability))

    exported = export.export(jax.jit(f), platforms=["cuda"], disabled_checks=ALLOWED)(*args)
    found = programs_of(exported.mlir_module())
    assert found
    for program, _ in found:
        brought = {_core.workspace_bytes(program, gpu(*at), True) for at in GPUS}
        assert max(_core.workspace_bytes(program, gpu(*at), False) for at in GPUS) <= min(brought)


def programs_of(module):
    """The text and the target of every call of ours."""
    found = re.findall(r'program = "(.*?)", target = "(.*?)"', module)
    return [(text.replace("\\0A", "\n"), target) for text, target in found]


def test_other_platforms_say_what_was_exported():
    """JAX says so itself, where it is let."""
    checks = [*ALLOWED, export.DisabledSafetyCheck.platform()]
    exported = export.export(jax.jit(jf.grouped_matmul), platforms=["cuda"], disabled_checks=checks)(X, W, SIZES)
    message = r"exported for a GPU .* and runs on platform cpu; export again with platforms=\['cuda', 'cpu'\]"
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        exported.call(X, W, SIZES)

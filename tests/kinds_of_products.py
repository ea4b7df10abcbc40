"""One grouped product of each kind of kernel, with sizes for its groups; tests run them by themselves, in one program,
captured and from several threads."""

import jax
import jax.numpy as jnp
import numpy as np

import jax_fuser as jf

M, K, COLUMNS, FEW = 1400, 512, 1536, 8
SIZES = [300, 0, 513, 1, 400], [1, 700, 64, 635, 0], [0, 0, 0, 0, M]
SIZES_OF_FEW = [3, 0, 4, 0, 1], [0, FEW, 0, 0, 0], [1, 0, 1, 1, 1]
SUMS = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
BATCHES = jax.lax.RaggedDotDimensionNumbers((((2,), (1,)), ((0,), (0,))), [0], [])


def scaled(a, sizes):
    return jf.scaled_grouped_matmul(*a, sizes, validate=False)


def gathered(activation):
    return lambda a, sizes: jf.grouped_matmul(a[0], a[1], sizes, row_index=a[2], activation=activation)


# Of each: its function of arrays and sizes, the shapes of its arrays for n columns (integers where they are one axis
# alone), and the kernel of compute capability 9.0 that it takes.
KINDS = {
    "rows": (lambda a, sizes: jf.grouped_matmul(*a, sizes), lambda n: ((M, K), (5, K, n)), "rows: wgmma, .*queued"),
    "few rows": (
        lambda a, sizes: jf.grouped_matmul(*a, sizes),
        lambda n: ((FEW, 4096), (5, 4096, 256)),
        "rows: wgmma, .*split=8",
    ),
    "float32": (lambda a, sizes: jf.grouped_matmul(*a, sizes), lambda n: ((M, K), (5, K, n)), "rows: mma.sync"),
    "tail": (
        lambda a, sizes: jf.grouped_matmul(*a, sizes, activation="swiglu"),
        lambda n: ((M, K), (5, K, n)),
        "rows_fused: wgmma, .*queued",
    ),
    "sums over rows": (
        lambda a, sizes: jf.ragged_dot_general(*a, sizes, SUMS),
        lambda n: ((M, K), (M, n)),
        "contraction: wgmma",
    ),
    "batches": (
        lambda a, sizes: jf.ragged_dot_general(*a, sizes, BATCHES),
        lambda n: ((FEW, 40, K), (FEW, K, n)),
        "batch: mma.sync",
    ),
    "fp8_row": (scaled, lambda n: ((M, K), (5, n, K)), "rows_scaled: wgmma, .*queued"),
    "fp8_block": (scaled, lambda n: ((M, K), (5, n, K)), "rows_scaled: wgmma, .*tile=128x192"),
    "four bits": (scaled, lambda n: ((M, K), (5, 2 * n, K)), "four_bit: wgmma, mxfp4 .*queued"),
    "rows by number": (
        gathered("silu"),
        lambda n: ((93, K), (5, K, 256), (M,)),
        "gathered_rows_fused: wgmma, .*rows by number",
    ),
    "copied rows": (gathered(None), lambda n: ((93, K), (5, K, n), (M,)), "rows: wgmma, .*queued"),
    "quantized": (
        lambda a, sizes: jf.grouped_matmul(*a, sizes, output_format="fp8_block"),
        lambda n: ((M, K), (5, K, n)),
        "quantized_rows: wgmma, .*queued",
    ),
}


def make(kind, device, seed=0, n=None):
    """The function of arrays and sizes, its arrays, and sizes: all of a device; fewer columns on a CPU."""
    f, shapes_for, _ = KINDS[kind]
    shapes = shapes_for(n or (256 if device.platform == "cpu" else COLUMNS))
    rng = np.random.default_rng(seed)
    dtype = "float32" if kind == "float32" else "bfloat16"
    with jax.default_device(device):
        arrays = [
            jnp.asarray(rng.integers(0, 93, s), "int32") if len(s) == 1 else jnp.asarray(rng.normal(size=s), dtype)
            for s in shapes
        ]
        if kind.startswith("fp8"):
            block = (128, 128) if kind == "fp8_block" else None
            arrays = [jf.quantize(arrays[0], kind), jf.quantize(arrays[1], kind, block=block)]
        if kind == "four bits":
            arrays[1] = jf.repack_weights(jf.quantize(arrays[1], "mxfp4"))
        sizes = [jnp.asarray(s, "int32") for s in (SIZES_OF_FEW if shapes[0][0] == FEW else SIZES)]
        return f, *jax.device_put((arrays, sizes), device)


def assert_same_bits(got, want):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(*(np.asarray(a).view(np.uint8) for a in (one, other)))

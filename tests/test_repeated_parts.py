"""Values between steps of which many parts are read: stored where computing them again takes longer."""

import arrays
import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from tolerances import assert_close

import jax_fuser as jf


def sliced(u):
    return u[1:-1, 1:-1] + 0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])


def padded(u):
    p = jnp.pad(u, 1)
    return u + 0.1 * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u)


def rolled(u):
    return u + 0.1 * (jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) - 4 * u)


def steps(step, count):
    def f(u):
        for _ in range(count):
            u = step(u)
        return u

    return f


def moments(f):
    """Fields that many shifted results share."""
    rho = f.sum(0)
    u, v = (f[0] - f[1] + f[2]) / rho, (f[1] + f[2] - f[3]) / rho
    moved = [f[i] + rho * (u * i + v) - u * u * v for i in range(6)]
    return jnp.stack([jnp.roll(x, (i, -i), (0, 1)) for i, x in enumerate(moved, 1)])


def recurrence(a, b):
    return lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, b), axis=1)[1]


def kernels(f, *shapes, dtype="float32", platform="cuda"):
    args = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return jf.fuse(f).lower(*args).as_text("loops", platform=platform).count("\nkernel ")


@pytest.mark.parametrize(
    ("step", "counts"), [(sliced, (1, 1, 2)), (padded, (1, 1, 2)), (rolled, (1, 2, 3))], ids=["slices", "pads", "rolls"]
)
def test_kernels_of_steps(step, counts):
    for count, expected in enumerate(counts, 1):
        assert kernels(steps(step, count), (1024, 1024)) == expected
    # A kernel more costs more than computing little again.
    assert kernels(steps(step, 3), (256, 256)) == 1


def test_what_is_read_twice_is_computed_twice():
    def halves(x, cos, sin):
        x = jax.nn.gelu(x)
        a, b = jnp.split(x, 2, -1)
        return x * cos + jnp.concatenate([-b, a], -1) * sin

    assert kernels(halves, *[(4096, 256)] * 3) == 1


def test_fields_of_many_results_are_stored_and_what_is_little_beside_them_is_not():
    shape = jax.ShapeDtypeStruct((6, 1024, 1024), "float32")
    [region] = jf.explain(moments, platform="cuda")(shape).regions
    first, second = region.segments
    assert len(first.writes) <= 4  # rho, u and v, and one result
    assert second.bytes_read <= (6 + 3) * 4 * 2**20


def test_steps_of_a_scan_read_the_steps_before():
    """And not all elements again, as many as there are steps."""
    shapes = [jax.ShapeDtypeStruct((16, 1024, 1024), "float32")] * 2
    regions = jf.explain(recurrence, platform="cuda")(*shapes).regions
    moved = sum(r.count * (s.bytes_read + s.bytes_written) for r in regions for s in r.segments)
    assert moved < 7.5 * 3 * 2**26


@pytest.mark.parametrize("step", [sliced, padded, rolled])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values(step, dtype):
    x = np.asarray(arrays.array(523, 517)).astype(jnp.dtype(dtype))
    f = steps(step, 3)
    got = jf.fuse(f)(jnp.asarray(x))
    want = jax.jit(f)(jnp.asarray(x, jnp.float32))
    assert_close(got, want, dtype)


def test_values_of_fields_and_scans():
    f = arrays.array(6, 520, 519) ** 2 + 1
    assert_close(jf.fuse(moments)(f), jax.jit(moments)(f))
    a, b = arrays.array(3, 1027, 131) * 0.3, arrays.array(3, 1027, 131)
    want = np.zeros((3, 131))
    got = np.asarray(jf.fuse(recurrence)(a, b))
    for i in range(1027):
        want = np.asarray(a[:, i], np.float64) * want + np.asarray(b[:, i], np.float64)
        if i % 97 == 0 or i == 1026:
            assert_close(got[:, i], want)


def test_gradient():
    f = lambda u: (steps(rolled, 3)(u) ** 2).sum()  # noqa: E731
    x = arrays.array(520, 513)
    assert_close(jax.grad(jf.fuse(f))(x), jax.grad(f)(x))
    assert_close(jf.fuse(jax.grad(f))(x), jax.grad(f)(x))


def test_on_a_mesh():
    """Each device stores its own part."""
    f = jax.vmap(steps(rolled, 2))
    x = arrays.array(8, 512, 513)
    mesh = meshes.mesh(rows=4)
    there = jax.device_put(x, NamedSharding(mesh, PartitionSpec("rows")))
    assert_close(jax.jit(jf.fuse(f))(there), f(x))

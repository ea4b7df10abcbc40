"""Physics: stencils, particles, lattices (phys)."""

import jax.numpy as jnp
from jax import lax

from .cases import corner, integers, normal, positive, uniform

GRID, ODD_GRID = normal((8192, 8192), (33, 65)), normal((8191, 6143), (33, 65))


def neighbours(u):
    return jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1)


@corner("phys.laplace_roll", GRID, forward="bf16", vjp="f32")
def laplace_roll(u):
    return u + 0.1 * (neighbours(u) - 4 * u)


def inner_neighbours(u):
    return u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]


@corner("phys.laplace_pad", ODD_GRID, vjp="f32")
def laplace_pad(u):
    return u + 0.1 * (inner_neighbours(jnp.pad(u, 1)) - 4 * u)


@corner("phys.laplace_at_set", ODD_GRID, vjp="f32")
def laplace_at_set(u):
    return u.at[1:-1, 1:-1].add(0.1 * (inner_neighbours(u) - 4 * u[1:-1, 1:-1]))


@corner("phys.laplace3d_slice", normal((384, 385, 386), (9, 7, 11)), vjp="f32")
def laplace_3d(u):
    i = slice(1, -1)
    near = u[2:, i, i] + u[:-2, i, i] + u[i, 2:, i] + u[i, :-2, i] + u[i, i, 2:] + u[i, i, :-2]
    return near - 6 * u[i, i, i]


@corner("phys.upwind", GRID, GRID)
def upwind(u, v):
    return u - 0.1 * jnp.where(v > 0, v * (u - jnp.roll(u, 1, 1)), v * (jnp.roll(u, -1, 1) - u))


@corner("phys.gray_scott2", *[normal((4096, 4096), (33, 65))] * 2)
def gray_scott(u, v):
    for _ in range(2):
        uvv = u * v * v
        u, v = (
            u + 0.16 * (neighbours(u) - 4 * u) - uvv + 0.06 * (1 - u),
            v + 0.08 * (neighbours(v) - 4 * v) + uvv - 0.122 * v,
        )
    return u, v


@corner("phys.red_black", *[normal((6000, 6002), (32, 64))] * 2)
def red_black(u, b):
    place = lax.broadcasted_iota(jnp.int32, u.shape, 0) + lax.broadcasted_iota(jnp.int32, u.shape, 1)
    return jnp.where(place % 2 == 0, 0.25 * (neighbours(u) - b), u)


@corner("phys.life_u8", integers(0, 2, (16384, 8192), (33, 65), "u8"))
def life(c):
    n = sum(jnp.roll(c, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)
    return ((n == 3) | (c & (n == 2))).astype(jnp.uint8)


@corner("phys.lattice_boltzmann", positive((9, 2048, 2048), (9, 9, 7)))
def lattice_boltzmann(f):
    directions = list(zip((0, 1, 0, -1, 0, 1, -1, -1, 1), (0, 0, 1, 0, -1, 1, 1, -1, -1)))
    weights = (4 / 9, *[1 / 9] * 4, *[1 / 36] * 4)
    density = f.sum(0)
    ux, uy = (sum(d[axis] * f[i] for i, d in enumerate(directions)) / density for axis in (0, 1))
    moved = []
    for i, (cx, cy) in enumerate(directions):
        cu = 3 * (cx * ux + cy * uy)
        equilibrium = density * weights[i] * (1 + cu + 0.5 * cu * cu - 1.5 * (ux * ux + uy * uy))
        moved.append(jnp.roll(f[i] + 0.6 * (equilibrium - f[i]), (cx, cy), (0, 1)))
    return jnp.stack(moved)


@corner("phys.nbody", normal((16384, 3), (33, 3)), positive((16384,), (33,)))
def gravity(x, mass):
    d = x[None] - x[:, None]
    r = lax.rsqrt((d * d).sum(-1) + 1e-3)
    return (d * (mass[None] * r**3)[..., None]).sum(1)


@corner("phys.lennard_jones", uniform((64, 512, 3), (2, 9, 3)), vjp="f32")
def lennard_jones(x):
    d = x[:, :, None] - x[:, None]
    d = d - jnp.round(d)
    s = (0.01 / ((d * d).sum(-1) + jnp.eye(x.shape[1]))) ** 3
    return (4 * (s * s - s) * (1 - jnp.eye(x.shape[1]))).sum((1, 2)) / 2


@corner("phys.ising_energy", integers(-1, 2, (64, 1024, 1025), (3, 9, 7), "i8"))
def ising_energy(s):
    return -(s * (jnp.roll(s, 1, 1) + jnp.roll(s, 1, 2))).sum((1, 2))


@corner("phys.divergence_loss", normal((16, 1024, 1024, 2), (2, 9, 7, 2)), vag="f32")
def divergence_loss(u):
    dx = u[..., 0][:, 2:, 1:-1] - u[..., 0][:, :-2, 1:-1]
    return ((dx + u[..., 1][:, 1:-1, 2:] - u[..., 1][:, 1:-1, :-2]) ** 2).mean()

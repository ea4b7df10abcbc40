"""Reinforcement learning: policy losses, advantages, returns (rl)."""

import math

import jax.numpy as jnp
from jax import lax, nn

from .cases import booleans, corner, integers, normal, uniform

STEPS = ((128, 131072), (12, 33))
OF_STEPS = normal((2097152,), (99,))
GROUPS = ((256, 8, 4096), (3, 8, 9))
ATOMS = ((131072, 51), (33, 51))


@corner(
    "rl.ppo_discrete",
    *(normal((2097152, 18), (99, 18)), integers(0, 18, (2097152,), (99,)), OF_STEPS, OF_STEPS),
    vag="f32",
)
def ppo_discrete(logits, action, advantage, old):
    q = nn.log_softmax(logits, -1)
    ratio = jnp.exp(jnp.take_along_axis(q, action[:, None], -1)[:, 0] - old)
    policy = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean()
    return policy + 0.01 * (jnp.exp(q) * q).sum(-1).mean()


@corner("rl.gae_scan", normal(*STEPS), normal(*STEPS), uniform(*STEPS))
def gae_scan(reward, value, done):
    delta = reward + 0.99 * jnp.concatenate([value[1:], value[:1]]) * (1 - done) - value

    def step(a, x):
        a = x[0] + 0.99 * 0.95 * x[1] * a
        return a, a

    return lax.scan(step, jnp.zeros_like(reward[0]), (delta, 1 - done), reverse=True)[1]


@corner("rl.gae_cumsum", normal(*STEPS), normal(*STEPS))
def gae_cumsum(reward, value):
    w = (0.99 * 0.95) ** jnp.arange(reward.shape[0], dtype=jnp.float32)[:, None]
    delta = (reward + 0.99 * jnp.concatenate([value[1:], value[:1]]) - value) * w
    return lax.cumsum(delta, 0, reverse=True) / w


@corner("rl.returns_flip_cumsum", normal((65536, 513), (33, 513)))
def returns_flip_cumsum(r):
    return jnp.flip(jnp.cumsum(jnp.flip(r * 0.99 ** jnp.arange(r.shape[1]), 1), 1), 1)


@corner("rl.returns_assoc", normal((65536, 256), (33, 16)), uniform((65536, 256), (33, 16)))
def returns_assoc(r, discount):
    def step(a, b):
        return a[0] * b[0], b[1] + b[0] * a[1]

    return lax.associative_scan(step, (discount, r), reverse=True, axis=1)[1]


@corner("rl.ppo_clip", *[normal(*STEPS)] * 6, vag=("f32", 0, 3))
def ppo_clip(log_p, old, advantage, value, returns, old_value):
    ratio, a = jnp.exp(log_p - old), normalise(advantage)
    clipped = old_value + jnp.clip(value - old_value, -0.2, 0.2)
    policy = -jnp.minimum(ratio * a, jnp.clip(ratio, 0.8, 1.2) * a).mean()
    return policy + 0.5 * jnp.maximum((value - returns) ** 2, (clipped - returns) ** 2).mean()


@corner("rl.advantage_norm", normal((128, 262145), (12, 33)))
def normalise(a):
    return (a - a.mean()) / (a.std() + 1e-8)


@corner("rl.grpo", *[normal(*GROUPS)] * 3, normal((256, 8), (3, 8)), booleans(*GROUPS, p=0.9), vag="f32")
def grpo(log_p, old, reference, reward, mask):
    a = (reward - reward.mean(-1, keepdims=True)) / (reward.std(-1, keepdims=True) + 1e-4)
    ratio = jnp.exp(log_p - old)
    kl = jnp.exp(reference - log_p) - (reference - log_p) - 1
    o = jnp.minimum(ratio * a[..., None], jnp.clip(ratio, 0.8, 1.2) * a[..., None]) - 0.04 * kl
    return -((o * mask).sum(-1) / mask.sum(-1)).mean()


@corner("rl.nstep", normal(*STEPS), normal(*STEPS))
def nstep(r, v):
    return sum(0.99**i * r[i : r.shape[0] - 5 + i] for i in range(5)) + 0.99**5 * v[5:]


@corner("rl.c51_projection", uniform(*ATOMS), uniform(*ATOMS, low=-12.0, high=12.0))
def c51_projection(p, tz):
    z = jnp.linspace(-10, 10, 51)
    near = 1 - jnp.abs(jnp.clip(tz, -10, 10)[:, None, :] - z[None, :, None]) / 0.4
    return (jnp.clip(near, 0, 1) * p[:, None, :]).sum(-1)


@corner("rl.dueling_argmax", normal((1000003,), (99,)), normal((1000003, 18), (99, 18)))
def dueling_argmax(value, advantage):
    q = value[:, None] + advantage - advantage.mean(-1, keepdims=True)
    return q.argmax(-1), q.max(-1)


@corner("rl.normal_logp", *[normal((1000001, 17), (99, 17))] * 3, vjp=("f32", 1, 2))
def tanh_normal_log_probability(x, m, s):
    gauss = (-0.5 * ((x - m) / jnp.exp(s)) ** 2 - s - 0.9189).sum(-1)
    return gauss - (2 * (math.log(2) - x - nn.softplus(-2 * x))).sum(-1)

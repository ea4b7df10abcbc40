"""Train a small mixture-of-experts language model on the English text that ships with every Python.

A byte-level transformer whose feed-forward layers are 8 experts, 2 per token. No capacity, no dropped tokens: each
layer is route, dispatch, two grouped matmuls, combine. Runs on a laptop CPU in about two minutes.

    pip install 'jax-fuser[examples]'
    python examples/train_moe.py

At the end it repeats the first steps with `jax.lax.ragged_dot`, compares losses and step times, and draws both.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import jax_fuser as jf

Experts = Callable[[jf.NestedTensor, jax.Array, jax.Array], jf.NestedTensor]


@dataclass(frozen=True)
class Config:
    """Sizes of the model and of a batch."""

    layers: int = 2
    width: int = 128
    heads: int = 4
    experts: int = 8
    top_k: int = 2
    expert_width: int = 256
    length: int = 128
    batch: int = 16
    vocabulary: int = 256
    dtype: str = "float32"


def read_text() -> np.ndarray:
    """Return the help texts of Python as bytes, in a fixed order."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return np.frombuffer(text.encode("ascii", "ignore"), np.uint8)


def batches(text: np.ndarray, cfg: Config, seed: int) -> Callable[[], np.ndarray]:
    """Return a function that draws random windows, `(batch, length + 1)`."""
    rng = np.random.default_rng(seed)

    def draw() -> np.ndarray:
        first = rng.integers(0, len(text) - cfg.length - 1, cfg.batch)
        return text[first[:, None] + np.arange(cfg.length + 1)].astype(np.int32)

    return draw


def init(cfg: Config, key: jax.Array) -> dict[str, Any]:
    """Return float32 parameters."""

    def normal(*shape: int, scale: float) -> jax.Array:
        nonlocal key
        key, use = jax.random.split(key)
        return scale * jax.random.normal(use, shape)

    d, f, e = cfg.width, cfg.expert_width, cfg.experts
    depth = (2 * cfg.layers) ** -0.5
    layers = [
        {
            "norm1": jnp.ones(d),
            "qkv": normal(d, 3 * d, scale=d**-0.5),
            "proj": normal(d, d, scale=depth * d**-0.5),
            "norm2": jnp.ones(d),
            "router": normal(d, e, scale=d**-0.5),
            "w13": normal(e, d, 2 * f, scale=d**-0.5),
            "w2": normal(e, f, d, scale=depth * f**-0.5),
        }
        for _ in range(cfg.layers)
    ]
    return {
        "embed": normal(cfg.vocabulary, d, scale=0.02),
        "position": normal(cfg.length, d, scale=0.02),
        "layers": layers,
        "norm": jnp.ones(d),
        "head": normal(d, cfg.vocabulary, scale=d**-0.5),
    }


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Normalise the last axis."""
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * scale


def fused_experts(tokens: jf.NestedTensor, w13: jax.Array, w2: jax.Array) -> jf.NestedTensor:
    """Run the experts with jax_fuser: the activation belongs to the first product."""
    return jf.grouped_matmul(jf.grouped_matmul(tokens, w13, activation="swiglu"), w2)


def lax_experts(tokens: jf.NestedTensor, w13: jax.Array, w2: jax.Array) -> jf.NestedTensor:
    """Run the experts with `jax.lax.ragged_dot`, for comparison."""
    gate, up = jnp.split(jax.lax.ragged_dot(tokens.data, w13, tokens.extents), 2, axis=-1)
    return tokens.replace(data=jax.lax.ragged_dot(jax.nn.silu(gate) * up, w2, tokens.extents))


def moe_layer(cfg: Config, run_experts: Experts, p: dict[str, Any], x: jax.Array) -> tuple[jax.Array, jf.moe.Routing]:
    """Send each token, `(tokens, width)`, through its experts."""
    weights, chosen, routing = jf.moe.route(x @ p["router"], cfg.top_k)
    rows, state = jf.moe.dispatch(x, chosen, num_experts=cfg.experts)
    return jf.moe.combine(run_experts(rows, p["w13"], p["w2"]), state, weights), routing


def attention(cfg: Config, p: dict[str, Any], x: jax.Array) -> jax.Array:
    """Attend to earlier bytes."""
    q, k, v = (a.reshape(*x.shape[:2], cfg.heads, -1) for a in jnp.split(x @ p["qkv"], 3, axis=-1))
    return jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ p["proj"]


def forward(
    cfg: Config, run_experts: Experts, params: Any, tokens: jax.Array
) -> tuple[jax.Array, list[jf.moe.Routing]]:
    """Return logits `(batch, length, vocabulary)` and what each router did."""
    params = jax.tree.map(lambda a: a.astype(cfg.dtype), params)
    x = params["embed"][tokens] + params["position"][: tokens.shape[1]]
    routings = []
    for p in params["layers"]:
        x = x + attention(cfg, p, rms_norm(x, p["norm1"]))
        flat = rms_norm(x, p["norm2"]).reshape(-1, cfg.width)
        out, routing = moe_layer(cfg, run_experts, p, flat)
        x = x + out.reshape(x.shape)
        routings.append(routing)
    return (rms_norm(x, params["norm"]) @ params["head"]).astype(jnp.float32), routings


def loss_fn(params: Any, cfg: Config, run_experts: Experts, window: jax.Array) -> tuple[jax.Array, Any]:
    """Return what is minimised; and the cross entropy in nats per byte with the load of each expert."""
    logits, routings = forward(cfg, run_experts, params, window[:, :-1])
    entropy = optax.softmax_cross_entropy_with_integer_labels(logits, window[:, 1:]).mean()
    balance = sum(0.01 * r.load_balance + 0.001 * r.z_loss for r in routings)
    return entropy + balance, (entropy, jnp.stack([r.load for r in routings]))


def make_step(cfg: Config, run_experts: Experts, steps: int) -> tuple[Any, Any]:
    """Return the optimizer and the compiled training step."""
    rate = optax.warmup_cosine_decay_schedule(0.0, 3e-3, min(50, steps // 4), max(steps, 2), 3e-4)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95, weight_decay=0.01))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any, window: jax.Array) -> tuple[Any, Any, Any]:
        grads, seen = jax.grad(loss_fn, has_aux=True)(params, cfg, run_experts, window)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, seen

    return optimizer, step


@dataclass
class Run:
    """What training left behind."""

    params: Any
    losses: list[float]
    seconds: list[float]
    load: np.ndarray

    @property
    def step_time(self) -> float:
        """Median seconds of a step; the first one compiles."""
        return statistics.median(self.seconds[1:] or self.seconds)


def train(cfg: Config, run_experts: Experts, text: np.ndarray, count: int, steps: int, seed: int, name: str) -> Run:
    """Run the first `count` of `steps` steps, with a progress bar."""
    optimizer, step = make_step(cfg, run_experts, steps)
    params = init(cfg, jax.random.key(seed))
    state = optimizer.init(params)
    draw = batches(text, cfg, seed)
    run = Run(params, [], [], np.zeros((cfg.layers, cfg.experts), int))
    bar = tqdm(range(count), desc=name, unit="step", mininterval=0.5)
    for i in bar:
        started = time.perf_counter()
        params, state, (loss, load) = step(params, state, draw())
        run.losses.append(float(loss))
        run.seconds.append(time.perf_counter() - started)
        # The picture shows the load of the trained router: the last quarter.
        run.load += np.asarray(load) * (4 * (i + 1) > 3 * count)
        rate, worst = cfg.batch * cfg.length / run.seconds[-1], float(np.max(load / np.mean(load)))
        bar.set_postfix_str(f"loss {loss:.3f}, {rate:,.0f} tokens/s, max/mean load {worst:.2f}", refresh=False)
    run.params = params
    return run


@functools.partial(jax.jit, static_argnums=(0, 4))
def generate(cfg: Config, params: Any, prompt: jax.Array, key: jax.Array, count: int) -> jax.Array:
    """Return `count` bytes that follow a prompt of `length` bytes, sampled at temperature 0.7."""

    def next_byte(window: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = forward(cfg, fused_experts, params, window[None])[0][0, -1]
        byte = jax.random.categorical(key, logits / 0.7).astype(window.dtype)
        return jnp.append(window[1:], byte), byte

    return jax.lax.scan(next_byte, prompt, jax.random.split(key, count))[1]


def draw_picture(path: Path, ours: Run, peer: Run) -> None:
    """Write the loss curves and the load of each expert as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    left.plot(ours.losses, label=f"jax_fuser, {1e3 * ours.step_time:.0f} ms/step")
    left.plot(peer.losses, "--", label=f"jax.lax.ragged_dot, {1e3 * peer.step_time:.0f} ms/step")
    left.set(title="Training loss", xlabel="step", ylabel="nats per byte", ylim=(0, None))
    left.legend()
    share = ours.load / ours.load.sum(1, keepdims=True)
    for layer, values in enumerate(share):
        right.bar(np.arange(values.size) + 0.8 * layer / len(share), values, 0.8 / len(share), label=f"layer {layer}")
    right.axhline(1 / share.shape[1], color="gray", linewidth=1, label="even")
    right.set(title="Load per expert, last quarter", xlabel="expert", ylabel="share of tokens")
    right.margins(y=0.25)  # room for the legend
    right.legend(loc="upper right", ncols=3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(argv: list[str] | None = None) -> tuple[Run, Run]:
    """Train, compare, sample, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--out", type=Path, default=Path("train_moe.png"))
    parser.add_argument("--quick", action="store_true", help="a few steps of a smaller model, as in the tests")
    args = parser.parse_args(argv)
    if args.steps < 2:
        parser.error(f"--steps must be 2 or more, got {args.steps}")
    dtype = {"f32": "float32", "bf16": "bfloat16"}[args.dtype]
    cfg = Config(dtype=dtype)
    steps, compared, letters = args.steps, 20, 400
    if args.quick:
        cfg = Config(dtype=dtype, layers=1, width=32, expert_width=32, length=32, batch=8)
        steps, compared, letters = min(steps, 40), 5, 40
    compared = min(compared, steps)

    text = read_text()
    print(f"{len(text):,} bytes of text, {cfg}, on {jax.devices()[0].device_kind}")
    ours = train(cfg, fused_experts, text, steps, steps, args.seed, "jax_fuser")
    peer = train(cfg, lax_experts, text, compared, steps, args.seed, "jax.lax.ragged_dot")

    # Later a token that two experts suit alike may go to the other one, for its scores differ in their last bits.
    alike = min(compared, 5)
    difference = max(abs(a - b) for a, b in zip(ours.losses[:alike], peer.losses))
    tolerance = 2e-3 if args.dtype == "f32" else 5e-2
    print(f"loss {ours.losses[0]:.3f} -> {np.mean(ours.losses[-20:]):.3f}")
    print(f"first {alike} losses differ from jax.lax.ragged_dot by at most {difference:.1e}, {tolerance} is allowed")
    assert difference < tolerance, "both grouped products must train the same model"
    print(f"step: {1e3 * ours.step_time:.0f} ms with jax_fuser, {1e3 * peer.step_time:.0f} ms with jax.lax.ragged_dot")

    at = len(text) // 2
    prompt = text[at : at + cfg.length]
    written = np.asarray(generate(cfg, ours.params, jnp.asarray(prompt, jnp.int32), jax.random.key(args.seed), letters))
    print("prompt:", repr(bytes(prompt[-60:].tolist()).decode()))
    print("sample:", bytes(written.astype(np.uint8).tolist()).decode("ascii", "replace"), sep="\n")
    draw_picture(args.out, ours, peer)
    print(f"picture: {args.out.resolve()}")
    return ours, peer


if __name__ == "__main__":
    main()

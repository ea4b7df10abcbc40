"""Audio: frames, spectra, companding."""

import jax.numpy as jnp

from .cases import bits, booleans, corner, integers, normal, uniform

WAVES = normal((64, 480000), (2, 4000))
SPECTRA = normal((64, 1500, 201), (2, 9, 201), "c64")


@corner("audio.frame_index", WAVES)
def frame_index(x):
    count = (x.shape[-1] - 400) // 160 + 1
    return x[:, jnp.arange(count)[:, None] * 160 + jnp.arange(400)] * jnp.hanning(400).astype(x.dtype)


@corner("audio.frame_reshape", WAVES, vjp="f32")
def frame_reshape(x):
    c = x[:, : x.shape[1] // 160 * 160].reshape(x.shape[0], -1, 160)
    return jnp.concatenate([c[:, :-1], c[:, 1:]], -1) * jnp.hanning(320).astype(x.dtype)


@corner("audio.overlap_add", normal((64, 2000, 320), (2, 9, 320)))
def overlap_add(y):
    h = y.shape[-1] // 2
    z = jnp.zeros_like(y[:, :1, :h])
    return (jnp.concatenate([y[..., :h], z], 1) + jnp.concatenate([z, y[..., h:]], 1)).reshape(y.shape[0], -1)


@corner("audio.preemphasis", WAVES, forward="bf16", vjp="f32")
def preemphasis(x):
    return jnp.concatenate([x[:, :1], x[:, 1:] - 0.97 * x[:, :-1]], 1)


@corner("audio.power_db", SPECTRA)
def power_db(z):
    return 10 * jnp.log10(jnp.maximum(z.real**2 + z.imag**2, 1e-10))


corner("audio.abs_angle", SPECTRA)(lambda z: (jnp.abs(z), jnp.angle(z)))


@corner("audio.whisper_logmel", uniform((64, 80, 3000), (2, 80, 30)))
def log_mel(m):
    logs = jnp.log10(jnp.maximum(m, 1e-10))
    return (jnp.maximum(logs, logs.max((1, 2), keepdims=True) - 8) + 4) / 4


@corner("audio.mulaw_encode", uniform((64, 480000), (2, 999), low=-1.0))
def mulaw_encode(x):
    y = jnp.sign(x) * jnp.log1p(255 * jnp.abs(x)) / jnp.log1p(255.0)
    return jnp.floor((y + 1) / 2 * 255 + 0.5).astype(jnp.uint8)


@corner("audio.mulaw_decode", bits("u8", (128, 480000), (2, 999)))
def mulaw_decode(q):
    y = 2 * (q.astype(jnp.float32) / 255) - 1
    return jnp.sign(y) * (256.0 ** jnp.abs(y) - 1) / 255


@corner(
    "audio.spec_augment",
    *(normal((64, 80, 3000), (2, 80, 50)), integers(0, 70, (64,), (2,)), integers(0, (2900, 40), (64,), (2,))),
    forward="bf16",
)
def mask_spectra(x, band, time):
    bands, times = jnp.arange(x.shape[1])[None, :, None], jnp.arange(x.shape[2])[None, None]
    band, time = band[:, None, None], time[:, None, None]
    masked = (bands - band < 8) & (bands >= band) | (jnp.abs(times - time) < 20)
    return jnp.where(masked, x.mean((1, 2), keepdims=True), x)


@corner("audio.delta", normal((64, 80, 3001), (2, 80, 50)))
def delta(x):
    p = jnp.pad(x, ((0, 0), (0, 0), (2, 2)), mode="edge")
    n = x.shape[2]
    return sum(i * (p[..., 2 + i : 2 + i + n] - p[..., 2 - i : 2 - i + n]) for i in (1, 2)) / 10


@corner("audio.cmvn", normal((64, 3000, 80), (2, 33, 80)), booleans((64, 3000), (2, 33), p=0.8), forward="bf16")
def subtract_masked_mean(x, mask):
    mean = (x * mask[..., None]).sum(1, keepdims=True) / mask.sum(1)[:, None, None]
    return jnp.where(mask[..., None], (x - mean) * 2, 0)


@corner("audio.fm_synth", uniform((64, 480000), (2, 999)), normal((64, 480000), (2, 999)))
def synthesize(frequency, amplitude):
    return amplitude * jnp.sin(jnp.cumsum(frequency * 0.01, -1))

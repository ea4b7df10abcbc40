"""The patterns of fuse.py in torch.compile, where torch is installed."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import jax

from .measure import Contender

PEER = "torch.compile"


def contender(name: str, args: list[jax.Array], gpu: bool) -> list[Contender]:
    """Return torch.compile of the pattern on the same arrays, or nothing without torch on this device."""
    if importlib.util.find_spec("torch") is None:
        return []
    torch = importlib.import_module("torch")
    if gpu and not torch.cuda.is_available():
        return []
    arrays = [torch.from_dlpack(a) for a in args]
    compiled = torch.compile(functions(torch)[name], dynamic=False)

    def wait(result: Any) -> Any:
        if gpu:
            torch.cuda.synchronize()
        return result

    return [Contender(PEER, functools.partial(compiled, *arrays), wait)]


def functions(torch: Any) -> dict[str, Callable[..., Any]]:
    """Return the function of every pattern, as one would write it in torch."""
    f = torch.nn.functional

    def rms_norm(x: Any, g: Any) -> Any:
        y = x.float()
        return (y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-6) * g).to(x.dtype)

    def layer_norm(x: Any, g: Any, b: Any) -> Any:
        y = x.float()
        y = y - y.mean(-1, keepdim=True)
        return (y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-6) * g + b).to(x.dtype)

    def softmax(x: Any) -> Any:
        return torch.softmax(x.float(), -1).to(x.dtype)

    def swiglu(g: Any, u: Any) -> Any:
        return f.silu(g) * u

    def rotary(x: Any, angle: Any) -> Any:
        a, b = x.float().chunk(2, -1)
        c, s = angle.cos(), angle.sin()
        return torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)

    def backward(forward: Callable[..., Any], operands: int) -> Callable[..., Any]:
        return lambda *args: torch.func.vjp(forward, *args[:operands])[1](args[operands])

    def norm_backward(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, dy, *rest: torch.func.vjp(forward, x, *rest)[1](dy)

    return {
        "copy": lambda x: -x,
        "bias gelu": lambda x, b: f.gelu(x + b, approximate="tanh"),
        "swiglu": swiglu,
        "scaled residual": lambda x, y, s: x + y * s,
        "rms norm": rms_norm,
        "layer norm": layer_norm,
        "add rms norm": lambda x, y, g: (x + y, rms_norm(x + y, g)),
        "softmax": softmax,
        "cross entropy": lambda x, labels: f.cross_entropy(x.float(), labels.long(), reduction="none"),
        "column sum": lambda x: x.float().sum(0),
        "transpose": lambda x: (x.t() * 2).contiguous(),
        "rotary": rotary,
        "gelu backward": backward(lambda x: f.gelu(x, approximate="tanh"), 1),
        "swiglu backward": backward(swiglu, 2),
        "softmax backward": backward(softmax, 1),
        "rms norm backward": norm_backward(rms_norm),
        "layer norm backward": norm_backward(layer_norm),
    }

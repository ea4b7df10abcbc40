"""Numbers and a strategy's parameters in words, for reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_KEPT = {
    "nothing": "keeps nothing between passes",
    "dear": "keeps what is dear to compute between passes",
    "rows": "keeps the rows it reads",
}
_ALONG = {
    "row": "a block's threads along one row",
    "rows": "a block's threads along rows, one each",
    "columns": "a block's threads along columns",
    "runs": "a block's threads along runs of a row, which are folded by themselves, too",
}


# By name, what to say of a value; nothing where it is what one would expect, or where the launch says it.
_WORDS: dict[str, Callable[[str], str | None]] = {
    "lanes": lambda n: "one element at a time" if n == "1" else f"vectors of {n} elements",
    "lane_loop": lambda n: f"lanes along loop {n}",
    "collapse": lambda n: f"loops of {n.strip('[]').replace(',', ' and ')} axes",
    "chunk": lambda n: _several(n, "vectors side by side"),
    "keep": lambda n: _KEPT.get(n, f"keeps {n}"),
    "tasks": lambda _: None,
    "tile_loop": lambda n: None if n == "-1" else f"tiles along loop {n}",
    "tile": lambda n: _several(n, "iterations in a tile"),
    "along_rows": lambda _: "tiles that follow each other along rows",
    "vectors": lambda n: _several(n, "tiles side by side"),
    "along": lambda n: _ALONG.get(n, f"threads along {n}"),
    "threads": lambda _: None,
    "threads_y": lambda _: None,
    "unroll": lambda n: _several(n, "vectors a thread"),
    "runs": lambda n: _several(n, "runs a thread"),
    "two_axes": lambda _: "threads along the last loop alone",
    "transpose": lambda _: "through shared memory",
    "loop": lambda n: f"reads along loop {n}",
    "stages": lambda n: f"rows come ahead by bulk copies, in {n} stages of shared memory",
    "blocks": lambda _: None,
    "columns": lambda n: _several(n, "vectors of columns side by side"),
    "rows": lambda n: _several(n, "rows side by side"),
    "bulk_store": lambda _: "rows go by bulk copies",
    "keep_columns": lambda _: "columns stay in registers",
    "at_once": lambda n: _several(n, "blocks at once on a multiprocessor"),
    "keep_wide": lambda _: "what rows are converted to stays in registers",
    "cluster": lambda n: f"{n} blocks for each row",
}


def _several(n: str, what: str) -> str | None:
    return None if n == "1" else f"{n} {what}"


def parameters_in_words(parameters: str) -> str:
    """Return what a strategy's parameters ("cpu lane_loop=1 lanes=16") mean; those without a word stay as they are."""
    said = []
    for word in parameters.split()[1:]:
        name, _, value = word.partition("=")
        known = _WORDS.get("runs" if name == "unroll" and "along=runs" in parameters else name)
        phrase = word if known is None else known(value)
        said += [phrase] if phrase else []
    return ", ".join(said)


def size(count: float) -> str:
    """Return bytes in the largest unit that leaves a number above 1."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def operations(count: float) -> str:
    """Return a number of operations: 1.2 MFLOP."""
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "FLOP" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TFLOP"


def seconds(count: float) -> str:
    """Return a time in ms or us."""
    return f"{count * 1e3:.2f} ms" if count >= 1e-3 else f"{count * 1e6:.1f} us"


def array(dtype: str, shape: Sequence[int]) -> str:
    """Return a type: f32[4,6]."""
    return f"{dtype}[{','.join(map(str, shape))}]"

"""The training example runs, learns, agrees with `jax.lax.ragged_dot` and draws its picture."""

import importlib
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_train_moe(tmp_path, capsys, monkeypatch):
    for package in ("matplotlib", "optax", "tqdm"):
        pytest.importorskip(package)
    monkeypatch.syspath_prepend(EXAMPLES)
    picture = tmp_path / "loss.png"
    ours, peer = importlib.import_module("train_moe").main(["--quick", "--out", str(picture)])
    assert ours.losses[-1] < ours.losses[0] - 1.5
    assert len(peer.losses) == 5 and ours.load.sum() > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "losses differ from jax.lax.ragged_dot by at most" in printed and "sample:" in printed

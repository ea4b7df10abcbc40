"""The generated text of one fusion, for both dialects: same expressions, stable bytes.

`python tests/test_golden.py` writes the files anew; read the difference before committing it.
"""

import pathlib

import pytest

from jax_fuser import _core

FOLDER = pathlib.Path(__file__).parent / "golden"
TARGETS = {"cpu": "cpu isa=avx512 vector_bytes=64", "cuda": _core.cuda_target_for(90)}
PROGRAM = """fusion bias_silu(x: bf16[4096,1000], b: bf16[1000]) -> (t4, t5) {
  t2: bf16[b4096,1000] = broadcast(b) {dims=[1]}
  t3: bf16[4096,1000] = add(x, t2)  # add
  t4: bf16[4096,1000] = logistic(t3)  # silu/logistic
  t5: bf16[4096,1000] = mul(t3, t4)  # silu/mul
}
"""


def text(platform: str) -> str:
    stages = _core.stages(PROGRAM, TARGETS[platform])
    return "\n".join(f"--- {name}\n{stages[name]}" for name in ("segments", "schedule", "loops", "source", "host"))


@pytest.mark.parametrize("platform", TARGETS)
def test_every_stage_is_as_it_was(platform):
    assert text(platform) == (FOLDER / f"bias_silu.{platform}.txt").read_text()


if __name__ == "__main__":
    for name in TARGETS:
        (FOLDER / f"bias_silu.{name}.txt").write_text(text(name))

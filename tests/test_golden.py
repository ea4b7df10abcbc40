"""The generated text of a few fusions, for both dialects: same expressions, stable bytes.

`python tests/test_golden.py` writes the files anew; read the difference before committing it.
"""

import pathlib

import pytest

from jax_fuser import _core

FOLDER = pathlib.Path(__file__).parent / "golden"
TARGETS = {"cpu": "cpu isa=avx512 vector_bytes=64", "cuda": _core.cuda_target_for(90)}
PROGRAMS = {
    "bias_silu": """fusion bias_silu(x: bf16[4096,1000], b: bf16[1000]) -> (t4, t5) {
  t2: bf16[b4096,1000] = broadcast(b) {dims=[1]}
  t3: bf16[4096,1000] = add(x, t2)  # add
  t4: bf16[4096,1000] = logistic(t3)  # silu/logistic
  t5: bf16[4096,1000] = mul(t3, t4)  # silu/mul
}
""",
    "softmax": """fusion softmax(x: bf16[4096,1000]) -> (t8) {
  t1: f32[4096,1000] = convert(x)
  t2: f32[4096] = reduce_max(t1) {dims=[1]}
  t3: f32[4096,b1000] = broadcast(t2) {dims=[0]}
  t4: f32[4096,1000] = sub(t1, t3)
  t5: f32[4096,1000] = exp(t4)
  t6: f32[4096] = reduce_sum(t5) {dims=[1]}
  t7: f32[4096,b1000] = broadcast(t6) {dims=[0]}
  t8: f32[4096,1000] = div(t5, t7)
}
""",
    "transpose": """fusion transpose(x: bf16[4096,1000]) -> (t2) {
  t1: bf16[1000,4096] = transpose(x) {dims=[1,0]}
  t2: bf16[1000,4096] = neg(t1)
}
""",
}


def text(program: str, platform: str) -> str:
    stages = _core.stages(PROGRAMS[program], TARGETS[platform])
    return "\n".join(f"--- {name}\n{stages[name]}" for name in ("segments", "schedule", "loops", "source", "host"))


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("platform", TARGETS)
def test_every_stage_is_as_it_was(program, platform):
    assert text(program, platform) == (FOLDER / f"{program}.{platform}.txt").read_text()


if __name__ == "__main__":
    for name in PROGRAMS:
        for target in TARGETS:
            (FOLDER / f"{name}.{target}.txt").write_text(text(name, target))

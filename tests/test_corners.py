"""`python -m benchmarks corners`: its list builds, and it times, compares and draws. No GPU is needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import pytest

sys.path.append(str(Path(__file__).parent.parent))
from benchmarks import __main__ as benchmarks_main
from benchmarks.corners import summary, timing
from benchmarks.corners.cases import CORNERS, chosen, corner, normal

HANDFUL = "img.flip_ud_normalise,norm.layer_odd.f32.vjp,stat.std_all.bf16.vag,quant.row_absmax"


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "corners", "--scale", "small", *arguments])
    benchmarks_main.main()


def test_every_function_is_traced_with_its_operands():
    assert len(CORNERS) >= 400
    derived = {case.f for case in CORNERS.values() if case.argnums}  # their derivatives trace them, too
    for case in [c for c in CORNERS.values() if c.argnums or c.f not in derived]:
        results = jax.tree.leaves(jax.eval_shape(case.function(), *case.shapes("full")))
        assert results, case.name
    with pytest.raises(ValueError, match=r"two functions are called img\.gray\.f32"):
        corner("img.gray", normal((2, 3)))(lambda x: x)


def test_parts_are_the_whole():
    parts = [chosen("", (i, 7)) for i in range(1, 8)]
    assert sorted(c.name for part in parts for c in part) == sorted(CORNERS)
    assert {c.name.split(".")[0] for c in chosen("rl.,opt.")} == {"rl", "opt"}
    assert len(chosen("", quick=True)) < len(CORNERS) / 3


def test_a_handful_is_timed_compared_and_drawn(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(timing, "ROUNDS", 1)
    run(monkeypatch, "--only", HANDFUL, "--json", f"{tmp_path}/a.json", "--plot", f"{tmp_path}/a.png")
    told = capsys.readouterr().out
    assert "4 functions take" in told and "slowest: " in told and "WRONG" not in told
    with open(tmp_path / "a.json") as f:
        cases = json.load(f)["cases"]
    assert [c["name"] for c in cases] == [c.name for c in chosen(HANDFUL)]
    assert all(c["timings"][0]["error"] < 2e-2 and c["parameters"]["kernels"] > 0 for c in cases)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_values_are_told_and_are_the_exit_status(monkeypatch, capsys):
    monkeypatch.setattr(timing, "copy_rate", lambda size: 1e12)  # which is fused, too
    monkeypatch.setattr(timing.jf, "fuse", lambda f: lambda *operands: jax.tree.map(lambda x: x * 2, f(*operands)))
    monkeypatch.setattr(timing, "plan", lambda f, shapes: (1, ""))
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "--only", "norm.softmax_axis12")
    assert ended.value.code == 1
    assert "WRONG norm.softmax_axis12.f32: jax_fuser: wrong: result 0, float32: differs by 1" in capsys.readouterr().out


def test_what_fails_to_compile_is_told(monkeypatch, capsys):
    def fuse(f):
        raise TypeError("no")

    monkeypatch.setattr(timing, "copy_rate", lambda size: 1e12)  # which is fused, too
    monkeypatch.setattr(timing.jf, "fuse", lambda f: fuse)
    [case] = timing.cases(quick=True, only="norm.softmax_axis12", scale="small")
    assert summary.faults([case]) == ["norm.softmax_axis12.f32: jax_fuser: TypeError: no"]
    summary.print_line(case)
    assert "nan" in capsys.readouterr().out


def test_without_time_functions_are_left_out(monkeypatch, capsys):
    run(monkeypatch, "--only", "rl.nstep", "--budget", "0")
    assert "0 s are over; left out: rl.nstep.f32" in capsys.readouterr().out


def test_the_list_is_printed(monkeypatch, capsys):
    run(monkeypatch, "--list", "--only", "attn.kv_update.", "--scale", "full")
    told = capsys.readouterr().out.split(None, 1)
    assert told == ["attn.kv_update.f32", "float32[16, 4096, 8, 128], float32[16, 1, 8, 128], int32[]\n"]


@pytest.mark.parametrize("option", ["--list", "--part 1/2", "--budget 1", "--scale small"])
def test_other_benchmarks_have_no_such_options(option, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "grouped", *option.split()])
    with pytest.raises(SystemExit):
        benchmarks_main.main()
    assert "--list, --part, --budget and --scale go with corners" in capsys.readouterr().err

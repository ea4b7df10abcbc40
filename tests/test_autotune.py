"""Parameters of kernels by measurement: whatever is chosen computes the same, is kept, and is taken later."""

import concurrent.futures
import functools
import sys

import arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_cuda_sources import assert_no_spills
from test_tma import hopper_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _autotune, _core, _ffi, _tuned, _walk

SIZES = jnp.array([20, 0, 44], jnp.int32)


def norm(x, scale):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * scale


def norm_gradient(x, scale):
    return jax.grad(lambda x, scale: jnp.sum(jnp.sin(norm(x, scale))), (0, 1))(x, scale)


FUNCTIONS = {
    "pointwise": (lambda x: jnp.tanh(x) + 1, [(37, 48)]),
    "transpose": (lambda x: x.T * 2, [(70, 96)]),
    "norm": (norm, [(65, 96), (96,)]),
    "columns": (lambda x: jnp.exp(x).sum(0), [(200, 33)]),
    "norm's gradient": (norm_gradient, [(64, 768), (768,)]),
}


def call_of(name):
    f, shapes = FUNCTIONS[name]
    return f, tuple(arrays.array(*shape, scale=1.0) for shape in shapes)


def programs(f, args):
    """The programs of the fused function, each with a call of it."""
    for call in _autotune._calls(jf.fuse(f), args, {}):
        for program, target in _autotune._programs(call):
            yield call, program, target


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_FUSER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(_tuned, "_kept", {})
    return tmp_path / "cache" / "tuned"


def search_of(name):
    f, args = call_of(name)
    call, program, target = next(programs(f, args))
    return _autotune._Search(call, program, target, float("inf"), _autotune.ProgressLine("autotune", False), "1/1")


def test_every_copy_of_a_timed_call_runs(folder):
    search = search_of("norm")
    run = search._compiled({})
    before = jf.counters()["executed"]
    jax.block_until_ready(run())
    assert search._copies == 32 and jf.counters()["executed"] - before >= 32


def test_a_timing_is_of_many_short_runs(folder):
    """Of one, starting it would be most: 20 us kernels were told apart by that."""
    runs = []
    search_of("norm")._times("norm_0", [{}], {0: lambda: runs.append(0)})
    assert len(runs) == 1 + _autotune._ROUNDS * _autotune._MOST_RUNS


def test_parameters_that_change_no_kernel_are_not_tried(folder):
    """As those that it has, or columns kept in registers where threads are along columns."""
    search = search_of("norm")
    [(kernel, now, _)] = _core.alternatives(search._program, search._target)
    unlike = [{kernel: now}, {kernel: now}, {kernel: "tasks=2"}]
    assert list(search._runs(kernel, [{}, *unlike])) == [0, 3]


def check_all_alternatives(f, args):
    tried = 0
    for call, program, target in programs(f, args):
        with _tuned.trial(program, {}):
            expected = jax.jit(call.__call__)(*call.operands)
        for kernel, _, others in _core.alternatives(program, target):
            for other in others:
                choices = {kernel: other}
                try:
                    _core.workspace_bytes(program + _tuned.text_of(choices), target, at_once=True)
                except jf.UserError:
                    continue
                with _tuned.trial(program, choices):
                    got = jax.jit(call.__call__).lower(*call.operands).compile()(*call.operands)
                for one, truth in zip(got, expected):
                    assert_close(one, truth)
                tried += 1
    assert tried > 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_alternative_computes_the_same(name, device):
    check_all_alternatives(*call_of(name))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(64, 96), (8191, 5003), (512, 131072)])
def test_alternatives_for_cuda_are_refused_as_mistakes_of_the_caller_or_can_be_planned(shape, dtype):
    x = jax.ShapeDtypeStruct(shape, dtype)
    text = jf.fuse(norm_gradient).lower(x, jax.ShapeDtypeStruct(shape[1:], dtype)).as_text("fusion", platform="cuda")
    program = text.split("\n", 1)[1]
    target = _core.cuda_target_for(90)
    found = _core.alternatives(program, target)
    tuned = [program + _tuned.text_of({kernel: other}) for kernel, _, others in found for other in others]
    possible = [text for text in tuned if _ffi.why_no_kernel(functools.partial(str, text), target) is None]
    assert len(possible) > 2


def product_program(epilogue=None):
    x, w = jnp.ones((4096, 512), "bfloat16"), jnp.ones((8, 512, 1024), "bfloat16")
    sizes = jnp.full(8, 512, jnp.int32)
    call = functools.partial(jf.grouped_matmul, activation=epilogue)
    with _tuned.programs_seen() as seen:
        jax.jit(call).trace(x, w, sizes).lower(lowering_platforms=("cuda",))
    return seen[0], _core.cuda_target_for(90)


@pytest.mark.parametrize("epilogue", [None, "gelu", "swiglu"])
def test_products_have_other_tiles(epilogue):
    program, target = product_program(epilogue)
    (kernel, now, others), *_ = _core.alternatives(program, target)
    assert now in others and len(others) >= 4
    (tile,) = [line[3:] for line in _core.stages(program, target)["source"].splitlines() if line.startswith("// tile=")]
    assert tile in _core.facts(program, target)[0]["parameters"]  # what is said is what runs
    for other in others:
        source = _core.stages(program + _tuned.text_of({kernel: other}), target)["source"]
        fields = dict(word.split("=") for word in other.split())
        expected = (
            f"tile={fields['tile_m']}x{fields['tile_n']}x64 stages={fields['stages']} cluster={fields['cluster']}"
        )
        assert expected in source


def test_tiles_that_no_model_chooses_spill_nothing(tmp_path):
    """Clusters of one block, where columns are left for two."""
    program, target = product_program()
    (kernel, _, others), *_ = _core.alternatives(program, target)
    alone = [other for other in others if "cluster=1" in other]
    assert len(alone) == 3
    for other in alone:
        assert_no_spills(program + _tuned.text_of({kernel: other}), tmp_path)


def test_choices_are_kept_and_taken(folder):
    f, args = call_of("norm")
    tuning = jf.autotune(jf.fuse(f), *args, seconds=20, progress=False)
    assert [k.after <= k.before for k in tuning.kernels] == [True] * len(tuning.kernels)
    assert f"\n{len(tuning.kernels)} kernel" in repr(tuning)
    ((_, program, target),) = programs(f, args)
    chosen = {
        kernel: next(o for o in others if o != now) for kernel, now, others in _core.alternatives(program, target)
    }
    _tuned.keep(program, target, chosen)
    assert [path.read_text() for path in folder.iterdir()] == [_tuned.text_of(chosen)]
    _tuned._kept.clear()  # as another process has it
    assert _tuned.with_choices(program, target) == program + _tuned.text_of(chosen)
    assert_close(jf.fuse(f)(*args), f(*args))
    _tuned.keep(program, target, {})
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "damage", [b"", b"tuned {\n", b"tuned {\n  other: threads=3\n}\n", b"tuned {\n  x threads\n}\n", b"\xff\0"]
)
def test_files_of_other_kernels_are_not_taken(folder, damage):
    f, args = call_of("pointwise")
    ((_, program, target),) = programs(f, args)
    _tuned.keep(program, target, {"f_0": "lanes=1"})
    (path,) = folder.iterdir()
    path.write_bytes(damage)
    _tuned._kept.clear()
    assert _tuned.with_choices(program, target) == program


@pytest.mark.parametrize("terminal", [False, True])
def test_the_line_says_what_is_measured(folder, capsys, monkeypatch, terminal):
    f, args = call_of("pointwise")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    jf.autotune(jf.fuse(f, name="double"), *args, seconds=0.01)
    said = capsys.readouterr().err
    assert said.startswith("\r\x1b[Kautotune 1/1 double_0: " if terminal else "autotune 1/1 double_0: 0.")
    assert ("5/5" in said) == terminal and said.endswith("\n") and said.count("\n") == 1


def test_what_an_earlier_run_found_is_not_lost(folder):
    f, args = call_of("norm")
    ((_, program, target),) = programs(f, args)
    ((kernel, now, others),) = _core.alternatives(program, target)
    _tuned.keep(program, target, {kernel: next(other for other in others if other != now)})
    kept = _tuned.kept(program, target)
    tuning = jf.autotune(jf.fuse(f), *args, seconds=1e-3, progress=False)  # too short for any candidate
    assert not tuning.complete and _tuned.kept(program, target) == kept != ""


def test_a_measurement_that_is_broken_off_leaves_nothing_behind(folder, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    f, args = call_of("pointwise")
    monkeypatch.setattr(_autotune._Search, "_times", stop)
    with pytest.raises(KeyboardInterrupt):
        jf.autotune(jf.fuse(f), *args, progress=False)
    assert not _tuned._trial.get() and not _tuned._seen.get() and not folder.exists()


def test_explain_says_what_was_tuned(folder):
    f, args = call_of("pointwise")
    ((_, program, target),) = programs(f, args)
    before = jf.explain(f, platform="cpu")(*args)
    assert "tuned" not in f"{before!r}{before}" and before.regions[0].segments[0].tuned == ""
    ((kernel, _, _),) = _core.alternatives(program, target)
    _tuned.keep(program, target, {kernel: "tasks=3"})
    report = jf.explain(f, platform="cpu")(*args)
    (segment,) = report.regions[0].segments
    assert (segment.tuned, segment.launch) == ("tasks=3", "3 tasks")
    assert "│ tuned by measurement: tasks=3 " in str(report) and "tuned by measurement: tasks=3" in report.svg()
    assert ", 1 tuned kernel\n" in repr(report)
    assert "tasks=3\n" in jf.fuse(f).lower(*args).as_text("schedule", platform="cpu")


def test_other_threads_see_no_trial(folder):
    f, args = call_of("pointwise")
    ((_, program, target),) = programs(f, args)
    ((kernel, _, _),) = _core.alternatives(program, target)

    def lowered():
        return jax.jit(jf.fuse(f)).lower(*args).as_text()

    with _tuned.trial(program, {kernel: "tasks=2"}), _tuned.programs_seen() as seen:
        with concurrent.futures.ThreadPoolExecutor(1) as other:
            assert "tuned {" not in other.submit(lowered).result() and not seen
            assert other.submit(_tuned.with_choices, program, target).result() == program
        jax.clear_caches()
        assert "tuned {" in lowered() and seen == [program]


def test_a_folder_that_takes_nothing_is_said_once(folder):
    folder.parent.mkdir(mode=0o700)
    folder.write_text("a file where the folder would be")
    with pytest.warns(UserWarning, match="autotune: what was measured is kept for this process alone"):
        _tuned.keep("program", "target", {"kernel": "tasks=2"})
    assert _tuned.kept("program", "target")


def test_files_are_written_whole_or_not_at_all(folder, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(_tuned.os, "replace", full)
    with pytest.warns(UserWarning, match="no space left"):
        _tuned.keep("program", "target", {"kernel": "tasks=2"})
    assert not list(folder.iterdir())


def test_exports_have_the_choices_of_the_compiler(folder):
    """The machine that loads them may be another, whose kernels have no such parameters."""
    f, args = call_of("pointwise")
    ((_, program, target),) = programs(f, args)
    ((kernel, _, others),) = _core.alternatives(program, target)
    _tuned.keep(program, target, {kernel: next(other for other in others if "tasks=2" in other)})
    ours = jax.export.DisabledSafetyCheck.custom_call("jax_fuser.program")
    exported = jax.export.export(jax.jit(jf.fuse(f)), disabled_checks=[ours])(*args)
    assert "jax_fuser.program" in exported.mlir_module() and "tuned {" not in exported.mlir_module()
    assert "tuned {" in jax.jit(jf.fuse(f)).lower(*args).as_text()


def test_arguments_that_are_no_arrays_and_arrays_of_numpy(folder):
    @functools.partial(jax.jit, static_argnums=1, static_argnames="mode")
    def f(x, times, *, mode):
        return jf.fuse(jnp.tanh)(x) * times if mode == "fused" else x

    x = np.ones((8, 96), np.float32)
    assert len(_autotune._calls(f, (x, 2), {"mode": "fused"})) == 1
    notes = _autotune._calls(jf.fuse(lambda x, y: x + y), (x, 2.0), {})
    assert all(isinstance(operand, jax.Array) for call in notes for operand in call.operands)
    assert jf.autotune(f, x, 2, mode="fused", seconds=1e-3, progress=False).kernels


def test_sums_of_f64_and_of_bf16_are_compared_as_closely_as_they_are_computed():
    with jax.enable_x64(True):
        one = jnp.float64([1 + 2**-25, 1.0])
        assert _autotune._are_close(one, one * (1 + 2**-52)) and not _autotune._are_close(one, one + 1e-9)
    one = jnp.bfloat16([1, 2, -3])
    assert _autotune._are_close(one, one * jnp.bfloat16(1 + 2**-7)) and not _autotune._are_close(one, one * 1.25)


def test_loops_branches_and_gradients_are_gone_into(folder):
    scale = jnp.ones(96)

    def f(x, which):
        def body(carry, _):
            return jf.fuse(norm)(carry, scale), None

        x, _ = jax.lax.scan(body, x, None, length=2)
        x = jax.lax.cond(which, jf.fuse(jnp.tanh), lambda x: x, x)
        x = jax.lax.fori_loop(0, 2, lambda _, x: jf.fuse(lambda x: x * 2 + 1)(x), x)
        sliced, _ = jax.lax.scan(lambda carry, row: (jf.fuse(jnp.sin)(carry + row), None), x[0], x)
        return jnp.sum(x) + jnp.sum(sliced)

    def ends(x):  # what a loop asks before each turn is seen, too
        return jax.lax.while_loop(lambda x: jf.fuse(lambda x: jnp.tanh(x).sum())(x) > 1, lambda x: x / 2, x)

    notes = []
    arguments = (arrays.array(65, 96), jnp.array(True))
    _walk.walk(jax.value_and_grad(f), arguments, {}, lambda *note: notes.append(note))
    assert len({str(params) for _, _, params in notes}) >= 5
    _walk.walk(ends, arguments[:1], {}, lambda *note: notes.append(note))
    assert len({str(params) for _, _, params in notes}) >= 6
    for primitive, operands, params in notes:
        primitive.bind(*operands, **params)  # with the values that it has there


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(TypeError, match="autotune: expected a function, got int"):
        jf.autotune(3)
    with pytest.raises(jf.UserError, match="autotune: expected arrays to measure with, got traced values"):
        jax.jit(lambda x: jf.autotune(jnp.tanh, x))(jnp.ones(3))
    with pytest.raises(jf.UserError, match="autotune: expected arrays to measure with, got traced values"):
        jax.jit(lambda x: jf.autotune(lambda: jf.fuse(jnp.tanh)(x), progress=False))(jnp.ones(3))
    with pytest.raises(jf.UserError, match="autotune: expected arrays to measure with, got ShapeDtypeStruct"):
        jf.autotune(jnp.tanh, jax.ShapeDtypeStruct((3,), "float32"))
    for seconds in ("5", 0, float("nan")):
        with pytest.raises(jf.UserError, match="autotune: expected seconds to be a positive number, got"):
            jf.autotune(jnp.tanh, jnp.ones(3), seconds=seconds)
    with pytest.raises(jf.UserError, match="autotune: the function calls no kernel of jax_fuser"):
        jf.autotune(jnp.tanh, jnp.ones(3), progress=False)


def test_parameters_that_no_kernel_has_are_refused():
    f, args = call_of("norm")
    ((_, program, target),) = programs(f, args)
    kernel = _core.alternatives(program, target)[0][0]
    for choices, message in [
        ({"nobody": "tasks=2"}, "has no kernel nobody"),
        ({kernel: "wings=2"}, "no parameter 'wings'"),
        ({kernel: "tasks=many"}, "tasks: expected an integer"),
        ({kernel: "tasks"}, "expected name=value, got 'tasks'"),
    ]:
        with pytest.raises(jf.UserError, match=message):
            _core.workspace_bytes(program + _tuned.text_of(choices), target)
    program, target = product_program()
    kernel = _core.alternatives(program, target)[0][0]
    for parameters, message in [
        ("tile_m=100", "no kernel has the configuration tile=100"),
        ("wings=2", "expected tile_m"),
    ]:
        with pytest.raises(jf.UserError, match=message):
            _core.stages(program + _tuned.text_of({kernel: parameters}), target)


@pytest.mark.gpu
def test_products_are_tuned(folder):
    with jax.default_device(hopper_or_skip()):
        check_products_are_tuned()


def check_products_are_tuned():
    x, w = arrays.array(2048, 512, dtype="bfloat16"), arrays.array(8, 512, 512, dtype="bfloat16")
    sizes = jnp.array([700, 0, 3, 500, 45, 200, 500, 100], jnp.int32)

    def f(x, w):
        return jnp.sum(jf.grouped_matmul(x, w, sizes, activation="gelu").astype("float32"))

    before = jax.grad(f, (0, 1))(x, w)
    tuning = jf.autotune(jax.grad(f, (0, 1)), x, w, seconds=60, progress=False)
    assert len(tuning.kernels) >= 2
    jax.clear_caches()
    for one, other in zip(jax.grad(f, (0, 1))(x, w), before):
        assert_close(one, other)

"""What outlives one process: the compile cache, XLA's persistent cache; and what goes missing."""

import json
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import pytest

import jax_fuser as jf
from jax_fuser import _core


def start(code: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **env},
    )


def finish(process: subprocess.Popen[str]) -> tuple[dict, str]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return json.loads(out.strip().splitlines()[-1]), err


COUNT = """
    import json, jax, jax.numpy as jnp, jax_fuser as jf
    x = jnp.linspace(-1, 1, 1000)
    y = jax.jit(jf.fuse(lambda x: jnp.tanh(x) * jnp.exp(x)))(x)
    assert jnp.allclose(y, jnp.tanh(x) * jnp.exp(x), rtol=1e-5)
    print(json.dumps(jf.counters()))
"""


def test_second_process_compiles_nothing(tmp_path):
    env = {"JAX_FUSER_CACHE_DIR": str(tmp_path / "cache")}
    first, _ = finish(start(COUNT, **env))
    assert first["compiled_host"] == 1 and first["disk_hits"] == 0
    second, _ = finish(start(COUNT, **env))
    assert second["compiled_host"] == 0 and second["disk_hits"] == 1


GRADIENTS = """
    import hashlib, json, jax, jax.numpy as jnp, numpy as np, jax_fuser as jf

    def loss(x, w, b, sizes):
        y = jf.grouped_matmul(x, w, sizes, bias=b, activation="silu")
        return jnp.sum(jf.fuse(lambda y: jnp.tanh(y) * y)(y.astype(jnp.float32)))

    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (512, 128), (3, 128, 256), (3, 256)
    x, w, b = (jax.random.normal(key, shape, jnp.bfloat16) / 8 for key, shape in zip(keys, shapes))
    value, grads = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(x, w, b, jnp.array([200, 0, 300]))
    bits = hashlib.sha256(b"".join(np.asarray(a).tobytes() for a in (value, *grads))).hexdigest()
    print(json.dumps({**jf.counters(), "bits": bits}))
"""


def test_second_process_compiles_nothing_for_a_product_and_its_gradients(tmp_path, device):
    platform, compiled = ("cpu", "compiled_host") if device.platform == "cpu" else ("cuda", "compiled_cuda")
    env = {"JAX_FUSER_CACHE_DIR": str(tmp_path / "cache"), "JAX_PLATFORMS": platform}
    first, _ = finish(start(GRADIENTS, **env))
    second, _ = finish(start(GRADIENTS, **env))
    assert first[compiled] >= 2 and first["disk_hits"] == 0
    assert second["compiled_host"] == second["compiled_cuda"] == 0 and second["disk_hits"] == first[compiled]
    assert second["bits"] == first["bits"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_cache_that_cannot_be_written_is_read(tmp_path):
    folder = tmp_path / "cache"
    env = {"JAX_FUSER_CACHE_DIR": str(folder)}
    finish(start(COUNT, **env))
    folder.chmod(0o500)
    again, said = finish(start(COUNT, **env))
    assert again["compiled_host"] == 0 and again["disk_hits"] == 1 and "cache" not in said
    other, said = finish(start(COUNT.replace("jnp.exp(x)", "(2 + jnp.exp(x))"), **env))
    assert other["compiled_host"] == 1 and said.count("compile cache is only read") == 1
    folder.chmod(0o700)


def test_two_processes_at_once_agree(tmp_path):
    env = {"JAX_FUSER_CACHE_DIR": str(tmp_path / "cache")}
    both = [start(COUNT, **env) for _ in range(2)]
    for process in both:
        counters, _ = finish(process)
        assert counters["compiled_host"] + counters["disk_hits"] == 1


def test_persistent_compilation_cache_hits(tmp_path):
    code = f"""
    import json, jax, jax.numpy as jnp, jax_fuser as jf
    jax.config.update("jax_compilation_cache_dir", {str(tmp_path / "xla")!r})
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    events = []
    jax.monitoring.register_event_listener(lambda name, **kw: events.append(name))
    x = jnp.linspace(-1, 1, 1000)
    y = jax.jit(jf.fuse(lambda x: jnp.tanh(x) * jnp.exp(x)))(x).block_until_ready()
    hits = sum(e.endswith("cache_hits") for e in events)
    misses = sum(e.endswith("cache_misses") for e in events)
    print(json.dumps(dict(hits=hits, misses=misses, instantiated=jf.counters()["instantiated"], y=float(y.sum()))))
    """
    first, _ = finish(start(code))
    second, _ = finish(start(code))
    assert second["misses"] == 0 and second["hits"] >= 1 and second["instantiated"] >= 1
    assert first["y"] == second["y"]


NO_COMPILER = """
    import json, warnings, jax, jax.numpy as jnp
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import jax_fuser as jf
        x = jnp.linspace(-1, 1, 1000)
        f, g = jax.jit(jf.fuse(lambda x: jnp.tanh(x) * 2)), jax.jit(jf.fuse(lambda x: jnp.exp(x) + x))
        ok = bool(jnp.allclose(f(x), jnp.tanh(x) * 2)) and bool(jnp.allclose(g(x), jnp.exp(x) + x))
        w = jnp.ones((2, 4, 3))
        ok = ok and jf.ragged_dot(jnp.ones((5, 4)), w, jnp.array([2, 3])).shape == (5, 3)
    texts = [str(c.message) for c in caught if "jax_fuser" in str(c.message)]
    print(json.dumps(dict(ok=ok, texts=texts, doctor=str(jf.doctor()))))
"""


def test_missing_compiler_is_one_warning_and_right_results(tmp_path):
    got, _ = finish(start(NO_COMPILER, JAX_FUSER_CXX="/nowhere/c++", JAX_FUSER_CACHE_DIR=str(tmp_path)))
    assert got["ok"]
    assert len(got["texts"]) == 1 and "JAX_FUSER_CXX" in got["texts"][0]
    assert "--  CPU compiler" in got["doctor"]


def test_doctor_says_what_the_environment_sets(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_FUSER_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setenv("JAX_FUSER_LOG", "loud")
    monkeypatch.setenv("JAX_FUSER_CACHE", "x")
    rows = {subject: (finding, works) for subject, finding, works in jf.doctor().rows}
    assert rows["Kernels kept in"] == (str(tmp_path / "kernels"), True)
    assert rows["JAX_FUSER_CACHE_DIR"] == (str(tmp_path / "kernels"), True)
    assert rows["JAX_FUSER_LOG"] == ("loud; expected info or debug", False)
    finding, works = rows["JAX_FUSER_CACHE"]
    assert finding.startswith("x; no such variable: JAX_FUSER_DUMP") and not works


@pytest.mark.parametrize("word", ["1", "true", "ALL", "loops"])
def test_a_dump_folder_that_is_a_flag_is_refused(word, monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_FUSER_DUMP", word)
    jax.block_until_ready(jf.fuse(lambda x: jnp.sinh(x) * 7)(jnp.ones((3, len(word) + 600))))
    assert not [*tmp_path.iterdir()]
    [(finding, works)] = [row[1:] for row in jf.doctor().rows if row[0] == "JAX_FUSER_DUMP"]
    assert finding.startswith(f"{word}; expected the path of a folder") and not works
    said = capfd.readouterr().err
    assert said == "" or f"JAX_FUSER_DUMP={word}: expected the path" in said  # once in a process


def test_missing_driver_is_said_by_doctor():
    if _core.cuda_target(0) is not None:
        pytest.skip("this machine has a driver")
    assert "no CUDA driver" in str(jf.doctor())

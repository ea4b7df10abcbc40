"""Programs are compiled in the background once their call is lowered: which, what the environment says then, errors."""

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_fuser as jf

X = np.linspace(-1, 1, 1009, dtype=np.float32)


def test_a_wish_after_lowering_is_heard(monkeypatch, tmp_path):
    lowered = jax.jit(jf.fuse(lambda x: jnp.tanh(x) * 41 + 3, name="late_wish")).lower(X)
    monkeypatch.setenv("JAX_FUSER_DUMP", str(tmp_path))
    np.testing.assert_allclose(lowered.compile()(X), np.tanh(X) * 41 + 3, rtol=1e-4, atol=1e-4)
    [folder] = tmp_path.glob("*late_wish")
    assert (folder / "kernel.cpp").exists()


def let_compile(script, monkeypatch, tmp_path):
    """Let a shell script be the compiler, with a cache that holds nothing; return the file `$log` that it may write."""
    compiler = tmp_path / "c++"
    compiler.write_text(f"#!/bin/sh\nlog={tmp_path / 'log'}\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("JAX_FUSER_CXX", str(compiler))
    monkeypatch.setenv("JAX_FUSER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "log"


def test_what_is_only_lowered_is_not_compiled(monkeypatch, tmp_path):
    log = let_compile('[ "$1" = --version ] || echo compiles >> $log; exec c++ "$@"', monkeypatch, tmp_path)
    f, g = (jf.fuse(lambda x, n=n: jnp.tanh(x) * n, name=f"apart_{n}") for n in (2, 3))
    lowered = jax.jit(lambda x: f(g(x)[::-1])).lower(X)
    jax.jit(jf.fuse(lambda x: jnp.tanh(x) * 4, name="called"))(X)  # would wait behind them
    assert log.read_text().count("compiles") == 1
    got = lowered.compile()(X)
    np.testing.assert_allclose(got, 2 * np.tanh(3 * np.tanh(X[::-1])), rtol=1e-4, atol=1e-4)
    assert log.read_text().count("compiles") > 1


def test_many_programs_of_a_module_are_compiled_side_by_side(monkeypatch, tmp_path):
    """The first one is taken when all are lowered, and lets the others begin."""
    log = let_compile('echo begin >> $log; c++ "$@" -O1 || exit; echo end >> $log', monkeypatch, tmp_path)
    count = 48
    lowered = jax.jit(jf.fuse(lambda *xs: [jnp.tanh(x) for x in xs])).lower(*(X[n:] for n in range(count)))
    lowered.compile()
    lines = log.read_text().split()
    assert lines.count("end") >= count  # and what tests before this one left to do
    assert ["begin", "begin"] in [lines[i : i + 2] for i in range(20)]


def test_an_error_is_reported_and_forgotten(monkeypatch, tmp_path):
    broken = tmp_path / "c++"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo broken 1.0 && exit\necho it broke; exit 3\n')
    broken.chmod(0o755)
    f = jax.jit(jf.fuse(lambda x: jnp.tanh(x) * 43 + 7, name="broken"))
    with monkeypatch.context() as given:
        given.setenv("JAX_FUSER_CXX", str(broken))
        given.setenv("TMPDIR", str(tmp_path))  # where the source is kept
        for lowered in (f.lower(X), f.lower(X)):
            with pytest.raises(Exception, match=r"(?s)C\+\+ compiler failed with exit code 3.*it broke"):
                lowered.compile()
    np.testing.assert_allclose(f(X), np.tanh(X) * 43 + 7, rtol=1e-4, atol=1e-4)


def test_a_compiler_that_breaks_down_is_asked_again(monkeypatch, tmp_path):
    """As g++ 12 does in the pass that makes vectors of scalars."""
    breaks = 'case "$*" in *-fno-tree-slp-vectorize*) ;; *) echo internal compiler error; exit 1;; esac'
    let_compile(f'[ "$1" = --version ] && exec c++ "$@"; {breaks}; exec c++ "$@"', monkeypatch, tmp_path)
    got = jax.jit(jf.fuse(lambda x: jnp.tanh(x) * 47 + 5, name="again"))(X)
    np.testing.assert_allclose(got, np.tanh(X) * 47 + 5, rtol=1e-4, atol=1e-4)


def test_forked_processes_compile_and_end():
    """JAX itself allows fork only before it has a backend; after that a worker may do anything else."""
    script = """
        import multiprocessing, os, signal, threading
        import jax, numpy as np, jax_fuser as jf
        from jax_fuser import _core
        f = jf.fuse(lambda x: x * 2 + 1, name="forked")
        _core.host_compiler_ahead()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            os._exit(0 if np.all(jax.jit(f)(np.ones(1009, "f")) == 3) else 1)
        assert os.waitpid(child, 0)[1] == 0
        compiling = threading.Thread(target=lambda: jax.jit(f)(np.ones(1013, "f")))
        compiling.start()
        fork = multiprocessing.get_context("fork")
        workers = [fork.Process(target=sum, args=([1],)) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
            assert worker.exitcode == 0
        compiling.join()
    """
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr

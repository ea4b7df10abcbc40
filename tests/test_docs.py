"""Every example in a public docstring and the README runs."""

import doctest
import importlib
import inspect
import pathlib
import pkgutil
import re
import runpy

import jax
import pytest

import jax_fuser

MODULES = ["jax_fuser"] + [
    f"jax_fuser.{m.name}" for m in pkgutil.iter_modules(jax_fuser.__path__) if m.name not in ("_core", "__main__")
]
CLASSES = [
    jax_fuser.ir.Fusion,
    jax_fuser.ir.Schedule,
    jax_fuser.ir.Scheduler,
    jax_fuser.ir.IndexGraph,
    jax_fuser.ir.Builder,
]
ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.failed == 0


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_compiled_classes_say_what_they_do(cls):
    """Their docstrings are the compiler's; doctest looks for those of modules only."""
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder(recurse=False).find(cls, cls.__name__, module=False, globs={}):
        assert test.examples
        runner.run(test)
    assert runner.summarize().failed == 0
    for name in (name for name in dir(cls) if not name.startswith("_")):
        member = getattr(cls, name)
        assert len(inspect.getdoc(member) or "") > 20, name
        if callable(member):
            assert all(p.name == "self" or p.annotation for p in inspect.signature(member).parameters.values())
            assert "arg0" not in str(inspect.signature(member))


def test_every_parameter_of_a_strategy_is_explained():
    fusion = jax_fuser.ir.trace(lambda x: x.sum(1), jax.ShapeDtypeStruct((64, 512), "float32"))
    turned = jax_fuser.ir.trace(lambda x: x.T * 2, jax.ShapeDtypeStruct((640, 512), "float32"))
    for strategy, of in [("reduction", fusion), ("pointwise", turned), ("transpose", turned)]:
        for platform in ["cpu", "cuda"] if strategy != "transpose" else ["cuda"]:
            for name in jax_fuser.ir.compute_heuristics(of, strategy, platform):
                assert f"`{name}`" in jax_fuser.ir.compute_heuristics.__doc__


def test_public_names_have_examples():
    callables = [getattr(jax_fuser, n) for n in jax_fuser.__all__]
    missing = [
        c.__name__
        for c in callables
        if callable(c)
        and c.__module__.startswith("jax_fuser.")
        and "_core" not in c.__module__
        and ">>>" not in (c.__doc__ or "")
    ]
    assert missing == []


@pytest.mark.parametrize("page", ["README.md", "docs/nested.md", "docs/scheduling.md"])
def test_examples_of_pages(page, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})
        comments = re.findall(r"^print\(.*\)  # (.*)", block, re.MULTILINE)
        printed = capsys.readouterr().out.splitlines()
        assert len(comments) == len(printed)
        for comment, line in zip(comments, printed):
            assert comment.startswith(line)


def test_the_picture_of_nested_tensors_is_what_the_script_draws():
    script = runpy.run_path(str(ROOT / "docs" / "draw_nested.py"))
    drawn = (ROOT / "docs" / "nested.svg").read_text()
    assert drawn == script["picture"](), "run python docs/draw_nested.py"

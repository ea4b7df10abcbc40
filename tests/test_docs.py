"""Every example in a public docstring and the README runs."""

import doctest
import importlib
import pathlib
import pkgutil
import re
import runpy

import pytest

import jax_fuser

MODULES = ["jax_fuser"] + [
    f"jax_fuser.{m.name}" for m in pkgutil.iter_modules(jax_fuser.__path__) if m.name not in ("_core", "__main__")
]
ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.failed == 0


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


@pytest.mark.parametrize("page", ["README.md", "docs/nested.md"])
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
    assert (ROOT / "docs" / "nested.svg").read_text() == script["picture"]()

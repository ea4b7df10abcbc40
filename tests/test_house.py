"""The house stays as csrc/README.md draws it: floors, file sizes, one custom-call site, no stray environment reads."""

import pathlib
import re
import statistics

from floors import violations

ROOT = pathlib.Path(__file__).parent.parent
SOURCES = [p for p in (ROOT / "csrc").rglob("*") if p.suffix in (".h", ".cpp", ".cuh", ".def")]


def test_includes_go_down():
    assert violations(ROOT / "csrc") == []


def test_files_are_small():
    lines = {p: len(p.read_text().splitlines()) for p in SOURCES}
    too_long = [f"{p}: {n}" for p, n in lines.items() if n > (800 if p.suffix == ".cuh" else 600)]
    assert too_long == []
    assert statistics.median(lines.values()) < 150


def test_a_folder_has_one_meaning_of_a_name():
    """Constants and types of unnamed namespaces: a unity build puts files of a folder together."""
    seen: dict[tuple[pathlib.Path, str], str] = {}
    for path in (p for p in SOURCES if p.suffix == ".cpp" and p.parent.parent == ROOT / "csrc"):
        for block in re.findall(r"\nnamespace \{\n(.*?)\n\}  // namespace\n", path.read_text(), re.S):
            lines = "\n".join(
                line for line in block.splitlines() if re.match(r"(constexpr|const|struct|class|enum)\b", line)
            )
            for name in re.findall(r"\b(k[A-Z]\w*) *[=\[{]|^(?:struct|class|enum class) (\w+)", lines, re.M):
                other = seen.setdefault((path.parent, "".join(name)), path.name)
                assert other == path.name, f"{''.join(name)} is in {other} and {path.name} of {path.parent.name}"


def test_environment_is_read_in_one_place():
    readers = [p.name for p in SOURCES if "getenv" in p.read_text()]
    assert readers == ["env.cpp"]


def test_ptx_stands_in_few_headers():
    users = sorted(
        p.name for p in SOURCES if re.search(r"\basm\b\s*(volatile)?\s*\(", p.read_text()) and p.suffix == ".cuh"
    )
    assert users and all(name.startswith("ptx") for name in users)


def test_one_custom_call_site():
    sites = [p.name for p in (ROOT / "jax_fuser").glob("*.py") if "build_ffi_lowering_function" in p.read_text()]
    assert sites == ["_ffi.py"]


def test_no_file_is_called_utils():
    names = [p.name for folder in ("csrc", "jax_fuser") for p in (ROOT / folder).rglob("*")]
    assert not [n for n in names if re.match(r"(utils?|common|helpers?)\.", n)]


def test_calls_allocate_and_wait_for_nothing():
    """Of the CUDA driver none is opened that could, and what runs a call keeps its addresses in arrays."""
    opened = {p.name: re.findall(r'"(cu[A-Z]\w+)"', p.read_text()) for p in SOURCES}
    of_driver = opened.pop("driver.h")
    assert {"cuLaunchKernel", "cuLaunchKernelEx", "cuMemsetD32Async"} < {*of_driver}
    assert not [n for n in of_driver if re.search(r"Alloc|Free|Synchronize|Query|Wait|Memcpy|HostRegister", n)]
    assert {name: found for name, found in opened.items() if found} == {
        "driver.cpp": ["cuGetErrorName", "cuGetErrorString", "cuGetErrorName", "cuGetErrorString"]
    }
    assert not [p.name for p in SOURCES if p.suffix != ".cuh" and re.search(r"\bcuda[A-Z]\w*\(", p.read_text())]
    source = (ROOT / "csrc" / "host" / "executable.cpp").read_text()
    [body] = re.findall(r"\nvoid Executable::run_cuda\(.*?\n}\n", source, re.S)
    assert "runtime::launch(" in body
    assert not re.search(
        r"\bnew\b|make_(unique|shared)|push_back|resize|std::(vector|string|map|function)\b(?!.*&)", body
    )

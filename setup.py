"""Build jax_fuser._core with CMake; everything else stands in pyproject.toml."""

import os
import pathlib
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class CMakeBuild(build_ext):
    """Configure and build CMakeLists.txt in the build folder of this Python."""

    def build_extension(self, ext: Extension) -> None:
        """Build the extension where setuptools expects it."""
        source = pathlib.Path(__file__).parent.resolve()
        target = pathlib.Path(self.get_ext_fullpath(ext.name)).parent.resolve()
        build = source / "build" / f"cmake-{sys.implementation.cache_tag}"
        build.mkdir(parents=True, exist_ok=True)
        target.mkdir(parents=True, exist_ok=True)
        configure = [
            "cmake",
            "-S",
            str(source),
            "-B",
            str(build),
            "-G",
            "Ninja",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={target}",
            "-DCMAKE_BUILD_TYPE=Release",
        ]
        # A build isolated by pip moves between temporary folders: old paths in the cache would point nowhere.
        (build / "CMakeCache.txt").unlink(missing_ok=True)
        subprocess.run(configure, check=True)
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
        subprocess.run(["cmake", "--build", str(build), "--parallel", jobs], check=True)

    def copy_extensions_to_source(self) -> None:
        """Copy the module's type stub as well, which lies beside it."""
        super().copy_extensions_to_source()
        for ext in self.extensions:
            stub = pathlib.Path(*ext.name.split(".")).with_suffix(".pyi")
            shutil.copyfile(pathlib.Path(self.build_lib) / stub, pathlib.Path(__file__).parent / stub)


setup(ext_modules=[Extension("jax_fuser._core", sources=[])], cmdclass={"build_ext": CMakeBuild})

"""Four CPU devices for every test, beside the GPU where there is one; set before JAX starts."""

import gc
import importlib.metadata
import importlib.util
import os

if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
# The CPU comes first, so that it is the default everywhere; tests that take `device` also run on CUDA.
HAS_CUDA_PLUGIN = any(importlib.util.find_spec(f"jax_cuda{n}_plugin") for n in (12, 13))
os.environ.setdefault("JAX_PLATFORMS", "cpu,cuda" if HAS_CUDA_PLUGIN else "cpu")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# XLA's own kernels serve as truth and run once: LLVM's passes over them would be a fifth of the suite's time.
if not HAS_CUDA_PLUGIN and "xla_backend_optimization_level" not in os.environ["XLA_FLAGS"]:
    os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=0"
    # So would MLIR's, in the one version where they can be left out: a quarter of XLA's time.
    if importlib.metadata.version("jaxlib").startswith("0.10."):
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"

import arrays  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

# What is imported stays: collections need not look at it.
gc.collect()
gc.freeze()
# Traces are many small objects, few of them garbage in cycles: by default the search for it is a twelfth of the time.
gc.set_threshold(20_000, 10, 10)

# XLA's own float32 products, which serve as truth, are TF32 on GPUs otherwise.
jax.config.update("jax_default_matmul_precision", "highest")


@pytest.fixture(autouse=True)
def same_arrays():
    """Give each test the arrays that it has by itself, whatever ran before it in this process."""
    arrays.begin()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Run the test on the CPU, and again on CUDA where there is one."""
    try:
        found = jax.devices(request.param)[0]
    except RuntimeError:
        pytest.skip(f"no {request.param} device on this machine")
    with jax.default_device(found):
        yield found


class Machine:
    """Runs schedules for one platform, and checks that CUDA sources compile where NVRTC is there."""

    def __init__(self, platform, run):
        self.platform, self.run = platform, run
        self.outer, self.inner = ("task", "unroll") if platform == "cpu" else ("block", "thread")


@pytest.fixture(params=["cpu", "cuda loops", pytest.param("cuda", marks=pytest.mark.gpu)])
def machine(request):
    """Run schedules on the CPU, as CUDA loops in numpy, and on CUDA where there is one."""
    import loop_interpreter

    import jax_fuser as jf

    if request.param == "cuda loops":
        yield Machine("cuda", loop_interpreter.run)
        return
    try:
        found = jax.devices(request.param)[0]
    except RuntimeError:
        pytest.skip(f"no {request.param} device on this machine")
    with jax.default_device(found):
        yield Machine(request.param, jf.ir.run)

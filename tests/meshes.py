"""Meshes over devices of the platform that a test runs on: that of the fixture `device`, or the CPU."""

import math

import jax
import pytest
from jax.sharding import AxisType


def mesh(kind=AxisType.Auto, **axes):
    """Return a mesh with axes of these sizes; skip the test where there are too few devices."""
    default = jax.config.jax_default_device
    platform = default.platform if default is not None else "cpu"
    found, needed = jax.devices(platform), math.prod(axes.values())
    if len(found) < needed:
        pytest.skip(f"needs {needed} {platform.upper()} devices")
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(kind,) * len(axes), devices=found[:needed])

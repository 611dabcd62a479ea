"""Importing the package starts no JAX work, and every public name is there."""

import subprocess
import sys

import pytest

import ringline


def test_import_is_light():
    code = "import sys, ringline; print([m for m in ('jax', 'numpy', 'rich') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["schedule", "simulate", "schedules", "topology", "trace"])
def test_schedules_and_simulation_need_no_jax(package):
    code = f"import sys, ringline.{package}; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ringline.__all__)
def test_public_names_exist(name):
    assert getattr(ringline, name) is not None


def test_a_function_wins_over_the_package_of_its_name():
    import ringline.pipeline
    import ringline.simulate

    assert callable(ringline.pipeline)
    assert callable(ringline.simulate)


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ringline.nonsense

"""What pytest loads where numba_tma is installed: the options of its plugin, and later the plugin.

pytest loads this before conftest files. A conftest file may choose the simulator by setting
``NUMBA_ENABLE_CUDASIM``. numba_tma reads that variable when it is imported, which is after them.
"""

from __future__ import annotations

import argparse

import pytest


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options; leave the library as it is."""
    # pytest rewrites the asserts of a package that has a plugin, and compiles all of it anew.
    hook = pluginmanager.rewrite_hook
    getattr(hook, "_must_rewrite", set()).discard("numba_tma")
    getattr(hook, "_marked_for_rewrite_cache", {}).clear()
    group = parser.getgroup("numba_tma", "tests of TMA kernels")
    group.addoption(
        "--tma-require-gpu",
        action="store_true",
        help="a test that would be skipped for want of a GPU with TMA fails",
    )
    group.addoption(
        "--tma-seeds",
        type=int,
        default=1,
        metavar="N",
        help="tests with the fixture tma_simulator run in the orders of seeds 0 to N - 1",
    )
    group.addoption(
        "--tma-trace",
        metavar="DIR",
        help="trace the kernels of each test, into a file for Perfetto with the test's name",
    )
    # Given to the run inside of a sanitizer.
    group.addoption("--tma-sanitized", action="store_true", help=argparse.SUPPRESS)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin."""
    from numba_tma.tools import pytest_plugin

    config.pluginmanager.register(pytest_plugin, pytest_plugin.__name__)

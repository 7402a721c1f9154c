"""The tiers of tests: tests/cpu anywhere, tests/gpu on a GPU, tests/sim in the simulator."""

import gc
import os
from pathlib import Path

# Tests neither read nor write the developer's caches; those of the cache choose a folder.
os.environ["NUMBA_TMA_CACHE"] = "0"
# With colorama installed, Numba's errors and warnings have codes for colours in them.
os.environ["NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING"] = "1"

import pytest

from numba_tma.host.environment import simulated
from numba_tma.tools.testing import gpu_available

TESTS = Path(__file__).parent


def pytest_report_header() -> list[str]:
    gpu = "present" if gpu_available() else "none with TMA (tests/gpu is skipped)"
    sim = "on (tests/sim only)" if simulated() else "off (tests/sim needs NUMBA_ENABLE_CUDASIM=1)"
    return [f"GPU: {gpu}", f"simulator: {sim}"]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Numba decides between compiler and simulator once in a process, and so do the tests."""
    part = collection_path.relative_to(TESTS).parts[:1] if collection_path != TESTS else ()
    if part == ("sim",):
        return None if simulated() else True
    if part in (("cpu",), ("gpu",)):
        return True if simulated() else None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu = f"{TESTS / 'gpu'}{os.sep}"
    for item in items:
        if str(item.path).startswith(gpu):
            item.add_marker(pytest.mark.gpu)
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.tma_gpu)


def pytest_collection_finish() -> None:
    """Look for garbage between tests alone: what is compiled and kept would be searched often."""
    gc.disable()
    spare_the_collector()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Look for garbage after a module, and after tests that made much."""
    if nextitem is None or nextitem.path != item.path or gc.get_count()[0] > 200_000:
        spare_the_collector()


def spare_the_collector() -> None:
    """Free what is garbage, and let the collector pass over what lives now."""
    gc.collect()
    gc.freeze()

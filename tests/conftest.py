"""The tiers of tests: tests/cpu anywhere, tests/gpu on a GPU, tests/sim in the simulator."""

import gc
import os
from collections.abc import Iterator
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
    for item in items:
        if TESTS / "gpu" in item.path.parents:
            item.add_marker(pytest.mark.gpu)
        if item.get_closest_marker("gpu") and not gpu_available():
            item.add_marker(pytest.mark.skip(reason="no GPU with TMA here"))


def pytest_collection_finish() -> None:
    """Look for garbage more rarely than Python does by itself."""
    spare_the_collector()
    gc.set_threshold(500_000, 20, 10)


@pytest.fixture(scope="module", autouse=True)
def _a_modules_kernels_are_kept() -> Iterator[None]:
    """Spare the collector what a module has compiled, too, which later ones use."""
    yield
    spare_the_collector()


def spare_the_collector() -> None:
    """Let the garbage collector pass over what lives now: it would look at it often."""
    gc.collect()
    gc.freeze()

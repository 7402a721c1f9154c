"""What the process environment decides, read in one place."""

import functools
import os


@functools.cache
def simulated() -> bool:
    """Whether kernels run in the CPU simulator (``NUMBA_ENABLE_CUDASIM`` set and not "0").

    Read once, because Numba too reads the variable only when it is imported.
    """
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")

"""The rules of products under the name they had before they were the host's."""

from numba_tma.host.mma_rules import *  # noqa: F403

"""The golden kernels under the name they had before tests/kernels held them."""

from tests.kernels.golden_kernels import *  # noqa: F403
from tests.kernels.golden_kernels import GOLDENS as GOLDENS

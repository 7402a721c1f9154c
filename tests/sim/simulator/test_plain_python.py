"""The simulator reads a kernel's source as the compiler does, and refuses no more than that."""

import numpy as np
import pytest

from tests.frozen import by_identity, changing, computed
from tests.kernels.plain_python import KERNELS


@pytest.mark.parametrize("name", KERNELS)
def test_the_simulator_accepts(name):
    KERNELS[name][1, 32](np.ones(8))


def test_arguments_by_name():
    y = np.zeros(8)
    KERNELS["arguments_by_name"][1, 1](y)
    assert list(y[:2]) == [5, 7]


def test_only_what_happens_in_a_run_changes():
    assert changing("simulator") == {
        "ColumnAllocation", "Mbarrier", "Program", "Run", "TensorLoad", "TensorStore", "EventTrace",
        "Use",
    }  # fmt: skip
    assert by_identity("simulator") == {"ColumnAllocation", "Step", "TensorLoad", "TensorStore"}
    assert computed("simulator") == {"Mbarrier": {"pending", "tx", "phase"}}

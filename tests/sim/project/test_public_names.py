"""Every public name exists in the simulator, too."""

import numba_tma


def test_every_public_name_is_there():
    for name in numba_tma.__all__:
        assert getattr(numba_tma, name) is not None
    assert "TensorMapType" in numba_tma.__all__  # a stand-in for the compiler's
    namespace = {}
    exec("from numba_tma import *", namespace)
    assert set(numba_tma.__all__) <= namespace.keys()

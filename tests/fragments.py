"""The layout of 8x8 matrices of 16-bit elements in a warp."""

import numpy as np


def fragments(matrices, trans=False):
    """Return the words of `matrices` (count, 8, 8) by lane and matrix: rows are cut in four."""
    ordered = matrices.transpose(0, 2, 1) if trans else matrices
    return np.ascontiguousarray(ordered).view(np.uint32).reshape(len(matrices), 32).T

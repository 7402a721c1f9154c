"""Shipped kernels and pipelines under compute-sanitizer."""

import pytest

from tests.gpu import sanitized

#: Parts of `sanitized`, in as many processes.
GROUPS = (
    ("shipped",),
    ("rows_and_columns",),
    ("matmuls",),
    ("attention",),
    ("attention_of_packed_sequences", "attention_of_8_bits"),
    ("attention_backward",),
    ("tma", "cp_async"),
    ("threads", "stores", "outputs"),
    ("clusters",),
    ("keys_and_values",),
    ("one_ring_of_keys_and_values",),
)


@pytest.mark.tma_sanitizer("memcheck", "synccheck")
@pytest.mark.parametrize("parts", GROUPS, ids="+".join)
def test_nothing_is_reported(parts):
    sanitized.main(*parts)

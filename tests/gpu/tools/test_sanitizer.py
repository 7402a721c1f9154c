"""Shipped kernels and pipelines under compute-sanitizer."""

import os
import re
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not installed"
)


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


def sanitize(tool, parts):
    # Reports of the API are left out: cuda.bindings asks every driver for functions of newer ones.
    command = ["compute-sanitizer", "--tool", tool]
    command += ["--report-api-errors", "no"] if tool == "memcheck" else []
    call = f"sanitized.main(*{parts!r})"
    done = subprocess.run(
        [*command, sys.executable, "-c", f"from tests.gpu import sanitized; {call}"],
        capture_output=True,
        text=True,
        timeout=280,
        env=os.environ,
        check=False,
    )
    assert "all right" in done.stdout, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("tool", ["memcheck", "synccheck"])
@pytest.mark.parametrize("parts", GROUPS, ids="+".join)
def test_nothing_is_reported(tool, parts):
    report = sanitize(tool, parts)
    assert re.search(r"ERROR SUMMARY: 0 errors", report), report[-4000:]

"""``python -m numba_tma cache`` shows and empties the cache, without Numba."""

import subprocess
import sys

import pytest

from numba_tma.__main__ import main
from numba_tma.host import cache_files, kernel_store
from tests.cpu.host.test_kernel_store import IMAGE, keys


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_files, "_warned", set())
    monkeypatch.setenv("NUMBA_TMA_CACHE", str(tmp_path))
    return tmp_path


def test_the_cache_is_shown_and_emptied(folder, capsys):
    assert main(["cache"]) == 0
    shown = capsys.readouterr().out
    assert f"folder   {folder}" in shown and "kernels  0, 0.0 MiB of 512.0 MiB" in shown
    for key in keys(3):
        kernel_store.keep(key, IMAGE)
    (folder / "matmul.json").write_text("{}")
    main(["cache"])
    shown = capsys.readouterr().out
    assert "kernels  3, " in shown and "used from 20" in shown and "in matmul.json" in shown
    main(["cache", "--clear"])
    assert capsys.readouterr().out.startswith("removed 3 kernels, 0.0 MiB, from ")
    assert kernel_store.entries() == [] and (folder / "matmul.json").exists()


@pytest.mark.parametrize("value", ["0", ""])
@pytest.mark.filterwarnings("ignore:NUMBA_TMA_CACHE is set to nothing:RuntimeWarning")
def test_no_cache(folder, capsys, monkeypatch, value):
    monkeypatch.setenv("NUMBA_TMA_CACHE", value)
    for options in ([], ["--clear"]):
        assert main(["cache", *options]) == 0
        assert "nothing is cached: NUMBA_TMA_CACHE is off" in capsys.readouterr().out


def test_it_needs_no_numba(folder):
    program = "import sys; from numba_tma.tools.cache import main; main([]); " \
        "print({'numba', 'llvmlite', 'cuda.core'} & set(sys.modules))"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("set()\n"), done.stderr

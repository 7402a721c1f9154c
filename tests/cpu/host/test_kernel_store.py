"""Kernels on disk: files that were damaged, evicted, planted, or written by several processes."""

import dataclasses
import errno
import json
import multiprocessing
import os
import time

import pytest

from numba_tma.host import cache_files, kernel_store
from numba_tma.host.kernel_image import KernelImage
from numba_tma.host.launch_rules import Requirements

IMAGE = KernelImage(
    name="scale",
    entry="_Zscale",
    arguments=("x", "n"),
    sizes=(128, 8),
    requirements=Requirements(frozenset({0, 384}), True, (2, 1, 1), False),
    cooperative=True,
    code=bytes(range(256)) * 8,
)
PLAIN = dataclasses.replace(
    IMAGE, requirements=Requirements(frozenset(), False, None, False), cooperative=False
)
KEY, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_files, "_warned", set())
    monkeypatch.setenv("NUMBA_TMA_CACHE", str(tmp_path))
    return tmp_path / "kernels"


@pytest.mark.parametrize("image", [IMAGE, PLAIN])
def test_a_kernel_is_found_again(folder, image):
    assert kernel_store.find(KEY) is None
    kernel_store.keep(KEY, image)
    assert kernel_store.find(KEY) == image and kernel_store.find(OTHER) is None
    (file,) = folder.iterdir()
    assert file.name == f"{KEY}.kernel" and file.stat().st_mode & 0o777 == 0o600


def test_every_field_is_in_the_file():
    for change in (
        {"name": "other"},
        {"entry": "other"},
        {"arguments": ("x",)},
        {"sizes": (128, 4)},
        {"cooperative": False},
        {"code": b"other"},
        *({"requirements": IMAGE.requirements._replace(**of)} for of in (
            {"blocks": frozenset({384})}, {"line": False}, {"cluster": None}, {"watched": True},
        )),
    ):  # fmt: skip
        changed = dataclasses.replace(IMAGE, **change)
        assert changed != IMAGE
        assert KernelImage.from_bytes(changed.to_bytes(KEY), KEY) == changed


DATA = IMAGE.to_bytes(KEY)


@pytest.mark.parametrize("at", [*range(0, 320, 3), *range(320, len(DATA), 97), len(DATA) - 1])
def test_a_byte_that_was_flipped_is_noticed(at):
    damaged = bytearray(DATA)
    damaged[at] ^= 0x10
    with pytest.raises(ValueError):
        KernelImage.from_bytes(bytes(damaged), KEY)


@pytest.mark.parametrize("length", [0, 1, 18, 19, 26, 27, 60, 300, len(DATA) - 33, len(DATA) - 1])
def test_a_file_that_was_cut_is_noticed(length):
    with pytest.raises(ValueError):
        KernelImage.from_bytes(DATA[:length], KEY)
    with pytest.raises(ValueError):
        KernelImage.from_bytes(DATA + b"x", KEY)


def resealed(change):
    """Return the bytes of a file with another header and the right checksum."""
    import hashlib

    start, length = 27, int(DATA[19:27], 16)
    header = json.loads(DATA[start : start + length])
    text = json.dumps(change(header)).encode()
    body = DATA[:19] + b"%08x" % len(text) + text + DATA[start + length : -32]
    return body + hashlib.sha256(body).digest()


def test_the_helper_reseals():
    assert KernelImage.from_bytes(resealed(lambda header: header), KEY) == IMAGE


@pytest.mark.parametrize("field", ["key", "name", "entry", "arguments", "sizes", "requirements",
                                   "cooperative", "code_bytes"])  # fmt: skip
@pytest.mark.parametrize("value", [None, 7, [], {}, "x", "missing"])
def test_a_header_that_makes_no_sense_is_no_crash(field, value):
    def change(header):
        if value == "missing":
            del header[field]
            return header
        return {**header, field: value}

    try:
        found = KernelImage.from_bytes(resealed(change), KEY)
    except ValueError:
        return
    assert found.code == IMAGE.code and isinstance(found.name, str)


@pytest.mark.parametrize("header", [[], 3, None, "x", {}])
def test_a_header_of_another_kind_is_refused(header):
    with pytest.raises(ValueError):
        KernelImage.from_bytes(resealed(lambda _: header), KEY)


def test_the_file_of_another_key_is_refused_and_removed(folder):
    kernel_store.keep(KEY, IMAGE)
    os.rename(folder / f"{KEY}.kernel", folder / f"{OTHER}.kernel")
    assert kernel_store.find(OTHER) is None
    assert not list(folder.iterdir())


@pytest.mark.parametrize("data", [b"", b"garbage", DATA[:-1], DATA[:40], b"\0" * 4096])
def test_a_file_that_cannot_be_read_is_removed_and_written_again(folder, data):
    kernel_store.keep(KEY, IMAGE)
    (folder / f"{KEY}.kernel").write_bytes(data)
    assert kernel_store.find(KEY) is None and not list(folder.iterdir())
    kernel_store.keep(KEY, IMAGE)
    assert kernel_store.find(KEY) == IMAGE


def test_a_file_that_others_can_write_to_is_not_read(folder):
    kernel_store.keep(KEY, IMAGE)
    (folder / f"{KEY}.kernel").chmod(0o666)
    assert kernel_store.find(KEY) is None and not list(folder.iterdir())


def test_what_is_no_file_is_left_alone(folder):
    kernel_store.keep(OTHER, IMAGE)
    (folder / f"{KEY}.kernel").mkdir()
    assert kernel_store.find(KEY) is None
    with pytest.warns(RuntimeWarning, match="the kernel scale is not cached in"):
        kernel_store.keep(KEY, IMAGE)
    assert kernel_store.find(OTHER) == IMAGE


def test_a_full_disk_is_warned_of_once(folder, monkeypatch):
    kernel_store.keep(OTHER, IMAGE)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_files.os, "replace", full)
    with pytest.warns(RuntimeWarning, match="the kernel scale is not cached .*No space left"):
        kernel_store.keep(KEY, IMAGE)
    kernel_store.keep(KEY, IMAGE)
    assert [file.name for file in folder.iterdir()] == [f"{OTHER}.kernel"]


def test_nothing_is_kept_where_caches_are_off(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_TMA_CACHE", "0")
    monkeypatch.chdir(tmp_path)
    kernel_store.keep(KEY, IMAGE)
    assert kernel_store.find(KEY) is None and kernel_store.entries() == []
    assert kernel_store.clear() == 0 and not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------- eviction


def keys(count):
    return [f"{i:064x}" for i in range(count)]


def test_what_was_used_longest_ago_is_evicted(folder, monkeypatch):
    nbytes = len(IMAGE.to_bytes(KEY))
    monkeypatch.setattr(kernel_store, "cache_limit", lambda: 5 * nbytes)
    for i, key in enumerate(keys(5)):
        kernel_store.keep(key, IMAGE)
        os.utime(folder / f"{key}.kernel", (1000 + i, 1000 + i))
    assert kernel_store.find(keys(5)[0]) == IMAGE  # used just now
    kernel_store.keep(KEY, IMAGE)
    left = [entry.path.stem for entry in kernel_store.entries()]
    assert sorted(left) == sorted([keys(5)[0], *keys(5)[3:], KEY])
    assert [entry.nbytes for entry in kernel_store.entries()] == [nbytes] * 4


def test_a_kernel_that_is_larger_than_the_limit_is_not_kept(folder, monkeypatch):
    kernel_store.keep(OTHER, IMAGE)
    monkeypatch.setattr(kernel_store, "cache_limit", lambda: 100)
    kernel_store.keep(KEY, IMAGE)
    assert [entry.path.stem for entry in kernel_store.entries()] == [OTHER]


def test_temporary_files_of_dead_writers_are_removed(folder):
    kernel_store.keep(OTHER, IMAGE)
    old, young = folder / ".x-1.tmp", folder / ".x-2.tmp"
    for file in (old, young):
        file.write_text("")
    os.utime(old, (time.time() - 7200,) * 2)
    kernel_store.keep(KEY, IMAGE)
    assert not old.exists() and young.exists()


def test_the_limit_is_read_from_the_environment(monkeypatch):
    monkeypatch.delenv("NUMBA_TMA_CACHE_MIB", raising=False)
    assert kernel_store.cache_limit() == 512 << 20
    monkeypatch.setenv("NUMBA_TMA_CACHE_MIB", "3")
    assert kernel_store.cache_limit() == 3 << 20
    for text in ("0", "-1", "x", "1.5", str(1 << 40)):
        monkeypatch.setenv("NUMBA_TMA_CACHE_MIB", text)
        with pytest.raises(ValueError, match=f"NUMBA_TMA_CACHE_MIB={text!r}: .* in MiB"):
            kernel_store.cache_limit()


def test_a_limit_that_is_none_is_warned_of_once_and_nothing_is_kept(folder, monkeypatch):
    monkeypatch.setenv("NUMBA_TMA_CACHE_MIB", "much")
    with pytest.warns(RuntimeWarning, match="NUMBA_TMA_CACHE_MIB='much'"):
        kernel_store.keep(KEY, IMAGE)
    kernel_store.keep(KEY, IMAGE)
    assert kernel_store.find(KEY) is None


def test_all_files_are_removed(folder):
    for key in keys(3):
        kernel_store.keep(key, IMAGE)
    (folder / "notes").write_text("not a kernel")
    assert kernel_store.clear() == 3
    assert [file.name for file in folder.iterdir()] == ["notes"]


# -------------------------------------------------------------------------- other processes


def _write_and_read(folder, worker, failures):
    os.environ["NUMBA_TMA_CACHE"] = str(folder)
    kernel_store.cache_limit = lambda: 6 * len(DATA)
    for turn in range(60):
        key = keys(8)[(worker + turn) % 8]
        kernel_store.keep(key, dataclasses.replace(IMAGE, name=key))
        for other in keys(8):
            found = kernel_store.find(other)
            if found is not None and (found.name, found.code) != (other, IMAGE.code):
                failures.put((worker, other))


def test_several_processes_write_read_and_evict_at_once(folder):
    context = multiprocessing.get_context("fork")
    failures = context.SimpleQueue()
    workers = [
        context.Process(target=_write_and_read, args=(folder.parent, n, failures)) for n in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4 and failures.empty()
    assert 1 <= len(kernel_store.entries()) <= 7
    assert not [file for file in folder.iterdir() if file.suffix == ".tmp"]

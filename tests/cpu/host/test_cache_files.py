"""The folder of caches: which it is, when there is none, and who may write to it."""

import errno
import os
import warnings

import pytest

from numba_tma.host import cache_files, environment


@pytest.fixture(autouse=True)
def _nothing_was_warned_of(monkeypatch):
    monkeypatch.setattr(cache_files, "_warned", set())


@pytest.fixture
def variable(monkeypatch):
    return lambda value: monkeypatch.setenv("NUMBA_TMA_CACHE", str(value))


ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


def test_where_caches_are(monkeypatch):
    for name in ("NUMBA_TMA_CACHE", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(environment.sys, "platform", "linux")
    assert environment.cache_folder().parts[-2:] == (".cache", "numba_tma")
    for name, folder in {"XDG_CACHE_HOME": "/x", "NUMBA_CACHE_DIR": "/n"}.items():
        monkeypatch.setenv(name, folder)
        assert environment.cache_folder().as_posix() == f"{folder}/numba_tma"
    for switch in ("1", "on", "TRUE", "yes"):
        monkeypatch.setenv("NUMBA_TMA_CACHE", switch)
        assert environment.cache_folder().as_posix() == "/n/numba_tma"
    monkeypatch.setenv("NUMBA_TMA_CACHE", "/own")
    assert environment.cache_folder().as_posix() == "/own"
    monkeypatch.setenv("NUMBA_TMA_CACHE", "~/own")
    assert environment.cache_folder().is_absolute()
    for name in ("NUMBA_TMA_CACHE", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert environment.cache_folder() is None
    assert cache_files.usable_folder() is None  # and says nothing


@pytest.mark.parametrize("switch", ["0", "off", "FALSE", "no"])
def test_caches_are_turned_off_without_a_word(variable, switch):
    variable(switch)
    assert environment.cache_folder() is None
    assert cache_files.usable_folder() is cache_files.private_folder("kernels") is None


def test_a_variable_that_is_set_to_nothing_is_warned_of_once(variable):
    variable("")
    with pytest.warns(RuntimeWarning, match="NUMBA_TMA_CACHE is set to nothing, so nothing is"):
        assert cache_files.usable_folder() is None
    assert cache_files.usable_folder() is None


def test_a_file_in_place_of_the_folder_is_warned_of_once(variable, tmp_path):
    (tmp_path / "file").write_text("")
    for value in (tmp_path / "file", tmp_path / "file" / "below"):
        variable(value)
        with pytest.warns(RuntimeWarning, match=f"nothing is cached in {value}: .*NUMBA_TMA_CACHE"):
            assert cache_files.usable_folder() is None
        assert cache_files.usable_folder() is None


def test_a_folder_that_cannot_be_written_is_warned_of_once(variable, tmp_path, monkeypatch):
    variable(tmp_path)
    monkeypatch.setattr(cache_files.os, "access", lambda path, mode: False)
    with pytest.warns(RuntimeWarning, match=f"in {tmp_path}: it cannot be written; NUMBA_TMA"):
        assert cache_files.usable_folder() is None
    assert cache_files.usable_folder() is None


@pytest.mark.skipif(ROOT, reason="root writes everywhere")
def test_the_folders_mode_is_asked_for(variable, tmp_path):
    (tmp_path / "own").mkdir(mode=0o500)
    variable(tmp_path / "own")
    with pytest.warns(RuntimeWarning, match="it cannot be written"):
        assert cache_files.usable_folder() is None


def test_a_read_only_disk_is_warned_of(variable, tmp_path, monkeypatch):
    variable(tmp_path / "new")

    def mkdir(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(cache_files.Path, "mkdir", mkdir)
    with pytest.warns(RuntimeWarning, match="Read-only file system"):
        assert cache_files.usable_folder() is None


# --------------------------------------------------------------------- what others may write


def test_the_private_folder_is_the_users_own(variable, tmp_path):
    variable(tmp_path / "new")
    folder = cache_files.private_folder("kernels")
    assert folder == tmp_path / "new" / "kernels" and folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_that_others_can_write_to_is_refused(variable, tmp_path, mode):
    variable(tmp_path)
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels").chmod(mode)
    with pytest.warns(RuntimeWarning, match=f"other users can write to it .mode {mode:o}."):
        assert cache_files.private_folder("kernels") is None


def test_a_folder_of_another_user_is_refused(variable, tmp_path, monkeypatch):
    variable(tmp_path)
    assert cache_files.private_folder("kernels") is not None
    owner = os.geteuid()
    monkeypatch.setattr(cache_files.os, "geteuid", lambda: owner + 1)
    with pytest.warns(RuntimeWarning, match=f"belongs to user {owner}, and not to this one"):
        assert cache_files.private_folder("kernels") is None


def test_a_private_file_of_another_user_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"code")
    path.chmod(0o600)
    assert cache_files.read(path, 10, private=True) == b"code"
    path.chmod(0o620)
    with pytest.raises(OSError, match="other users can write to it .mode 620.: remove it"):
        cache_files.read(path, 10, private=True)
    assert cache_files.read(path, 10) == b"code"
    path.chmod(0o600)
    owner = os.geteuid()
    monkeypatch.setattr(cache_files.os, "geteuid", lambda: owner + 1)
    with pytest.raises(OSError, match=f"belongs to user {owner}"):
        cache_files.read(path, 10, private=True)


def test_what_is_no_regular_file_or_too_large_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match="not a regular file|Is a directory"):
            cache_files.read(path, 10)
    (tmp_path / "large").write_bytes(b"12345")
    with pytest.raises(OSError, match="5 bytes, more than 4: remove it"):
        cache_files.read(tmp_path / "large", 4)


def test_a_replacement_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "file"
    cache_files.replace(path, b"old", 0o640)
    assert path.read_bytes() == b"old" and path.stat().st_mode & 0o777 == 0o640

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_files.os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        cache_files.replace(path, b"new", 0o640)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_warning_is_given_once_for_each_text():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for text in ("one", "two", "one"):
            cache_files.warn_once(text)
    assert [str(w.message).partition(";")[0] for w in caught] == ["one", "two"]

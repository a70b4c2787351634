"""Compiled kernels are code: what somebody else may have written is not loaded."""

import hashlib
import os
import shutil
import subprocess
import sys
import warnings
from itertools import product

import pytest
from covering import covering

from integrators.kernels import cache, native
from recipe import RecipeError

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")

TEXT = 'extern "C" int answer() { return NUMBER; }'
numbers = iter(range(1000, 9999))  # a library that is loaded once stays, by its name


@pytest.fixture
def cold(tmp_path, monkeypatch):
    """A cache of its own, and nothing remembered."""
    path = tmp_path / "cache"
    monkeypatch.setenv(cache.CACHE, str(path))
    plain = [flag for flag in native.FLAGS if flag.startswith("-f") or flag == "-shared"]
    monkeypatch.setattr(native, "FLAGS", tuple(plain))
    remembered = (native.library, cache._temporary)
    for f in remembered:
        f.cache_clear()
    yield path
    for f in remembered:
        f.cache_clear()


def answer(number):
    native.library.cache_clear()
    return native.library(TEXT, (f"NUMBER={number}",)).answer()


def elsewhere(number):
    """It is compiled and loaded, outside of the cache, and said so once."""
    with pytest.warns(RuntimeWarning, match="compiled anew in a temporary folder") as seen:
        assert answer(number) == number and answer(number) == number
    assert len(seen) == 1
    return str(seen[0].message)


def planted(cold, number, other):
    """The library of one number under the name of another's, as a stranger who knows the key would write it."""
    assert answer(number) == number and answer(other) == other
    names = {path.read_bytes(): path for path in cold.glob("*.so")}
    mine, theirs = sorted(names.values(), key=lambda path: path.stat().st_mtime_ns)
    for suffix in (".so", ".sha256"):
        shutil.copy(theirs.with_suffix(suffix), mine.with_suffix(suffix + ".copy"))
        os.replace(mine.with_suffix(suffix + ".copy"), mine.with_suffix(suffix))
    return mine


def in_child(number):
    """The answer in a process that has loaded nothing yet."""
    code = f"from integrators.kernels import native; native.FLAGS = {native.FLAGS}\n"
    code += f"print(native.library({TEXT!r}, ('NUMBER={number}',)).answer())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


def test_what_is_made_nobody_else_may_write(cold):
    old = os.umask(0)
    try:
        answer(next(numbers))
    finally:
        os.umask(old)
    assert all(not path.stat().st_mode & 0o022 for path in (cold, *cold.iterdir()))
    assert sorted(path.suffix for path in cold.iterdir()) == [".sha256", ".so"]


def test_a_planted_library_of_ones_own_is_loaded(cold):
    """That the tests below would see one."""
    number, other = next(numbers), next(numbers)
    planted(cold, number, other)
    assert in_child(number) == other


@pytest.mark.parametrize(
    "harm, suffix",
    covering(
        product(["group", "all", "link"], [".so", ".sha256"]), [("group", ".so"), ("all", ".sha256"), ("link", ".so")]
    ),
)
def test_a_file_that_others_may_write_is_made_again(cold, harm, suffix):
    number, other = next(numbers), next(numbers)
    path = planted(cold, number, other).with_suffix(suffix)
    if harm == "link":
        path.rename(cold.parent / "target")
        path.symlink_to(cold.parent / "target")
    else:
        path.chmod(0o620 if harm == "group" else 0o602)
    assert in_child(number) == number
    assert not path.is_symlink() and not path.stat().st_mode & 0o022


@pytest.mark.parametrize("mode", [0o770, 0o703, 0o1777])
def test_a_folder_that_others_may_write_to_is_not_used(cold, mode):
    number, other = next(numbers), next(numbers)
    planted(cold, number, other)
    cold.chmod(mode)
    before = sorted(cold.iterdir())
    assert "others may write there" in elsewhere(number)
    assert sorted(cold.iterdir()) == before


def test_the_folder_and_the_files_of_another_user_are_not_used(cold, monkeypatch):
    number, other = next(numbers), next(numbers)
    planted(cold, number, other)
    user = os.getuid()
    stat = os.fstat
    monkeypatch.setattr(os, "fstat", lambda d: owned(stat(d), 7 if stat(d).st_ino == cold.stat().st_ino else user))
    assert "belongs to user 7" in elsewhere(number)


def owned(status, user):
    values = list(status)
    values[4] = user
    return os.stat_result(values)


def test_a_folder_that_cannot_be_made_is_said(cold):
    cold.parent.mkdir(exist_ok=True)
    cold.write_text("")
    assert "cannot be used (File exists)" in elsewhere(next(numbers))


def test_a_pipe_in_the_cache_does_not_hang(cold):
    number = next(numbers)
    answer(number)
    (path,) = cold.glob("*.so")
    path.unlink()
    os.mkfifo(path)
    assert in_child(number) == number and path.is_file()


def test_the_folder_s_name_may_come_to_lead_elsewhere(cold, monkeypatch):
    """Between the look at the folder and the loading somebody puts another in its place."""
    number, other = next(numbers), next(numbers)
    planted(cold, number, other)
    bad = cold.parent / "bad"
    cold.rename(bad)
    whole = cache.Files.whole

    def swapped(self, name):
        result = whole(self, name)
        if cold.is_dir() and not (cold.parent / "good").exists():
            cold.rename(cold.parent / "good")
            bad.rename(cold)
        return result

    monkeypatch.setattr(cache.Files, "whole", swapped)
    assert answer(next(numbers)) and (cold.parent / "good").exists()
    assert len(list((cold.parent / "good").glob("*.so"))) == 1 and len(list(cold.glob("*.so"))) == 2


def test_systems_without_users_or_descriptors_of_folders(cold, monkeypatch):
    monkeypatch.delattr(os, "getuid")
    monkeypatch.setattr(cache, "BY_DESCRIPTOR", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        number = next(numbers)
        assert answer(number) == number
        cold.chmod(0o777)
        assert answer(number) == number
    assert len(list(cold.glob("*.so"))) == 1


def test_the_temporary_folder_goes_with_the_process_and_not_with_its_forks(cold):
    cold.mkdir()
    cold.chmod(0o777)
    temporary = cold.parent / "temporary"
    temporary.mkdir()
    lines = [
        "import os, pathlib",
        "from integrators.kernels import native",
        f"native.library({TEXT!r}, ('NUMBER={next(numbers)}',))",
        "if not (child := os.fork()): raise SystemExit",
        "os.waitpid(child, 0)",
        f"print([path.name for path in pathlib.Path({str(temporary)!r}).glob('sde-recipe-*/*.so')])",
    ]
    environment = os.environ | {"TMPDIR": str(temporary)}
    run = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=300, env=environment
    )
    assert run.returncode == 0, run.stderr
    assert ".so" in run.stdout and not list(temporary.glob("sde-recipe-*"))


def test_a_library_without_the_functions_of_the_text_is_made_again(cold):
    """Sealed as ours, of another text: its functions are looked for when it is loaded."""
    number, other = next(numbers), next(numbers)
    library = planted(cold, number, other)
    contents = native._compiled('extern "C" int other() { return 1; }', native.compiler().command, native.FLAGS)
    library.write_bytes(contents)
    library.with_suffix(".sha256").write_text(hashlib.sha256(contents).hexdigest())
    assert in_child(number) == number


def test_a_folder_in_the_place_of_a_library_is_said(cold):
    number = next(numbers)
    answer(number)
    (library,) = cold.glob("*.so")
    library.unlink()
    library.mkdir()
    with pytest.raises(RecipeError, match="a kernel cannot be made: .*directory"):
        answer(number)
    assert not list(cold.glob("*.so.*"))

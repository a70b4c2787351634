"""Compiled kernels are code: what somebody else may have written is not loaded."""

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import warnings

import pytest

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


def library_of(cold, number):
    """The file of a number that is new in the cache."""
    before = {*cold.glob("*.so")}
    assert answer(number) == number
    (path,) = {*cold.glob("*.so")} - before
    return path


def plant(mine, theirs):
    """Another's library under the name of mine, as a stranger who knows the key would write it."""
    for suffix in (".so", ".sha256"):
        shutil.copy(theirs.with_suffix(suffix), mine.with_suffix(suffix + ".copy"))
        os.replace(mine.with_suffix(suffix + ".copy"), mine.with_suffix(suffix))


def planted(cold, number):
    """The file of a number, with the library of another one."""
    theirs, mine = library_of(cold, next(numbers)), library_of(cold, number)
    plant(mine, theirs)
    return mine


def in_child(*several):
    """The answers in a process that has loaded nothing yet."""
    code = f"from integrators.kernels import native; native.FLAGS = {native.FLAGS}\n"
    code += f"print(*(native.library({TEXT!r}, (f'NUMBER={{n}}',)).answer() for n in {several}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return [int(word) for word in run.stdout.split()]


def test_what_is_made_nobody_else_may_write(cold):
    old = os.umask(0)
    try:
        answer(next(numbers))
    finally:
        os.umask(old)
    assert all(not path.stat().st_mode & 0o022 for path in (cold, *cold.iterdir()))
    assert sorted(path.suffix for path in cold.iterdir()) == [".sha256", ".so"]


def linked(path):
    """The file elsewhere, and a link in its place."""
    path.rename(path.parent.parent / path.name)
    path.symlink_to(path.parent.parent / path.name)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def of_another_text(path):
    """Sealed as ours: its functions are looked for when it is loaded."""
    contents = native._compiled('extern "C" int other() { return 1; }', native.compiler().command, native.FLAGS)
    path.write_bytes(contents)
    path.with_suffix(".sha256").write_text(hashlib.sha256(contents).hexdigest())


HARMS = {
    **{("group", suffix): lambda path: path.chmod(0o620) for suffix in (".so", ".sha256")},
    **{("all", suffix): lambda path: path.chmod(0o602) for suffix in (".so", ".sha256")},
    **{("link", suffix): linked for suffix in (".so", ".sha256")},
    ("pipe", ".so"): pipe,
    ("another text", ".so"): of_another_text,
}


def test_a_planted_library_is_loaded_where_it_is_ones_own_and_a_harmed_one_is_made_again(cold):
    other, own = next(numbers), next(numbers)
    theirs = library_of(cold, other)
    plant(library_of(cold, own), theirs)  # the harmed ones would be loaded, too
    expected = {own: other}
    for (_, suffix), harm in HARMS.items():
        number = next(numbers)
        mine = library_of(cold, number)
        plant(mine, theirs)
        harm(mine.with_suffix(suffix))
        expected[number] = number
    assert in_child(*expected) == [*expected.values()]
    assert all(stat.S_ISREG(mode) and not mode & 0o022 for mode in (path.lstat().st_mode for path in cold.iterdir()))


@pytest.mark.parametrize("mode", [0o770, 0o703, 0o1777])
def test_a_folder_that_others_may_write_to_is_not_used(cold, mode):
    number = next(numbers)
    planted(cold, number)
    cold.chmod(mode)
    before = sorted(cold.iterdir())
    assert "others may write there" in elsewhere(number)
    assert sorted(cold.iterdir()) == before


def test_the_folder_and_the_files_of_another_user_are_not_used(cold, monkeypatch):
    number = next(numbers)
    planted(cold, number)
    user = os.getuid()
    look = os.fstat
    monkeypatch.setattr(os, "fstat", lambda d: owned(look(d), 7 if look(d).st_ino == cold.stat().st_ino else user))
    assert "belongs to user 7" in elsewhere(number)


def owned(status, user):
    values = list(status)
    values[4] = user
    return os.stat_result(values)


def test_a_folder_that_cannot_be_made_is_said(cold):
    cold.parent.mkdir(exist_ok=True)
    cold.write_text("")
    assert "cannot be used (File exists)" in elsewhere(next(numbers))


def test_the_folder_s_name_may_come_to_lead_elsewhere(cold, monkeypatch):
    """Between the look at the folder and the loading somebody puts another in its place."""
    number = next(numbers)
    planted(cold, number)
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


def test_a_folder_in_the_place_of_a_library_is_said(cold):
    number = next(numbers)
    answer(number)
    (library,) = cold.glob("*.so")
    library.unlink()
    library.mkdir()
    with pytest.raises(RecipeError, match="a kernel cannot be made: .*directory"):
        answer(number)
    assert not list(cold.glob("*.so.*"))

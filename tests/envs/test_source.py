"""Source builds with real compilers: C, C++ and Fortran through make, CMake, autotools and plain commands."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.commands import Here
from fairmile.base.errors import Integrity, NotFound, SystemFailure, UsageError
from fairmile.envs import source
from fairmile.envs.envs import Envs
from fairmile.envs.records import Environment
from fairmile.envs.source import unpack
from fairmile.envs.spec import parse_spec

HELLO_C = '#include <stdio.h>\nint main(void) { puts("hello from C"); return 0; }\n'
MAKEFILE = """\
PREFIX ?= /usr/local
hello: hello.c
\t$(CC) $(CFLAGS) -o hello hello.c
install: hello
\tmkdir -p $(PREFIX)/bin
\tcp hello $(PREFIX)/bin/
"""
CMAKE = """\
cmake_minimum_required(VERSION 3.16)
project(greet CXX Fortran)
add_library(greet SHARED greet.cpp)
add_executable(greetings main.f90)
set_target_properties(greetings PROPERTIES LINKER_LANGUAGE Fortran)
target_link_libraries(greetings greet)
install(TARGETS greet greetings LIBRARY DESTINATION lib RUNTIME DESTINATION bin)
"""
GREET_CPP = '#include <iostream>\nextern "C" void greet() { std::cout << "C++ says " << GREETING << std::endl; }\n'
MAIN_F90 = """\
program main
  interface
    subroutine greet() bind(c)
    end subroutine
  end interface
  call greet()
  print *, 'Fortran says hello'
end program
"""


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"needs the program {program}")


def build(tmp_path: Path, *builds: Mapping[str, Any], check: str = "", expect: str = "") -> Environment:
    checks = [{"run": check, "expect": expect}] if check else []
    spec = parse_spec({"name": "demo", "builds": list(builds), "checks": checks}, folder=tmp_path)
    return Envs(tmp_path / "envs", Here(), environ=os.environ).build(spec)


@pytest.fixture
def hello(tmp_path: Path) -> Path:
    need("make", "cc")
    return write(tmp_path / "hello", {"hello.c": HELLO_C, "Makefile": MAKEFILE})


def test_a_c_program_through_make(tmp_path: Path, hello: Path) -> None:
    built = build(
        tmp_path, {"name": "hello", "folder": "hello", "system": "make"}, check="hello", expect="^hello from C"
    )
    assert built.lock["build-hello"]["tree"]
    assert built.lock["build-hello"]["compilers"]["CC"]
    assert not (hello / "hello").exists()


def test_cpp_and_fortran_through_cmake(tmp_path: Path) -> None:
    need("cmake", "c++", "gfortran")
    write(tmp_path / "greet", {"CMakeLists.txt": CMAKE, "greet.cpp": GREET_CPP, "main.f90": MAIN_F90})
    given = {"name": "greet", "folder": "greet", "options": ["-DCMAKE_CXX_FLAGS=-DGREETING='\"good day\"'"]}
    built = build(tmp_path, given, check="greetings", expect=r"C\+\+ says good day\n.*Fortran says hello")
    assert (built.prefix / "lib" / "libgreet.so").exists()
    assert set(built.lock["build-greet"]["compilers"]) == {"CC", "CXX", "FC"}


def test_a_second_build_finds_the_library_of_the_first(tmp_path: Path) -> None:
    need("make", "cc")
    library = (
        "all:\n\ninstall:\n\tmkdir -p $(PREFIX)/include\n\techo '#define WORD \"found\"' > $(PREFIX)/include/word.h\n"
    )
    write(tmp_path / "library", {"Makefile": library})
    source = HELLO_C.replace('"hello from C"', "WORD").replace("#include", "#include <word.h>\n#include", 1)
    write(tmp_path / "program", {"hello.c": source, "Makefile": MAKEFILE})
    one = {"name": "library", "folder": "library", "system": "make"}
    build(tmp_path, one, {"name": "program", "folder": "program", "system": "make"}, check="hello", expect="found")


@pytest.mark.parametrize("place", ["lib", "lib64", "share"])
def test_what_was_installed_is_known_to_pkg_config(tmp_path: Path, place: str) -> None:
    need("make", "pkg-config")
    lines = "Name: tides\\nDescription: tides\\nVersion: 1.5\\n"
    at = f"$(PREFIX)/{place}/pkgconfig"
    write(tmp_path / "tides", {"Makefile": f"all:\n\ninstall:\n\tmkdir -p {at}\n\tprintf '{lines}' > {at}/tides.pc\n"})
    build(
        tmp_path,
        {"name": "tides", "folder": "tides", "system": "make"},
        check="pkg-config --modversion tides",
        expect="1.5",
    )


@pytest.mark.thorough
def test_autotools_from_configure_ac(tmp_path: Path) -> None:
    need("autoreconf", "automake", "make", "cc")
    write(
        tmp_path / "auto",
        {
            "configure.ac": "AC_INIT([auto],[1.0])\nAM_INIT_AUTOMAKE([foreign])\nAC_PROG_CC\n"
            "AC_CONFIG_FILES([Makefile])\nAC_OUTPUT\n",
            "Makefile.am": "bin_PROGRAMS = auto\nauto_SOURCES = hello.c\n",
            "hello.c": HELLO_C,
        },
    )
    given = {"name": "auto", "folder": "auto", "system": "autotools", "options": ["--program-suffix=-tool"]}
    build(tmp_path, given, check="auto-tool", expect="hello from C")


def test_tools_that_generate_configure_are_named_where_one_is_missing(tmp_path: Path) -> None:
    need("autoreconf")
    write(tmp_path / "auto", {"configure.ac": "AC_INIT([auto],[1.0])\nLT_NO_SUCH_MACRO_THERE([2.4])\nAC_OUTPUT(\n"})
    with pytest.raises(SystemFailure, match="autoreconf") as caught:
        build(tmp_path, {"name": "auto", "folder": "auto", "system": "autotools"}, check="auto", expect="")
    assert caught.value.hint == "install autoconf, automake, libtool and m4, or name modules that bring them"


def test_a_configure_script_alone_is_enough(tmp_path: Path) -> None:
    need("make", "cc")
    text = "#!/bin/sh\nfor each; do case $each in --prefix=*) echo PREFIX=${each#*=} > settings.mk;; esac; done\n"
    write(tmp_path / "old", {"configure": text, "Makefile": "include settings.mk\n" + MAKEFILE, "hello.c": HELLO_C})
    (tmp_path / "old" / "configure").chmod(0o755)
    build(tmp_path, {"name": "old", "folder": "old", "system": "autotools"}, check="hello", expect="hello from C")


@pytest.mark.parametrize("system", ["autotools", "cmake"])
def test_variables_in_options_are_filled_in_where_they_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    monkeypatch.setenv("TIDES_HOME", "/opt/the tides")
    monkeypatch.delenv("ORIGIN", raising=False)
    write(
        tmp_path / "said",
        {
            "configure": '#!/bin/sh\nfor each; do echo "$each"; done > given\n',
            "Makefile": "all:\n\ninstall:\n\tmkdir -p $(PREFIX)\n\tcp given $(PREFIX)/\n",
            "CMakeLists.txt": "cmake_minimum_required(VERSION 3.10)\nproject(said NONE)\n"
            'file(WRITE ${CMAKE_BINARY_DIR}/given "${FIRST}\\n${SECOND}\\n${THIRD}\\n")\n'
            "install(FILES ${CMAKE_BINARY_DIR}/given DESTINATION .)\n",
        },
    )
    (tmp_path / "said" / "configure").chmod(0o755)
    options = ["-DFIRST=${TIDES_HOME}/lib", "-DSECOND=$ORIGIN/../lib", "-DTHIRD=it's $(date)"]
    built = build(tmp_path, {"name": "said", "folder": "said", "system": system, "options": options})
    given = (
        (built.prefix / "given").read_text().replace("-DFIRST=", "").replace("-DSECOND=", "").replace("-DTHIRD=", "")
    )
    assert given.splitlines()[-3:] == ["/opt/the tides/lib", "$ORIGIN/../lib", "it's $(date)"]
    assert "/opt/the tides" not in (built.folder / "log.txt").read_text()


def test_plain_commands_share_one_shell(tmp_path: Path, hello: Path) -> None:
    lines = ["mkdir out", "cd out", "cc $SPEED -o hi ../hello.c", 'mkdir -p "$PREFIX/bin"', 'cp hi "$PREFIX/bin/"']
    given = {
        "name": "hi",
        "folder": "hello",
        "system": "commands",
        "commands": lines,
        "variables": {"SPEED": "-O$LEVEL"},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEVEL", "2")
        built = build(tmp_path, given, check="hi", expect="hello from C")
    assert built.ready


def test_patches_are_applied_and_part_of_the_digest(tmp_path: Path, hello: Path) -> None:
    patch = "--- a/hello.c\n+++ b/hello.c\n@@ -1,2 +1,2 @@\n #include <stdio.h>\n" + "".join(
        f"{sign}{line}\n"
        for sign, line in (("-", HELLO_C.splitlines()[1]), ("+", HELLO_C.splitlines()[1].replace("from C", "patched")))
    )
    (tmp_path / "fix.patch").write_text(patch)
    given = {"name": "hello", "folder": "hello", "system": "make", "patches": ["fix.patch"]}
    built = build(tmp_path, given, check="hello", expect="hello patched")
    (tmp_path / "fix.patch").write_text(patch.replace("hello patched", "hello mended"))
    again = build(tmp_path, given, check="hello", expect="hello mended")
    assert again.digest != built.digest
    assert [each.name for each in Envs(tmp_path / "envs", Here(), environ=os.environ).ls()] == ["demo", "demo"]


def test_a_patch_that_does_not_fit_is_told_with_what_patch_says(tmp_path: Path, hello: Path) -> None:
    (tmp_path / "bad.patch").write_text("--- a/hello.c\n+++ b/hello.c\n@@ -1,1 +1,1 @@\n-nothing\n+something\n")
    with pytest.raises(SystemFailure, match=r"patch -p1.*exit code 1:\n(.*\n)*.*hello\.c"):
        build(tmp_path, {"name": "hello", "folder": "hello", "system": "make", "patches": ["bad.patch"]})


def test_a_compiler_error_is_shown(tmp_path: Path, hello: Path) -> None:
    (hello / "hello.c").write_text("int main( { }\n")
    with pytest.raises(SystemFailure, match=r"`make .*error"):
        build(tmp_path, {"name": "hello", "folder": "hello", "system": "make"})


def test_an_archive_is_known_by_its_digest(tmp_path: Path, hello: Path) -> None:
    archive = tmp_path / "hello-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(hello, "hello-1.0")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    given = {"name": "hello", "archive": "hello-1.0.tar.gz", "system": "make", "sha256": digest}
    built = build(tmp_path, given, check="hello")
    assert built.lock["build-hello"]["sha256"] == digest
    with pytest.raises(Integrity, match=", expected"):
        build(tmp_path, {**given, "sha256": "0" * 64})
    with pytest.raises(NotFound, match=r"none\.tgz"):
        build(tmp_path, {**given, "archive": "none.tgz"})


def test_an_archive_elsewhere_is_brought_and_checked(tmp_path: Path, hello: Path) -> None:
    archive = tmp_path / "store" / "object"
    archive.parent.mkdir()
    with tarfile.open(archive, "w") as tar:
        tar.add(hello, ".")
    asked: list[tuple[str, str | None]] = []

    def bring(address: str, sha256: str | None) -> Path:
        asked.append((address, sha256))
        return archive

    address = "https://example.org/hello.tar"
    envs = Envs(tmp_path / "envs", Here(), environ=os.environ, bring=bring)
    given = {"name": "hello", "archive": address, "system": "make"}
    built = envs.build(parse_spec({"name": "demo", "builds": [given]}))
    assert asked == [(address, None)]
    assert built.lock["build-hello"]["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with pytest.raises(Integrity, match=", expected"):
        envs.build(parse_spec({"name": "demo", "builds": [{**given, "sha256": "1" * 64}]}))


def git(folder: Path, *arguments: str) -> str:
    words = ["git", "-c", "user.name=x", "-c", "user.email=x@y", "-c", "protocol.file.allow=always", *arguments]
    return subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_a_git_revision_with_its_submodule(tmp_path: Path, hello: Path) -> None:
    need("git")
    inner = write(tmp_path / "inner", {"word.h": '#define WORD "from the submodule"\n'})
    for folder in (inner, hello):
        git(folder, "init", "--quiet")
        git(folder, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(inner, "add", ".")
    git(inner, "commit", "--quiet", "-m", "one")
    git(hello, "submodule", "--quiet", "add", "../inner", "parts/inner")
    (hello / "hello.c").write_text('#include "parts/inner/word.h"\n' + HELLO_C.replace('"hello from C"', "WORD"))
    git(hello, "add", ".")
    git(hello, "commit", "--quiet", "-m", "one")
    commit = git(hello, "rev-parse", "HEAD")
    (hello / "hello.c").write_text("broken since\n")
    git(hello, "commit", "--quiet", "-am", "two")
    given = {"name": "hello", "git": str(hello), "revision": commit, "system": "make"}
    built = build(tmp_path, given, check="hello", expect="from the submodule")
    assert built.lock["build-hello"]["commit"] == commit
    assert built.lock["build-hello"]["submodules"] == {"parts/inner": git(inner, "rev-parse", "HEAD")}
    with pytest.raises(NotFound, match="git fetch"):
        build(tmp_path, {**given, "revision": "no-such-branch"})


def test_a_submodule_that_git_is_told_to_leave_out_is_not_fetched(tmp_path: Path, hello: Path) -> None:
    need("git")
    inner = write(tmp_path / "inner", {"word.h": ""})
    for folder in (inner, hello):
        git(folder, "init", "--quiet")
    git(inner, "add", ".")
    git(inner, "commit", "--quiet", "-m", "one")
    git(hello, "submodule", "--quiet", "add", "../inner", "unit/inner")
    git(hello, "config", "--file", ".gitmodules", "submodule.unit/inner.update", "none")
    git(hello, "config", "--file", ".gitmodules", "submodule.unit/inner.url", "git@nowhere.invalid:inner.git")
    git(hello, "add", ".")
    git(hello, "commit", "--quiet", "-m", "one")
    built = build(
        tmp_path, {"name": "hello", "git": str(hello), "system": "make"}, check="hello", expect="hello from C"
    )
    assert "submodules" not in built.lock["build-hello"]


def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        archive.writestr("../outside.txt", "x")
    with pytest.raises(UsageError, match="leaves its folder"):
        unpack(tmp_path / "evil.zip", tmp_path / "in" / "side")
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        info = tarfile.TarInfo("../outside.txt")
        tar.addfile(info)
    with pytest.raises(UsageError, match="cannot unpack"):
        unpack(tmp_path / "evil.tar", tmp_path / "in" / "side")
    (tmp_path / "text.tgz").write_text("no archive")
    with pytest.raises(UsageError, match="neither a tar nor a zip"):
        unpack(tmp_path / "text.tgz", tmp_path / "in" / "side")
    assert not (tmp_path / "in" / "outside.txt").exists()


def test_a_zip_keeps_what_can_be_executed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        info = zipfile.ZipInfo("a/configure")
        info.external_attr = 0o755 << 16
        archive.writestr(info, "#!/bin/sh\n")
    unpack(tmp_path / "a.zip", tmp_path / "out")
    assert os.access(tmp_path / "out" / "a" / "configure", os.X_OK)


def encrypted(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", "x")
    data = bytearray(file.read_bytes())
    data[6] |= 1  # the flag in the member's own header and in the directory
    data[data.index(b"PK\1\2") + 8] |= 1
    file.write_bytes(data)


def unknown_method(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", "x")
    data = bytearray(file.read_bytes())
    data[8] = data[data.index(b"PK\1\2") + 10] = 77
    file.write_bytes(data)


def link_to_nothing(file: Path) -> None:
    with tarfile.open(file, "w") as tar:
        info = tarfile.TarInfo("a")
        info.type, info.linkname = tarfile.LNKTYPE, "missing"
        tar.addfile(info)


def clash(file: Path) -> None:
    with tarfile.open(file, "w") as tar:
        tar.addfile(tarfile.TarInfo("a"))
        tar.addfile(tarfile.TarInfo("a/b"))


def zip_clash(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", "x")
        archive.writestr("a/b", "x")


def long_name(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a" * 300, "x")


@pytest.mark.parametrize("make", [encrypted, unknown_method, link_to_nothing, clash, zip_clash, long_name])
def test_an_archive_that_cannot_be_unpacked_is_told_in_one_sentence(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "odd.archive")
    with pytest.raises(UsageError, match=r"^cannot unpack .*odd\.archive.*: .+") as caught:
        unpack(tmp_path / "odd.archive", tmp_path / "out")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["zip", "tgz"])
def test_an_archive_that_grows_beyond_measure_is_refused(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_RATIO_FROM_BYTES", 1 << 20)
    (tmp_path / "zeros").write_bytes(bytes(4 << 20))
    if form == "zip":
        with zipfile.ZipFile(tmp_path / "a", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(tmp_path / "zeros", "zeros")
    else:
        with tarfile.open(tmp_path / "a", "w:gz") as tar:
            tar.add(tmp_path / "zeros", "zeros")
    with pytest.raises(UsageError, match="more than allowed"):
        unpack(tmp_path / "a", tmp_path / "out")
    assert not (tmp_path / "out" / "zeros").exists()


def test_an_archive_that_cannot_be_unpacked_is_the_reason_that_is_kept(tmp_path: Path) -> None:
    clash(tmp_path / "a.tar")
    with pytest.raises(UsageError):
        build(tmp_path, {"name": "a", "archive": str(tmp_path / "a.tar"), "system": "make"})
    (found,) = Envs(tmp_path / "envs", Here(), environ={}).ls()
    assert "cannot unpack" in found.failure["message"]

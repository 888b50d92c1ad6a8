"""Notes which files a Python program opens; the recorder puts this folder first on PYTHONPATH.

It runs in every Python that a program starts, also in an old one, so it needs nothing and keeps quiet. A path is noted
when it is first opened, before that happens: r (to read), a (to read, and not there), w (to write), l (a folder is
listed), x (another program is started), n (a library that opens files by itself is imported), p (this process). No
content is. Where `opened.c` was preloaded, which sees more, this file does nothing.
"""

import os
import sys

TYPE_CHECKING = False  # a program must not wait for `typing`
if TYPE_CHECKING:
    from typing import Any

_READING = ("os.listdir", "os.scandir")
_STARTING = ("subprocess.Popen", "os.exec", "os.posix_spawn")
_LIBRARIES = ("h5py", "netCDF4", "tables", "pyarrow", "sqlite3", "rasterio", "osgeo", "cv2", "zstandard", "duckdb")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _start(log: str) -> None:
    own = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, os.path.dirname(os.__file__)}
    skipped = tuple(each.rstrip("/") + "/" for each in own if each not in ("", "/"))
    skipped += ("/usr/", "/lib", "/bin/", "/sbin/", "/etc/", "/proc/", "/sys/", "/dev/", "/run/", log)
    seen: set[Any] = set()

    def note(kind: str, path: str) -> None:
        # A descriptor that is kept may be closed by the program, and be another file then.
        line = kind.encode() + b" " + os.fsencode(path).hex().encode() + b"\n"
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def opened(kind: str, given: "Any") -> None:
        if isinstance(given, int) or (kind, given) in seen:
            return
        seen.add((kind, given))
        path = os.path.abspath(os.fsdecode(given))
        if path.startswith(skipped) or path.endswith(".pyc"):
            return
        note("a" if kind == "r" and not os.path.lexists(path) else kind, path)

    def hook(event: str, arguments: "tuple[Any, ...]") -> None:
        try:
            if event == "open":
                flags = arguments[2] or 0
                opened("w" if flags & _WRITES else "r", arguments[0])
            elif event in _READING:
                opened("l", "." if arguments[0] is None else arguments[0])
            elif event in _STARTING:
                words = arguments[1]
                first = words if isinstance(words, (str, bytes)) else words[0] if words else arguments[0]
                isolated = any(word in ("-I", "-E", "-S") for word in words[1:4] if isinstance(word, str))
                note("x", os.path.basename(os.fsdecode(first)) + (" -I" if isolated else ""))
            elif event == "import":
                if arguments[0] in _LIBRARIES:
                    note("n", arguments[0])
            elif event == "os.system":
                note("x", "sh")
        except Exception:  # noqa: BLE001  a program must not notice
            pass

    try:
        note("p", str(os.getpid()))
    except OSError:  # nothing can be noted, as where the folder of the run is gone
        return
    sys.addaudithook(hook)


def _go_on() -> None:
    """Import what would have been imported in place of this file."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if not each or os.path.abspath(each) != here]
    for finder in sys.meta_path:
        spec = finder.find_spec("sitecustomize", sys.path) if hasattr(finder, "find_spec") else None
        if spec is not None and spec.loader is not None:
            module = type(sys)("sitecustomize")
            module.__spec__, module.__file__ = spec, spec.origin
            sys.modules["sitecustomize"] = module
            spec.loader.exec_module(module)
            return


_IS_PRELOADED = os.environ.get("FAIRMILE_PRELOADED", "").lstrip("0") == str(os.getpid())
if os.environ.get("FAIRMILE_OPENED") and hasattr(sys, "addaudithook") and not _IS_PRELOADED:
    _start(os.environ["FAIRMILE_OPENED"])
_go_on()

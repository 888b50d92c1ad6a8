"""Records a window of a program with torch's profiler, without a word of the program; sitecustomize.py begins it.

Steps are those of the optimizer; where there is none, seconds count. Nothing that fails here reaches the program, and
nothing but the standard library and torch is needed. What became of the process is told in processes/HOST.PID.json.
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import json
import os
import re
import sys
import threading
import time
import warnings
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CLOCK = "fairmile.clock"
_FAULTS = (RuntimeError, OSError, ValueError, LookupError, AttributeError, TypeError, AssertionError, ImportError)
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_WORLDS = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
# Programs of torch itself that start others, or compile for them.
_STARTERS = re.compile(
    r"(.*/)?(torchrun|horovodrun|accelerate|deepspeed)|torch\.distributed\.(run|launch)|accelerate\.commands\..*"
    r"|deepspeed\.launcher\..*|.*/torch/(_inductor|distributed)/.*"
)
_MOST_FOREIGN_STEPS = 50  # of other optimizers before one of them counts
_MOST_WINDOWS = 20
_LOOK_S = 0.02


def begin(torch: Any, text: str) -> None:
    """Record the process that has just imported torch, unless it only starts others; `told` are the settings."""
    settings = json.loads(text)
    words = getattr(sys, "orig_argv", ["", *sys.argv])[1:]  # before Python 3.10 there is but the program
    program = next((word for word in words if word == "-c" or not word.startswith("-")), "")
    if _STARTERS.fullmatch(program):
        return
    with suppress(*_FAULTS):
        _Recorder(torch, settings).begin()


class _Recorder:
    """The windows of one process."""

    def __init__(self, torch: Any, settings: dict[str, Any]) -> None:
        self._torch = torch
        self._folder: str = settings["folder"]
        self._skip: int = settings["skip"]
        self._steps: int = settings["steps"]
        self._every: int | None = settings["every"]
        self._options: dict[str, bool] = settings["options"]
        self._counts: bool = settings["counters"]  # ncu counts the kernels, which leaves no other profiler the device
        self._flight: str = settings["flight"]  # where the collectives that torch itself noted go; empty: nowhere
        self._after_s: float = settings["after_s"]
        self._seconds: float = settings["seconds"]
        self._timer: tuple[threading.Thread, threading.Event] | None = None
        self._due_s = 0.0  # when to start, and when to end, where there are no steps
        self._end_s = 0.0
        self._calls: list[Any] = []  # what C was given must not be collected
        self._is_asked = False  # whether the main thread has not come to the last of them yet
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._step = 0
        self._foreign = 0
        self._driver: int | None = None  # the optimizer whose steps count
        self._profile: Any = None
        self._is_recording = False
        self._by = "steps"
        self._is_pending = False  # a step is over as soon as torch's own mark of it is
        self._mark: Any = None
        self._first = 0
        self._start_at = self._skip
        self._clocks: list[dict[str, Any]] = []
        self._windows: list[dict[str, Any]] = []
        self._reason = ""
        self._patches: list[tuple[Any, str, Any]] = []
        self._is_over = False
        self._rank: int | None = None
        self._world: int | None = None

    def begin(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self._stepped)
        atexit.register(self._finish)
        os.register_at_fork(
            before=self._stop_timer, after_in_parent=self._resume_timer, after_in_child=self._begin_in_child
        )
        self._who()
        self._note("begun")
        self._due_s = time.monotonic() + self._after_s
        self._resume_timer()

    def _begin_in_child(self) -> None:
        self._timer = None
        for owner, name, original in self._patches:
            setattr(owner, name, original)
        self._reset()
        self._due_s = self._end_s = 0.0

    # Steps

    def _stepped(self, optimizer: Any, *_: object) -> None:
        """Count a step of the optimizer, inside of torch's own mark of it."""
        if self._is_over:
            return
        if self._driver != id(optimizer):
            self._foreign += 1
            if self._driver is not None and self._foreign < _MOST_FOREIGN_STEPS:
                return
            self._driver = id(optimizer)
        self._foreign = 0
        if self._is_pending:  # there was no mark
            self._guarded(self._boundary)
        if self._step == 0:
            self._guarded(self._forget_seconds)
        self._step += 1
        if self._is_recording:
            self._is_pending = True
        elif self._step == self._start_at:
            self._guarded(self._start)
        elif self._step == self._start_at - 1 and self._has_device() and not self._counts:
            self._guarded(self._prepare)  # what counts on the device needs a while before it does so evenly

    def _boundary(self) -> None:
        self._is_pending = False
        if not self._is_recording:
            return
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
        if self._step >= self._first + self._steps:
            self._stop("")
            if self._every and len(self._windows) < _MOST_WINDOWS:
                self._start_at = self._first + self._every
        else:
            self._enter_step()

    def _enter_step(self) -> None:
        self._mark = self._torch.autograd.profiler.record_function(f"ProfilerStep#{self._step}")
        self._mark.__enter__()

    # Seconds

    def _resume_timer(self) -> None:
        if not self._due_s or self._step or self._is_over:
            return
        stop = threading.Event()
        thread = threading.Thread(target=self._wait, args=(stop,), name="fairmile-trace", daemon=True)
        self._timer = thread, stop
        with suppress(RuntimeError):
            thread.start()

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer[1].set()
            if timer[0].is_alive() and timer[0] is not threading.current_thread():
                timer[0].join(5)

    def _wait(self, stop: threading.Event) -> None:
        # The profiler sees the thread that starts it: it must be that of the program, which may take its time.
        while not self._end_s:
            if not self._due_s or stop.wait(max(self._due_s - time.monotonic(), _LOOK_S)):
                return
            if not self._is_asked and not self._end_s:  # in this order: who answers sets the second one first
                self._in_main_thread(self._start_seconds)
        if not stop.wait(max(self._end_s - time.monotonic(), 0.0)):
            self._due_s = 0.0
            self._in_main_thread(self._stop_seconds)

    def _in_main_thread(self, function: Callable[[], None]) -> None:
        def call(_: object) -> int:
            try:
                self._guarded(function)
            except KeyboardInterrupt:  # meant for the program, and lost in a call from C
                _thread.interrupt_main()
            self._is_asked = False
            return 0

        self._is_asked = True
        kept = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(call)
        self._calls.append(kept)
        ctypes.pythonapi.Py_AddPendingCall(kept, None)

    def _start_seconds(self) -> None:
        data = sys.modules.get("torch.utils.data")
        if self._step or self._is_over or (data is not None and data.get_worker_info() is not None):
            self._due_s = 0.0
            return
        if _is_importing():  # what we need may be half there
            return
        self._by = "seconds"
        self._start()
        # Last, since the thread that waits may ask for the end at once.
        self._end_s, self._due_s = time.monotonic() + self._seconds, self._due_s if self._is_recording else 0.0

    def _stop_seconds(self) -> None:
        if self._by == "seconds" and self._is_recording:
            self._stop("")

    def _forget_seconds(self) -> None:
        """Drop what was recorded before the first step: it was the way to it."""
        self._due_s = 0.0
        self._stop_timer()
        if self._by != "seconds":
            return
        if self._is_recording:
            self._end_profile()
        for window in self._windows:
            with suppress(OSError):
                os.remove(os.path.join(self._folder, window["file"]))
        self._windows, self._by, self._reason, self._profile = [], "steps", "", None

    # The profiler

    def _has_device(self) -> bool:
        devices = (getattr(self._torch, name, None) for name in ("cuda", "xpu"))
        return any(device is not None and device.is_initialized() for device in devices)

    def _prepare(self) -> None:
        torch = self._torch
        if self._profile is not None:
            return
        if torch.autograd._profiler_enabled():
            self._is_over, self._reason = True, "the program runs its own profiler"
            return
        activities = [torch.profiler.ProfilerActivity.CPU]
        for device, activity in (("cuda", "CUDA"), ("xpu", "XPU")) if not self._counts else ():
            if getattr(torch, device, None) is not None and getattr(torch, device).is_initialized():
                activities.append(getattr(torch.profiler.ProfilerActivity, activity))
        self._profile = torch.profiler._KinetoProfile(activities=activities, record_shapes=True, **self._options)
        self._patch()
        warnings.filterwarnings("ignore", message="Warning: Profiler clears events")  # meant for who runs one
        self._profile.prepare_trace()

    def _start(self) -> None:
        self._who()
        if self._counts and not self._can_count():
            self._is_over = True
            return
        self._prepare()
        if self._profile is None:
            return
        self._clocks = []
        self._first = self._step
        self._note("recording")
        with self._torch.autograd.profiler.record_function(CLOCK):  # the first one takes long
            pass
        self._profile.start_trace()
        self._is_recording = True
        self._tell_clock()
        if self._counts:
            self._torch.cuda.synchronize()
            self._torch.cuda.profiler.start()
        if self._by == "steps":
            self._enter_step()
        if self._pid != os.getpid() or "multiprocessing.util" in sys.modules:
            # Processes that multiprocessing forks end without atexit.
            sys.modules["multiprocessing.util"].Finalize(None, self._finish, exitpriority=-100)

    def _can_count(self) -> bool:
        """Tell whether to count here: of one rank, since others wait within a collective while its kernels stand."""
        if self._rank:
            self._reason = "counters are read of rank 0"
        elif not self._torch.cuda.is_initialized():
            self._reason = "it had used no GPU when counting was to begin"
        return not self._reason

    def _tell_clock(self) -> None:
        """Leave a mark in the trace whose moment two other clocks tell as well."""
        name = f"{CLOCK} {len(self._clocks)}"
        with self._torch.autograd.profiler.record_function(name):
            clocks = {"wall_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns(), "name": name}
        self._clocks.append(clocks)

    def _stop(self, reason: str) -> None:
        """End the window and write its trace."""
        self._who()
        self._tell_clock()
        about = {
            "rank": self._rank,
            "world": self._world,
            "host": os.uname().nodename,
            "pid": self._pid,
            "boot": _boot(),
            "clocks": self._clocks,
        }
        self._profile.add_metadata_json("fairmile", json.dumps(about))
        profile = self._end_profile()
        name = "".join(
            [
                f"rank{self._rank}." if self._rank is not None else "",
                f"{_plain(os.uname().nodename)}.{self._pid}",
                f".{len(self._windows)}" if self._windows else "",
                ".json",
            ]
        )
        os.makedirs(os.path.join(self._folder, "traces"), exist_ok=True)
        file = os.path.join(self._folder, "traces", name)
        unfinished = os.path.join(self._folder, "traces", f".{name}")  # the profiler asks for that ending
        profile.export_chrome_trace(unfinished)
        os.replace(unfinished, file)
        self._windows.append(
            {
                "file": f"traces/{name}",
                "by": self._by,
                "first_step": self._first if self._by == "steps" else None,
                "last_step": self._step - 1 if self._by == "steps" else None,
                "clocks": self._clocks,
                "reason": reason,
                "device": self._torch.cuda.get_device_name() if self._counts else None,
            }
        )
        self._note("")

    def _end_profile(self) -> Any:
        profile, self._profile = self._profile, None
        self._is_recording = self._is_pending = False
        if self._mark is not None:
            mark, self._mark = self._mark, None
            mark.__exit__(None, None, None)
        self._unpatch()
        if self._counts:
            self._torch.cuda.synchronize()
            self._torch.cuda.profiler.stop()
        profile.stop_trace()
        return profile

    def _patch(self) -> None:
        """Name waits for input, learn when torch's mark of a step ends, and step aside for another profiler."""
        recorder, profiler = self, self._torch.autograd.profiler
        leave, prepare = profiler.record_function.__exit__, profiler.profile._prepare_trace

        def leave_and_tell(mark: Any, *error: object) -> None:
            leave(mark, *error)
            if recorder._is_pending and mark.name.startswith("Optimizer.step#"):
                recorder._guarded(recorder._boundary)

        def step_aside(other: Any) -> Any:
            if recorder._profile is not None and other is not recorder._profile.profiler:
                recorder._guarded(recorder._give_way)
            return prepare(other)

        self._replace(profiler.record_function, "__exit__", leave_and_tell)
        if hasattr(self._torch.profiler._KinetoProfile, "prepare_trace"):
            self._replace(profiler.profile, "_prepare_trace", step_aside)
        loader = sys.modules.get("torch.utils.data.dataloader")
        if loader is not None:
            wait = loader._BaseDataLoaderIter.__next__

            def wait_for_input(iterator: Any) -> Any:
                with profiler.record_function("input"):
                    return wait(iterator)

            self._replace(loader._BaseDataLoaderIter, "__next__", wait_for_input)

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        self._patches.append((owner, name, getattr(owner, name)))
        setattr(owner, name, function)

    def _unpatch(self) -> None:
        while self._patches:
            owner, name, original = self._patches.pop()
            setattr(owner, name, original)

    def _give_way(self) -> None:
        self._is_over = True
        if self._is_recording:
            self._stop("recording ended when the program started its own profiler")
        else:
            self._unpatch()
            self._profile = None
            self._reason = "the program runs its own profiler"

    # What became of it

    def _guarded(self, function: Callable[[], None]) -> None:
        try:
            function()
        except _FAULTS as error:
            self._unpatch()
            if self._is_recording and self._profile is not None:
                with suppress(*_FAULTS):  # or it would keep all that the program does from here on
                    if self._counts:
                        self._torch.cuda.profiler.stop()
                    self._profile.stop_trace()
            self._is_over = self._by == "steps"  # seconds that fail do not spoil the steps behind them
            self._is_recording = self._is_pending = False
            self._profile, self._mark, self._due_s = None, None, 0.0
            self._reason = f"{type(error).__name__}: {error}"
            with suppress(*_FAULTS):
                self._note("")

    def _finish(self) -> None:
        """Write what is unwritten at the end of the process."""
        if os.getpid() != self._pid:
            return
        self._due_s = 0.0
        self._stop_timer()
        if self._is_recording:
            self._guarded(lambda: self._stop("the program ended while recording"))
        if not self._is_over and not self._windows:
            if self._step:
                self._reason = f"the program ended after {self._step} steps, and the first {self._skip} are skipped"
            else:
                self._reason = (
                    f"the program ended within {self._after_s:g} s of importing torch, without an optimizer step"
                )
        self._is_over = True
        data = sys.modules.get("torch.utils.data")
        with suppress(*_FAULTS):
            if data is None or data.get_worker_info() is None:
                self._who()
                self._note("")
                self._tell_flight()
            else:
                os.remove(self._file())

    def _tell_flight(self) -> None:
        """Write torch's own notes of collectives, which it writes by itself only when one of them hangs."""
        if not self._flight or self._rank is None:
            return
        noted = getattr(self._torch._C, "_distributed_c10d", None)
        for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
            dump = getattr(noted, name)() if hasattr(noted, name) else b""
            if json.loads(dump or "{}").get("entries") and not os.path.exists(f"{self._flight}{self._rank}"):
                with open(f"{self._flight}{self._rank}", "xb") as file:
                    file.write(dump)

    def _who(self) -> None:
        """Learn the rank as soon as somebody knows it."""
        distributed = self._torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            self._rank, self._world = distributed.get_rank(), distributed.get_world_size()
        elif self._rank is None:
            self._rank, self._world = _number(_RANKS), _number(_WORLDS)

    def _file(self) -> str:
        return os.path.join(self._folder, "processes", f"{_plain(os.uname().nodename)}.{self._pid}.json")

    def _note(self, state: str) -> None:
        file = self._file()
        os.makedirs(os.path.dirname(file), exist_ok=True)
        document = {
            "rank": self._rank,
            "world": self._world,
            "host": os.uname().nodename,
            "pid": self._pid,
            "torch": str(self._torch.__version__),
            "program": sys.argv[0] if sys.argv else "",
            "steps": self._step,
            "state": state,
            "reason": self._reason,
            "windows": self._windows,
        }
        with open(f"{file}.new", "w", encoding="utf-8") as stream:
            json.dump(document, stream)
        os.replace(f"{file}.new", file)


def _is_importing() -> bool:
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _number(variables: tuple[str, ...]) -> int | None:
    for variable in variables:
        text = os.environ.get(variable, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return None


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-") or "unnamed"


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return ""

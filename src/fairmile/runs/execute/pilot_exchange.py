"""The process between a submitter and its pilot jobs; it ends with the submitter, however that ended.

Parsl's own stays when its submitter is killed, and keeps the pilot jobs. This one then has the workers end what they
are at, begins nothing more, and removes the folder that Parsl wrote to.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
from typing import Any

from parsl.executors.high_throughput.interchange import Interchange

_LINGER_MS = 2000


class Exchange(Interchange):
    """Passes runs on to workers while the process that started it lives."""

    def __init__(self, folder: str, parent: int, **config: Any) -> None:
        super().__init__(**config)
        self._folder, self._parent = folder, parent

    def expire_drained_managers(self, interesting_managers: set[bytes], monitoring_radio: Any) -> None:
        """Dismiss managers whose time is over; all of them, as they have nothing more to do, without a submitter."""
        if os.getppid() != self._parent:
            self.pending_task_queue.clear()
            for manager in self._ready_managers.values():
                manager["draining"] = True
        super().expire_drained_managers(interesting_managers, monitoring_radio)
        if os.getppid() != self._parent and not self._ready_managers:
            self.zmq_context.destroy(linger=_LINGER_MS)  # until the managers have heard it
            shutil.rmtree(self._folder, ignore_errors=True)
            os._exit(0)


def main(folder: str, parent: str) -> None:
    """`pilot_exchange FOLDER PARENT`: take the settings from the standard input, as Parsl hands them over."""
    Exchange(folder, int(parent), **pickle.load(sys.stdin.buffer)).start()


if __name__ == "__main__":
    main(*sys.argv[1:])

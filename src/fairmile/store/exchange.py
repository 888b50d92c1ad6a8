"""Exchange: bring what a name stands for to another pool folder, or from there; only what is missing moves.

Every object is verified where it arrives. The tree and the name come last, so that the other side is never
inconsistent; what an interruption leaves behind is used by the next attempt.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fairmile.base.commands import Runner, Ssh
from fairmile.base.digest import manifest_text, sha256_file, sha256_hex
from fairmile.base.errors import Integrity, NotFound, SystemFailure, UsageError
from fairmile.base.files import Lock
from fairmile.base.units import format_size
from fairmile.store.digest_set import DigestSet
from fairmile.store.far import Far
from fairmile.store.objects import Batch, Objects, make_folder, writing
from fairmile.store.pools import Pool, Pools, Reservation
from fairmile.store.refs import Ref, Refs
from fairmile.store.shelves import Shelves
from fairmile.store.trees import Trees

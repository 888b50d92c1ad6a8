"""MLPerf's log beside the timers of `StopWatch`, as cloudmesh writes it; no package of MLPerf is needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from fairmile.base.yaml import load
from fairmile.meter.mllog import MLLog, mllog_key

# Key in the log and attribute of the file that describes who submits what.
_ORGANIZATION = {
    "submission_benchmark": "name",
    "submission_poc_name": "user",
    "submission_poc_email": "e-mail",
    "submission_org": "organisation",
    "submission_division": "division",
    "submission_platform": "platform",
}
_SUBMISSION = {
    "submission_benchmark": "name",
    "submission_poc_name": "submitter",
    "submission_poc_email": "email",
    "submission_org": "org",
    "submission_division": "division",
    "submission_platform": "platform",
    "submission_version": "version",
    "github_commit_version": "github_commit_version",
}


class SubmissionLog:
    """Writes starts, stops and events to MLPerf's log once it is activated."""

    mllogging: ClassVar[bool] = False
    mllogger: ClassVar[MLLog | None] = None

    @classmethod
    def activate_mllog(
        cls,
        filename: str | os.PathLike[str] | None = "cloudmesh_mllog.log",
        config: Mapping[str, Any] | None = None,
        stack_offset: int = 2,
    ) -> None:
        """Log starts, stops and events to a file as well, or to stdout for None.

        Of `config` only `default_namespace` has an effect; lines always name the file and line of the call.
        """
        namespace = str((config or {"default_namespace": "cloudmesh"}).get("default_namespace", ""))
        SubmissionLog.deactivate_mllog()
        SubmissionLog.mllogger = MLLog(filename, namespace=namespace)
        SubmissionLog.mllogging = True

    @classmethod
    def deactivate_mllog(cls) -> None:
        """Log to timers only, and close the file."""
        if SubmissionLog.mllogger is not None:
            SubmissionLog.mllogger.close()
        SubmissionLog.mllogger, SubmissionLog.mllogging = None, False

    @classmethod
    def organization_mllog(cls, configfile: str | os.PathLike[str] | None = None, **argv: Any) -> None:
        """Log who submits: the `benchmark` section of a YAML file or of the arguments."""
        cls._log_section("benchmark", _ORGANIZATION, configfile, argv)

    @classmethod
    def organization_submission(cls, configfile: str | os.PathLike[str] | None = None, **argv: Any) -> None:
        """Log who submits what: the `submission` section of a YAML file or of the arguments."""
        cls._log_section("submission", _SUBMISSION, configfile, argv)

    @classmethod
    def status_submission(cls, success: bool = True) -> None:
        """Log whether the benchmark ended well."""
        cls._log("event", "submission_status", "success" if success else "aborted")

    @classmethod
    def _log_section(
        cls,
        section: str,
        keys: Mapping[str, str],
        file: str | os.PathLike[str] | None,
        arguments: Mapping[str, Any],
    ) -> None:
        document = arguments if file is None else load(Path(file).read_text(encoding="utf-8"), file=os.fspath(file))
        values = document.get(section) if isinstance(document, Mapping) else None
        stated = values if isinstance(values, Mapping) else {}
        for key, attribute in keys.items():
            if attribute in stated:
                cls._log("event", key, stated[attribute], depth=2)
        missing = [f"{section}.{attribute}" for attribute in keys.values() if attribute not in stated]
        if missing:
            sys.stderr.write(f"MLPerf log without {', '.join(missing)}\n")

    @classmethod
    def _log(cls, how: str, key: str, value: Any, metadata: Mapping[str, Any] | None = None, *, depth: int = 1) -> None:
        """Write one line; `depth` is the number of calls between the user's code and this one."""
        logger = SubmissionLog.mllogger
        if logger is not None:
            caller = sys._getframe(depth + 1)
            site = {"file": caller.f_code.co_filename, "lineno": caller.f_lineno}
            getattr(logger, how)(mllog_key(key), value, {**site, **(metadata or {})})

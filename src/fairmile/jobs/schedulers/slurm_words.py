"""Slurm's own words for states, reasons and refusals, and what they mean to a person.

The states and reasons are those of Slurm's documentation, https://slurm.schedmd.com/job_state_codes.html and
https://slurm.schedmd.com/job_reason_codes.html.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairmile.jobs.schedulers.answers import signal_name
from fairmile.jobs.states import Observed, State

# A requeued job keeps its id and is listed as PENDING again: NODE_FAIL and PREEMPTED are ends only while they are
# what is listed.
STATES: Mapping[str, State] = {
    "BOOT_FAIL": State.NODE_FAILED,
    "CANCELLED": State.CANCELLED,
    "COMPLETED": State.DONE,
    "COMPLETING": State.ENDING,
    "CONFIGURING": State.QUEUED,
    "DEADLINE": State.TIMED_OUT,
    "EXPEDITING": State.QUEUED,
    "FAILED": State.FAILED,
    "LAUNCH_FAILED": State.FAILED,
    "NODE_FAIL": State.NODE_FAILED,
    "OUT_OF_MEMORY": State.OUT_OF_MEMORY,
    "PENDING": State.QUEUED,
    "POWER_UP_NODE": State.QUEUED,
    "PREEMPTED": State.PREEMPTED,
    "RECONFIG_FAIL": State.NODE_FAILED,
    "REQUEUED": State.QUEUED,
    "REQUEUE_FED": State.QUEUED,
    "REQUEUE_HOLD": State.HELD,
    "RESIZING": State.RUNNING,
    "RESV_DEL_HOLD": State.HELD,
    "REVOKED": State.UNKNOWN,
    "RUNNING": State.RUNNING,
    "SIGNALING": State.RUNNING,
    "SPECIAL_EXIT": State.HELD,
    "STAGE_OUT": State.ENDING,
    "STOPPED": State.RUNNING,
    "SUSPENDED": State.RUNNING,
    "TIMEOUT": State.TIMED_OUT,
    "UPDATE_DB": State.ENDING,
}

HELD_REASONS = (
    "JobHeldUser",
    "JobHeldAdmin",
    "JobHoldMaxRequeue",
    "launch failed requeued held",
    "job requeued in held state",
    "job requeued in special exit state",
    "ReservationDeleted",
)

_STATE_SENTENCES: Mapping[str, str] = {
    "BOOT_FAIL": "Its nodes did not come up. Submit it again.",
    "CANCELLED": "It was cancelled.",
    "COMPLETED": "It completed.",
    "COMPLETING": "It is ending: its processes are being cleaned up.",
    "CONFIGURING": "Its nodes are allocated and being prepared.",
    "DEADLINE": "Its deadline passed before it could end. Give a later one, or request less time.",
    "LAUNCH_FAILED": "Slurm could not start it on its nodes. Submit it again, and contact the site if it fails again.",
    "NODE_FAIL": "A node that it ran on failed. Submit it again, or let Slurm requeue it.",
    "OUT_OF_MEMORY": "It ran out of memory. Request more memory or fewer tasks per node.",
    "PREEMPTED": "A job of higher priority took its nodes. Submit it again, or let Slurm requeue it.",
    "RECONFIG_FAIL": "Its nodes could not be set up for it. Submit it again.",
    "REQUEUED": "It goes back into the queue and starts again by itself.",
    "REQUEUE_FED": "It goes back into the queue of the federation and starts again by itself.",
    "REQUEUE_HOLD": "It went back into the queue and is held. Release it with `scontrol release`, or cancel it.",
    "RESV_DEL_HOLD": "Its reservation was deleted, so it is held. Release it with `scontrol release`, or cancel it.",
    "REVOKED": "Another cluster of the federation took it over. Ask for it there.",
    "SPECIAL_EXIT": "It asked to be held after its exit code. Release it with `scontrol release`, or cancel it.",
    "STAGE_OUT": "It ended, and its burst buffer is being written back.",
    "STOPPED": "It was stopped by a signal and keeps its nodes. `scancel --signal=CONT` continues it.",
    "SUSPENDED": "It is suspended, and other jobs use its nodes. It continues when they are free.",
    "TIMEOUT": "It reached its time limit. Request more time, or save checkpoints before the end.",
}

_REASONS: Mapping[str, str] = {
    "AccountNotAllowed": "Its partition does not accept its account. Choose another account or partition.",
    "AssociationJobLimit": "Your account has reached its job limit. It starts when other jobs have ended.",
    "AssociationResourceLimit": "Your account has reached its resource limit. It starts when other jobs have ended.",
    "AssociationTimeLimit": "Your account has no computing time left. Use another account, or apply for more.",
    "BadConstraints": "No node matches its request. Cancel it and change its constraint, memory or GPUs.",
    "BeginTime": "Its earliest start is not reached yet; after a requeue Slurm waits a little. It starts by itself.",
    "BurstBufferOperation": "Its burst buffer could not be set up. Check its burst buffer options.",
    "BurstBufferResources": "It waits for space in the burst buffer. It starts by itself.",
    "BurstBufferStageIn": "Its data is being copied into the burst buffer. It starts by itself.",
    "Cleaning": "It was requeued, and its last run is still being cleaned up. It starts by itself.",
    "DeadLine": "It cannot end before its deadline any more. Submit it with a later one.",
    "Dependency": "It waits for another job to end.",
    "DependencyNeverSatisfied": "The job it depends on did not end as required, so it will never start. Cancel it.",
    "FedJobLock": "The clusters of the federation are agreeing on who runs it. It starts by itself.",
    "InactiveLimit": "It was idle for longer than the site allows, and was ended.",
    "InvalidAccount": "Its account is unknown or not yours. Cancel it and submit it with another.",
    "InvalidQOS": "Its QOS is unknown or not yours. Cancel it and submit it with another.",
    "JobArrayTaskLimit": "Its array has reached its limit of concurrent tasks. It starts when another task has ended.",
    "JobHeldAdmin": "The site holds it. Ask its support why; only they can release it.",
    "JobHeldUser": "It is held. Release it with `scontrol release`.",
    "JobHoldMaxRequeue": "It was requeued too often and is held. Check its logs, then release or cancel it.",
    "JobLaunchFailure": "It could not be started, or its script was killed. Check its logs.",
    "Licenses": "It waits for a licence that others use. It starts by itself.",
    "MaxBBPerAccount": "Your account has reached its burst buffer limit. It starts when other jobs have ended.",
    "NodeDown": "A node that it needs is down. It starts when the node is back, or request other nodes.",
    "OutOfMemory": "It ran out of memory. Request more memory or fewer tasks per node.",
    "PartitionConfig": "It requests more than its partition allows. Cancel it, then request less or choose another.",
    "PartitionDown": "Its partition is closed for new starts. It starts when the site opens it, or choose another.",
    "PartitionInactive": "Its partition is disabled. It starts when the site opens it, or choose another.",
    "PartitionNodeLimit": "It requests more nodes than its partition allows, or they are down. Request fewer.",
    "PartitionTimeLimit": "It requests more time than its partition allows. Cancel it and request less time.",
    "Priority": "Other jobs have higher priority. It starts by itself.",
    "Prolog": "The nodes are being prepared for it. It starts by itself.",
    "QOSJobLimit": "Your QOS has reached its job limit. It starts when other jobs have ended.",
    "QOSNotAllowed": "Its account or partition does not accept its QOS. Choose another QOS.",
    "QOSResourceLimit": "Your QOS has reached its resource limit. It starts when other jobs have ended.",
    "QOSTimeLimit": "It requests more time than its QOS allows. Cancel it and request less time.",
    "QOSUsageThreshold": "Your recent use is above what its QOS allows. It starts when that has decayed.",
    "ReqNodeNotAvail": "Nodes that it could use are down, drained or reserved, often for maintenance.",
    "Reservation": "It waits for the start of its reservation.",
    "ReservationDeleted": "Its reservation was deleted. Cancel it, or give it another one.",
    "Resources": "It is next in line and waits for enough free nodes.",
    "SchedDefer": "Slurm considers it in its next scheduling cycle. It starts by itself.",
    "SystemFailure": "Slurm itself, its network or a file system failed. Submit it again.",
    "TimeLimit": "It reached its time limit. Request more time, or save checkpoints before the end.",
    "launch failed requeued held": "It could not be started on its node, was requeued and is held. Release it with "
    "`scontrol release`, and tell the site's support if it comes back.",
    "job requeued in held state": "It was requeued and is held. Release it with `scontrol release`, or cancel it.",
    "job requeued in special exit state": "It asked to be held after its exit code. Release it with "
    "`scontrol release`, or cancel it.",
    "Nodes required for job are DOWN, DRAINED or reserved": "Nodes that it needs are down, drained or kept for jobs "
    "of higher priority. It starts when they are free, or request other nodes.",
}

# Parts of what Slurm says when asking again makes sense; all in lower case.
TRANSIENT = (
    "unable to contact slurm controller",
    "socket timed out",
    "resource temporarily unavailable",
    "temporarily unable to",
    "zero bytes were transmitted",
    "communication connection failure",
    "connection refused",
    "connection reset",
    "connection timed out",
    "transport endpoint is not connected",
    "standby mode",
    "problem talking to the database",
    "unable to connect to database",
    "protocol authentication error",
    "munge encode failed",
    "maxsubmitjob",  # AssocMaxSubmitJobLimit, QOSMaxSubmitJobPerUserLimit: there is room when jobs have ended
)

# Parts of what Slurm's commands say where no Slurm is set up: they asked nobody, so nothing arrived. In lower case.
NOT_SET_UP = ("could not establish a configuration source", "unable to process configuration file")

# What Slurm has against a job (part of it, in lower case), and what to do. The first that fits counts.
WRONG: tuple[tuple[str, str], ...] = (
    ("invalid account", "give an account that you may use here: `sacctmgr show associations user=$USER` lists them"),
    ("invalid partition", "choose a partition of this system: `sinfo -s` lists them"),
    ("invalid qos", "give a QOS that your account may use: `sacctmgr show associations user=$USER` lists them"),
    ("user's group not permitted", "choose a partition that your group may use"),
    ("memory specification can not be satisfied", "no node has that much memory: request less, or more nodes"),
    (
        "requested node configuration is not available",
        "no node of the partition has these cores, GPUs and memory together: request less, or choose another partition",
    ),
    ("more processors requested than permitted", "request fewer nodes or tasks, or choose another partition"),
    ("node count specification invalid", "request as many nodes as the partition gives, or choose another partition"),
    ("requested time limit is invalid", "request a time within the partition's limit: `sinfo -o '%P %l'` lists them"),
    ("time limit specification required", "say how long the job may run"),
    ("requested partition configuration not available", "the partition is closed, or does not accept you or this size"),
    ("invalid feature specification", "no node has the constraint: `sinfo -o '%P %f'` lists what there is"),
    ("requested reservation is invalid", "give a reservation that you may use: `scontrol show reservation` lists them"),
    ("reservation", "check that the reservation is active and that your account may use it"),
    ("invalid node name", "leave the choice of nodes to Slurm, or name nodes of this system"),
    ("invalid job array specification", "the array is larger than this Slurm allows: split it"),
    ("job dependency problem", "the job that it depends on is no longer known"),
    ("invalid generic resource", "this system names its GPUs differently: check its system file"),
    ("violates accounting/qos policy", "request fewer nodes or less time, or choose another account or QOS"),
    ("account/partition combination", "choose another account or partition"),
    ("does not look like a batch script", "a script begins with #! and a shell"),
    ("dos line breaks", "write the script with Unix line ends"),
    ("unable to open file", "the script does not exist on the submitting machine"),
    ("unrecognized option", "this Slurm does not know an option in the header: check the job's own options"),
    ("invalid --", "Slurm cannot read the value of an option: check the job's own options"),
    ("access/permission denied", "the job is not yours, or you may not use this system"),
)


def explain(seen: Observed) -> str:
    """Say to a person what Slurm's words for a job mean and what to do; empty where there is nothing to say."""
    if seen.state in (State.QUEUED, State.HELD) and seen.reason:
        return _explain_reason(seen.reason)
    if seen.state is State.CANCELLED and seen.reason:
        return "The job it depends on did not end as required, so Slurm cancelled it."
    if seen.state is State.FAILED:
        if seen.signal == 9:
            return "It was killed, as Slurm does with jobs that use more memory than requested. Check its logs."
        if seen.signal:
            return f"It was ended by {signal_name(seen.signal)}. Check its logs."
        if seen.exit_code:
            return f"It ended with exit code {seen.exit_code}. Check its logs."
        return _explain_reason(seen.reason) if seen.reason else "It failed. Check its logs."
    if seen.native not in STATES and seen.native:
        return f"Slurm says {seen.native}, an unknown state."
    return _STATE_SENTENCES.get(seen.native, "")


def _explain_reason(reason: str) -> str:
    word = reason.strip("()")
    if word in _REASONS:
        return _REASONS[word]
    for start, sentence in _REASONS.items():  # `ReqNodeNotAvail, UnavailableNodes:n2`
        if word.startswith(start) and not word[len(start)].isalnum():
            return f"{sentence} Slurm says: {word}."
    return _explain_limit(word) or f"Reason given by Slurm: {word}."


def _explain_limit(word: str) -> str:
    """Explain the limits of an association or a QOS, whose names say what they limit: QOSMaxGRESPerUser."""
    if word.startswith("Assoc"):
        whose = "your account"
    elif word.startswith("QOS") or (word.startswith("Max") and "PerAccount" in word):
        whose = "its QOS"
    else:
        return ""
    if "Minutes" in word and "Run" not in word:
        return f"The computing time of {whose} ({word}) is not enough. Request less, or apply for more."
    if "Grp" in word or "PerUser" in word or "PerAccount" in word or "MaxJobs" in word:
        return f"A limit of {whose} ({word}) is reached. It starts when other jobs have ended."
    return f"It requests more than {whose} allows for one job ({word}). Cancel it and request less."

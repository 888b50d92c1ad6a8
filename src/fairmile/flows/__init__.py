"""Flows: a graph of steps over this machine, ssh hosts and batch queues.

    file or program → Flow (model, files) → nodes (graph) → plan with a reason for each (plan) → engine → records

A flow is executed by the executors of `runs`; each step is a run. What is known of a flow lies in a folder of its
own (state), so that it goes on where it stopped. `Flows` in `flows` is the noun; imports point to the left.
"""

from __future__ import annotations

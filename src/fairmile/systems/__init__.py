"""Machines as data: hardware, scheduler, module lines of each framework."""

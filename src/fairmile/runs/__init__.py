"""Every execution and its record: planning, execution, rerun, reuse and exchange."""

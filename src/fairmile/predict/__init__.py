"""Before a job runs: how much memory it needs, how long a step takes, and how far it scales."""

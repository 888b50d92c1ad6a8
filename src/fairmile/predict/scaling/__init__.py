"""How far a job scales: the step on many GPUs, the best parallel plan, and up to where more GPUs are worth it."""

"""Performance: what a job will need and take before it runs, and where its time went afterwards."""

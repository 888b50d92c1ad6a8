"""Job scripts, submission, status and failure diagnosis on any machine."""

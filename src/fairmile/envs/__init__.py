"""What must be there to run a program: Python, conda, modules, source builds, containers, as one checked prefix."""

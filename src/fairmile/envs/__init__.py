"""Software that a program needs: Python, conda, modules, source builds, containers, as one checked prefix."""

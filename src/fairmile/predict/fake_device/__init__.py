"""Traces the real forward, backward and optimizer step of a model on a device that holds no memory."""

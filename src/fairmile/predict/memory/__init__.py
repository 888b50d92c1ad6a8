"""Memory of a step on a device: allocator and library rules, and closed forms."""

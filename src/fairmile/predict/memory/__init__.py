"""How much of a device's memory a step needs: rules of the allocator and of libraries, and closed forms."""

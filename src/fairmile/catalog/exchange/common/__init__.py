"""What readers and writers build on, whatever their format: a format itself is a module one folder up."""

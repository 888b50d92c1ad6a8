"""From a specification to a script, and to a job that is carried through on any machine."""

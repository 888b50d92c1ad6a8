"""How long a step takes: work of each operator, tables of measured operators, devices, and what the host adds."""

"""The work and the measured times of operators, apart from any model."""

"""Work and measured times of operators."""

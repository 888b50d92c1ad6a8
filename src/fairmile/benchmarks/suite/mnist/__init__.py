"""MNIST: handwritten digits, to learn the tool in a minute."""

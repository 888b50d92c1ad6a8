"""ONNX graphs as PyTorch modules: each operator is computed with the operators of PyTorch."""

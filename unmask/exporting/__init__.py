"""ONNX export, and checks that every form of a model equals the trained one."""

"""ONNX, and the proof that what leaves equals what was trained."""

"""Tensors: serialized ``TensorProto`` messages and raw bytes of numbers."""

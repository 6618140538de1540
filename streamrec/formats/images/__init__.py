"""Encoded pictures, decoded by Pillow to what TensorFlow gives.

Pillow reads the header, which takes no memory for pixels; format, size, mode and frames are checked
on what it says, and only then it decodes, without the GIL. What it leaves to do is to give the
pixels as TensorFlow does: PNG's colours as libpng converts them, GIF's frames without disposal.
"""

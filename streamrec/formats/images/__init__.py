"""Encoded pictures, one module a format, that give what TensorFlow would.

The headers of JPEG and WebP are read by Pillow. It passes over damage in the others, which
TensorFlow refuses, so these are read here. The size of a picture is checked before memory is set
aside for pixels; those are decoded by Pillow's codecs, without the GIL.
"""

"""Encoded pictures, one module a format.

The containers are read by hand: every length is checked, and the size of the picture is known,
before memory is set aside for pixels. Pixels are decoded by Pillow's codecs, without the GIL.
"""

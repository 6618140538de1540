"""Encoded pictures, decoded to what TensorFlow gives: JPEG by libjpeg-turbo, others by Pillow.

A header is read first, which takes no memory for pixels; format, size, channels and frames are
checked on what it says, and only then the pixels are decoded, without the GIL. What the libraries
leave to do is to give the pixels as TensorFlow does: PNG's colours as libpng converts them, GIF's
frames without disposal, CMYK as RGB.
"""

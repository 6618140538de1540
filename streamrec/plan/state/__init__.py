"""The state of a stream: fingerprints, positions and their text, and the points to read on from.

Every room above may import it; of ``plan`` it knows ``order`` alone.
"""

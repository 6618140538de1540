"""The plan of reading: listings, byte ranges, memory, requests in flight, hedges, the next use.

Every room above may import it; of ``plan`` it knows ``order`` alone.
"""

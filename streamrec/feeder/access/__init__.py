"""Access to a feeder: its addresses, TLS, certificates, tokens, secret files and exposure.

All other rooms of the feeder may import it; it imports none of them.
"""

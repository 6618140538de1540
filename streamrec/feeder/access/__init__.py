"""Who may reach a feeder, and where: addresses, TLS, certificates, tokens, secret files, exposure.

All other rooms of the feeder may import it; it imports none of them.
"""

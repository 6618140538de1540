"""The ground floor of the stores: their protocol, versions, troubles, and what all of them use."""

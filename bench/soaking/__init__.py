"""A feeder to which very many clients connect, one after the other."""

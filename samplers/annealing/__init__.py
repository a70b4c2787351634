"""Annealing from a known law to an unknown one, and the evidence."""

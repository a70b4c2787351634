"""From a law that is known to one that is not: annealing, and the evidence."""

"""Results of a run: draws, their errors and report, pictures, predictions."""

"""What comes of a run: draws, diagnostics, pictures, predictions and their scores."""

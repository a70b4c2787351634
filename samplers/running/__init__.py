"""Running a sampler: chains from their start through the phases of a run, with its records and progress."""

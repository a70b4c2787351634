"""Is a sampler right? Checks of recipes, of the steps compiled from them, and of samplers that others wrote."""

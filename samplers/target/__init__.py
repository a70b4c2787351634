"""Energies: posteriors, gradients of many chains, data and minibatches, control variates, test targets."""

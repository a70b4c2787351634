"""Training loops: the optimizer, minibatches, SVRG, checkpoints of a loop."""

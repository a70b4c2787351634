"""One thread: the tensors of these tests are small, and test runs share their machine."""

import torch

torch.set_num_threads(1)

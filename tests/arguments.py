from samplers.testing.arguments import *

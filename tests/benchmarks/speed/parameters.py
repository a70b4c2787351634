"""One step of many parameters, and whole iterations of a training loop.

A step takes at least what its bytes take at the speed of a copy, and its noise in a kernel whose numbers stay in the
cache: both are timed in the same rounds.
"""

from functools import partial

import torch

import samplers
from integrators.noise import Key
from integrators.passes import is_by_site

from .timing import MISSING, Contender

SAMPLERS = ("sghmc", "sgld", "psgld", "underdamped-langevin", "msgnht", "atmc", "sgnht", "santa")
CACHED = 16_384  # parameters that stay in the cache
REPEATS = 200


def cut(sizes, seed=0):
    random = torch.Generator().manual_seed(seed)
    return [0.1 * torch.randn(1, n, generator=random) for n in sizes]


def eager(sizes):
    """SGHMC by hand, with as few passes as torch allows."""
    theta, p, g = (torch.cat(cut(sizes, k), 1)[0] for k in range(3))
    noise = torch.empty_like(p)

    def run(k):
        noise.normal_()
        p.mul_(0.99).add_(g, alpha=-1e-4).add_(noise, alpha=1e-3)
        theta.add_(p, alpha=1e-4)

    return run


def ours(name):
    """An optimizer of ours, to be made of parameters."""
    return partial(samplers.Optimizer, recipe=samplers.catalogue[name], step_size=1e-4, num_data=1, backend="cpp")


def stepped(make, sizes):
    """An optimizer, ours or torch's, whose parameters have their gradients, after some steps."""
    params = [torch.nn.Parameter(x) for x in cut(sizes)]
    for x, g in zip(params, cut(sizes, 1)):
        x.grad = g
    opt = make(params)
    for _ in range(25):  # ours watches the gradients of the first steps
        opt.step()
    return opt


def optimizer(make, sizes):
    """The step of an optimizer after its gradient, as a user calls it."""
    opt = stepped(make, sizes)
    return lambda k: opt.step()


def kernel(sweep, owner, repeats=1):
    """A kernel alone, on the tensors of its owner."""

    def run(k, owner=owner):
        for i in range(repeats):
            key = Key(0, k * repeats + i)
            for segment in range(len(sweep.plan.segments)):
                sweep._launch(segment, key)

    return run


def sweep_of(name, sizes):
    """The kernel of an optimizer of ours, with the optimizer, whose tensors it moves."""
    opt = stepped(ours(name), sizes)
    (group,) = opt._groups.values()
    return group.kernel.sweep, opt


def of_posteriors(sizes):
    """SGHMC of posteriors, its gradient as cheap as can be: that of a linear function."""
    import posteriors

    g = {str(k): x for k, x in enumerate(cut(sizes, 1))}

    def log(params, batch):
        return (sum((params[k] * g[k]).sum() for k in g), torch.zeros(()))

    transform = posteriors.sgmcmc.sghmc.build(log, lr=1e-4)
    state = [transform.init({str(k): x for k, x in enumerate(cut(sizes))})]

    def run(k):
        state[0], _ = transform.update(state[0], None, inplace=True)

    return run


def limit(arrays, normals=0):
    """What reading or writing so many arrays, and drawing so many normals, takes at least.

    A copy moves three: it reads one, and fetches the other into the cache before it writes it.
    """
    return lambda medians: max(arrays * medians["copy"] / 3, normals * medians["sgld kernel in the cache"])


def limit_of(sweep):
    """That of a kernel, by its plan."""
    loops = [p.sites for segment in sweep.plan.segments for p in segment.passes]
    arrays = sum(is_by_site(s) for loop in loops for s in (*loop.loads, *loop.stores))
    return limit(arrays, sum(len(loop.draws) for loop in loops))


def parameters(sizes, peers=True):
    """Contenders of one step over tensors of these sizes, by the parameter."""
    n = sum(sizes)
    flat, other = torch.empty(n), torch.randn(n)
    sgd = partial(torch.optim.SGD, lr=1e-4, momentum=0.9, foreach=True)
    adamw = partial(torch.optim.AdamW, lr=1e-4, fused=True)
    inside = [CACHED] * torch.get_num_threads()
    cached, owner = sweep_of("sgld", inside)
    contenders = {
        "normal_": Contender(lambda k: flat.normal_(), n, limit(2)),
        "copy": Contender(lambda k: flat.copy_(other), n),
        "sgld kernel in the cache": Contender(kernel(cached, owner, REPEATS), sum(inside) * REPEATS),
        "torch.optim.SGD(foreach)": Contender(optimizer(sgd, sizes), n, limit(5)),
        "torch.optim.AdamW(fused)": Contender(optimizer(adamw, sizes), n, limit(7)),
        "eager SGHMC": Contender(eager(sizes), n, limit(13)),
    }
    for name in SAMPLERS:
        sweep, opt = sweep_of(name, sizes)
        contenders[name] = Contender(lambda k, opt=opt: opt.step(), n, limit_of(sweep))
        if name == "sghmc":
            contenders["sghmc kernel"] = Contender(kernel(sweep, opt), n, limit_of(sweep))
    if "posteriors" not in MISSING and peers:
        contenders["posteriors SGHMC"] = Contender(of_posteriors(sizes), n)
    return contenders


def small(sizes):
    """The same by the step, where Python's walk over the tensors is what takes time."""
    return {name: Contender(c.run, 1) for name, c in parameters(sizes).items() if "cache" not in name}


def iterations(make, count):
    """Whole iterations of a 784-400-400-10 network on batches of 100 images: zero_grad, forward, backward, step."""
    random = torch.Generator().manual_seed(0)
    x, y = torch.rand(100, 784, generator=random), torch.randint(0, 10, (100,), generator=random)
    net = torch.nn.Sequential(
        torch.nn.Linear(784, 400), torch.nn.ReLU(), torch.nn.Linear(400, 400), torch.nn.ReLU(), torch.nn.Linear(400, 10)
    )
    opt = make(net.parameters())

    def run(count):
        for _ in range(count):
            opt.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            opt.step()

    run(25)
    return lambda k: run(count)


def training(count):
    """Contenders of a training loop, by the iteration."""

    def of(name, **rate):
        return partial(samplers.Optimizer, recipe=samplers.catalogue[name], num_data=60_000, weight_decay=1e-5, **rate)

    makers = {
        "torch.optim.SGD(momentum)": partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=1e-5),
        "sghmc": of("sghmc", lr=0.01, momentum=0.9),
        "atmc": of("atmc", lr=0.01, momentum=0.9),
        "sgld": of("sgld", lr=0.01),
        "psgld-same-step": of("psgld-same-step", lr=1e-4),
    }
    return {name: Contender(iterations(make, count), count) for name, make in makers.items()}

"""The functions that an emitted step may need, copied into its text as they stand here."""

import math

import torch


def phi1(x):
    """(e^x - 1)/x, and 1 at 0."""
    if not torch.is_tensor(x):
        return math.expm1(x)/x if x else 1.0
    nonzero = torch.where(x == 0, torch.ones_like(x), x)
    return torch.where(x == 0, torch.ones_like(x), torch.expm1(nonzero)/nonzero)


def sites(x, like):
    """One value per chain, shaped to meet one value per site."""
    return x.reshape(x.shape + (1,)*(like.dim() - 1))


def total(x):
    """The sum over the sites of each chain."""
    return x.reshape(len(x), -1).sum(1)


def sites_by_tensor(x, sizes):
    """One value per chain and tensor, spread over the sites of each tensor."""
    return x.repeat_interleave(torch.tensor(sizes, device=x.device), -1)


def total_by_tensor(x, sizes):
    """The sums over the sites of each tensor of each chain."""
    return torch.stack([part.sum(-1) for part in x.split(sizes, -1)], -1)


def braked(y, s):
    """y after a time s of dy/ds = -y/sqrt(1 + y^2).

    With root = sqrt(1 + y^2), x = e^root y/(1 + root) decays as e^-s. If e^2u = 1 + x^2 then y = x e^-u (u + p/d), with
    p and d polynomials of u, up to 1e-7; a step of Halley's rule makes y exact.
    """
    root_of = lambda y: torch.minimum((1 + y**2).sqrt(), 1 + y.abs())
    tiny, root = torch.finfo(y.dtype).tiny, root_of(y)
    q = y/(1 + root)
    top = (root - s + q.abs().clamp(min=tiny).log()).clamp(min=0)  # all but log(2)/2 of u: e^(2 top) is divided out
    rest, x = (-top).exp(), q*(root - s - top).exp()
    square = (rest**2 + x**2).clamp(min=tiny)
    u = top + square.log()/2
    v = u.clamp(max=2000)
    p = 0.010220450191431762 + v*(0.0023380244937693203 + v*0.0006750446097352161)
    p = 0.7357588070993576 + v*(-0.041136964404352716 + v*(0.08033899284546246 + v*p))
    d = 0.026841032580800405 + v*(0.004437873380165231 + v*0.0013537844264593642)
    d = 1 + v*(0.5738921556649517 + v*(0.292296700595234 + v*(0.10005740175118798 + v*d)))
    z = x/square.sqrt()*(u + p/d)
    root_then = root_of(z)
    still = z == 0  # where both branches of a choice are finite, so are their derivatives
    ratio = (torch.where(still, 1, z)/torch.where(still, 1, q*(1 + root_then))).clamp(min=tiny)
    step = torch.where(still, 0, (root - s - root_then - ratio.log())/root_then)
    return z + z*(step + (step/root_then)**2/2)


def wrapped(x, low, high):
    """The point of the circle from low to high that x is."""
    width = high - low
    y = x - width*torch.floor((x - low)/width)
    return torch.where((y < low) | (y >= high), torch.full_like(y, low), y)


def folded(x, low, high):
    """Where a path that is at x on the line is between low and high, when it is reflected at both."""
    twice = 2*(high - low)
    y = x - low - twice*torch.floor((x - low)/twice + 0.5)
    return (low + y.abs()).clamp(low, high)


def turned(x, low, high):
    """-1 where a path that is at x on the line has been reflected an odd number of times between low and high, else 1."""
    twice = 2*(high - low)
    y = x - low - twice*torch.floor((x - low)/twice + 0.5)
    return torch.where(y < 0, -torch.ones_like(y), torch.ones_like(y))


def matrix_ou(size, h, *entries):
    """e^{-Ah}, int_0^h e^{-As} ds and a square root of 2 int_0^h e^{-As} D e^{-A's} ds, entry by entry."""
    dtype, device = next(((e.dtype, e.device) for e in entries if torch.is_tensor(e)), (None, "cpu"))
    entries = torch.broadcast_tensors(*(torch.as_tensor(e, dtype=torch.float64, device=device) for e in entries))
    A, D = torch.stack(entries, -1).unflatten(-1, (2, size, size)).unbind(-3)
    doublings = max(0, math.ceil(math.log2(max(1e-9, float(A.abs().amax())*size*h))))
    step, scale = h/2**doublings, D.abs().amax((-2, -1), keepdim=True).clamp(min=1e-300)
    zero, one = torch.zeros_like(A), torch.eye(size, dtype=A.dtype, device=A.device).expand_as(A)
    block = lambda *rows: torch.cat([torch.cat(row, -1) for row in rows], -2)
    M, J = torch.matrix_exp(block((-step*A, one), (zero, zero)))[..., :size, :].split(size, -1)
    V = torch.matrix_exp(block((-step*A, D/scale), (zero, step*A.mT)))[..., :size, size:] @ M.mT
    J, V = step*J, 2*step*scale*V
    for _ in range(doublings):
        M, J, V = M @ M, J + M @ J, M @ V @ M.mT + V
    values, vectors = torch.linalg.eigh((V + V.mT)/2)
    L = vectors*values.clamp(min=0).sqrt().unsqueeze(-2)
    solution = torch.stack([M, J, L], -3).flatten(-3).unbind(-1)
    return [float(x) if dtype is None else x.to(dtype) for x in solution]


def square_root(size, *entries):
    """The lower Cholesky factor of a positive semidefinite matrix, row by row; a vanishing pivot leaves its column 0."""
    dtype, device = next(((e.dtype, e.device) for e in entries if torch.is_tensor(e)), (None, "cpu"))
    entries = torch.broadcast_tensors(*(torch.as_tensor(e, dtype=dtype or torch.float64, device=device) for e in entries))
    C, L = [entries[i*size:(i + 1)*size] for i in range(size)], [[] for _ in range(size)]
    for j in range(size):
        square = C[j][j] - sum(L[j][k]**2 for k in range(j))
        rounding = 8*torch.finfo(square.dtype).eps*C[j][j]
        pivot = torch.where(square > rounding, square, torch.zeros_like(square)).sqrt()
        L[j].append(pivot)
        for i in range(j + 1, size):
            rest = C[i][j] - sum(L[i][k]*L[j][k] for k in range(j))
            L[i].append(torch.where(pivot > 0, rest/pivot, torch.zeros_like(rest)))
    return [float(x) if dtype is None else x for row in L for x in row]


def are_equal(x, y, times=1):
    """Whether the numbers of each chain agree up to eps^(3/4) of the largest, or `times` that, `(chains, 1, ...)`."""
    axes = tuple(range(1, x.dim()))
    size = x.abs().amax(axes, keepdim=True).clamp(min=1)
    return (x - y).abs().amax(axes, keepdim=True) <= times*torch.finfo(x.dtype).eps**0.75*size


def implicit(f, x, *fields):
    """y = x + f(y) by up to 50 iterations from x; nan for chains where they do not settle."""
    y, settled = x, are_equal(x, x + math.nan)
    for _ in range(50):
        new = x + f(y, *(M.at(y) for M in fields))
        y, settled = torch.where(settled, y, new), settled | are_equal(new, y)
        if (settled | ~are_equal(y, y)).all():
            break
    return torch.where(settled, y, torch.full_like(y, math.nan))


def explicit(f, x, *fields):
    """y = x + f(x); nan for chains where the iterations from y, for x = y - f(x), do not lead back to x."""
    y = x + f(x, *fields)
    back = implicit(lambda x, *fields: -f(x, *fields), y, *fields)
    return torch.where(are_equal(back, x, 10), y, torch.full_like(y, math.nan))


def phi1_of_complex(x):
    """(e^x - 1)/x, and 1 at 0, by sinh, which is as exact near 0 for complex numbers."""
    nonzero = torch.where(x == 0, torch.ones_like(x), x)
    return torch.where(x == 0, torch.ones_like(x), torch.exp(x/2)*torch.sinh(nonzero/2)*2/nonzero)


class Eigen:
    """A matrix over the sites of a chain by its eigenvalues and eigenvectors, M = V diag(values) V^H; (..., sites, sites)."""

    def __init__(self, values, bases):
        self.values, self.bases = values, bases

    def spectrum(self):
        """The eigenvalues, and the eigenvectors by the type of number that they have been asked for in."""
        return self.values, self.bases

    def __matmul__(self, x):
        values, bases = self.spectrum()
        exact = bases["exact"]
        dtype = torch.promote_types(x.dtype, torch.complex64) if exact.is_complex() else x.dtype
        if dtype not in bases:
            bases[dtype] = exact.to(dtype)
        V = bases[dtype]
        rows = x.reshape(*V.shape[:-2], -1, V.shape[-1]).to(dtype)
        return (((rows @ V.conj())*values.to(dtype).unsqueeze(-2)) @ V.mT).real.reshape(x.shape)

    def function(self, f):
        """f(M), a function of the eigenvalues."""
        values, bases = self.spectrum()
        return Eigen(f(values), bases)

    def diagonal(self, like):
        """The diagonal, one value per site, in the shape and dtype of a block."""
        values, bases = self.spectrum()
        V = bases["exact"]
        return (V*V.conj()*values.unsqueeze(-2)).sum(-1).real.reshape(like.shape).to(like.dtype)

    def root(self):
        """A square root."""
        return self.function(lambda m: m.clamp(min=0).sqrt())

    def inverse(self):
        """The inverse."""
        return self.function(lambda m: 1/m)


class Dense(Eigen):
    """A symmetric or skew matrix over the sites of a chain; what is asked for of its eigenvectors is found once."""

    def __init__(self, matrix):
        self.matrix, self.known, self.by_type = torch.as_tensor(matrix).double(), None, {}

    def spectrum(self):
        """The eigenvalues, and the eigenvectors by the type of number that they have been asked for in."""
        if self.known is None:
            is_skew = (self.matrix + self.matrix.mT).abs().amax() < (self.matrix - self.matrix.mT).abs().amax()
            values, V = torch.linalg.eigh(1j*self.matrix if is_skew else self.matrix)
            values = torch.where(values.abs() > 1e-13*values.abs().amax(-1, keepdim=True), values, torch.zeros_like(values))
            self.known = -1j*values if is_skew else values, {"exact": V}
        return self.known

    def __matmul__(self, x):
        if x.dtype not in self.by_type:
            self.by_type[x.dtype] = self.matrix.to(x.dtype).mT
        matrix = self.by_type[x.dtype]
        return (x.reshape(*matrix.shape[:-2], -1, matrix.shape[-1]) @ matrix).reshape(x.shape)


def field(M, x):
    """A matrix that is a function of x, at the states of all chains: `divergence` is sum_j dM_ij/dx_j there."""
    return M.at(x)


def operator(M):
    """An operator: what has functions of its own is one, anything else is a matrix."""
    return M if hasattr(M, "function") else Dense(M)

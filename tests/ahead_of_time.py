"""Kernels for GPUs that are not there: Triton compiles ahead of time, and says what its machine code is like.

    python tests/ahead_of_time.py '[{"sampler": "sghmc", "sites": 1000000}]'

prints a line of JSON for each kernel that a step launches. Triton's driver is one that only names a target, and a
launch compiles instead of running; all else is the package's own way to a launch, on tensors of the CPU. It is a
process of its own, for Triton reads once whether it interprets.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
RESNET50 = [(64, 3, 7, 7), (64,), (64,)]
for width, blocks, before in ((64, 3, 64), (128, 4, 256), (256, 6, 512), (512, 3, 1024)):
    for block in range(blocks):
        RESNET50 += [(width, 4 * width if block else before, 1, 1), (width,), (width,), (width, width, 3, 3)]
        RESNET50 += [(width,), (width,), (4 * width, width, 1, 1), (4 * width,), (4 * width,)]
        RESNET50 += [] if block else [(4 * width, before, 1, 1), (4 * width,), (4 * width,)]
RESNET50 += [(1000, 2048), (1000,)]


# ---- from another process


def figures_of(jobs):
    """What `main` prints for these jobs, from a process that has a compiler and no interpreter."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(FOLDER / "ahead_of_time.py"), json.dumps(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


# ---- machine code

# a label; or address, predicate, operation, its modifiers, operands
LABEL = re.compile(r"^(\.L_x_\d+):")
LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z0-9_]+)((?:\.[A-Za-z0-9_]+)*)\s*(.*?);")
FP64 = {"DFMA", "DMUL", "DADD", "DSETP", "DMNMX"}


def nvidia(cubin):
    """The instructions of an NVIDIA kernel and the registers and bytes of stack that a thread has."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

    def output(tool, option, file):
        return subprocess.run([tools / tool, option, file.name], capture_output=True, text=True, check=True).stdout

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = output("cuobjdump", "-res-usage", file)
        text = output("nvdisasm", "-c", file)
    used = dict(re.findall(r"(REG|STACK):(\d+)", usage.split("Function")[-1]))
    code, loops = _code(text)
    operations = Counter(operation for _, operation, _, _ in code)
    widths = [int((re.search(r"\.(64|128)", m) or [0, 32])[1]) for _, o, m, _ in code if o in ("LDG", "STG")]
    return {
        "instructions": len(code),
        "registers": int(used["REG"]),
        "stack": int(used["STACK"]),
        "widest": max(widths, default=0),
        "barriers": operations["BAR"],
        "fp64": sum(operations[o] for o in FP64),
        "loop": loops[-1],
        "inner": sum(loops[:-1]),
    }


def _code(text):
    """The instructions of a kernel, and how many are in each of its loops, the longest last."""
    code, labels, loops = [], {}, [0]
    for line in text.splitlines():
        label, instruction = LABEL.match(line), LINE.match(line)
        if label:
            labels[label[1]] = len(code)
        if instruction:
            code.append(instruction.groups())
            if code[-1][1] == "BRA":
                back = labels.get(re.search(r"\.L_x_\d+|$", code[-1][3])[0], len(code))
                loops += [len(code) - back] if len(code) - back > 1 else []
    ends = [k for k, c in enumerate(code) if c[1] == "EXIT" and c[0] is None]
    return code[: 1 + ends[0]], sorted(loops)  # what follows is padding


def amd(text):
    """The same of an AMD kernel, from its assembly."""
    code = re.findall(r"^\s+([a-z]\w+)", text.split("s_endpgm")[0], re.M)
    widths = [int((re.search(r"dwordx(\d)", o) or [0, 1])[1]) for o in code if o.startswith(("global_", "buffer_"))]
    return {
        "instructions": len(code),
        "registers": int(re.search(r"\.vgpr_count:\s+(\d+)", text)[1]),
        "stack": int(re.search(r"\.private_segment_fixed_size:\s+(\d+)", text)[1]),
        "widest": 32 * max(widths, default=0),
        "barriers": code.count("s_barrier"),
        "fp64": sum("_f64" in o for o in code),
    }


# ---- the model: no GPU has calibrated it


@dataclass(frozen=True)
class Machine:
    """A GPU: bytes a second, read and written, of a device-to-device copy; multiprocessors; cycles a second."""

    bandwidth: float
    multiprocessors: int
    clock: float


# The copy of an H200 as it was read once, nine tenths of its nominal bandwidth; of an A100 as much of its own.
MACHINES = {"sm_90": Machine(4.3e12, 132, 1.83e9), "sm_80": Machine(1.83e12, 108, 1.3e9)}


def predicted(row, machine):
    """Picoseconds a site, and the share of the bandwidth of a copy that is used.

    Instructions are issued at an efficiency that follows the occupancy, and the slower of instructions and memory hides
    the other but for a soft maximum.
    """
    threads = 32 * row["warps"]
    registers = -(-max(row["registers"], 24) // 8) * 8
    occupancy = min(1, 65536 // (registers * threads) * threads / 2048)
    issued = row["per_site"] / 32 / (4 * machine.multiprocessors) / machine.clock * 1e12
    memory = row["bytes"] / machine.bandwidth * 1e12
    slow = issued / min(0.85, 0.45 + 0.6 * occupancy)
    total = (slow**3 + memory**3) ** (1 / 3)
    return {"occupancy": occupancy, "picoseconds": total, "share": memory / total}


LATENCY = 4.5  # cycles from an instruction of a warp to the next one that waits for it


def predicted_chains(row, machine, rows=1):
    """Chain-steps a second of a kernel of many steps, whose inner loop goes over so many rows.

    A warp alone issues an instruction every few cycles, which those of other warps fill up to an efficiency of 85 %.
    """
    instructions = row["loop"] + (rows - 1) * row["inner"]
    schedulers = 4 * machine.multiprocessors
    issued = min(0.85, row["chains"] / 32 / schedulers / LATENCY)
    return 32 * schedulers * machine.clock * issued / instructions


# ---- this process


def aim(target):
    """Let Triton compile for a target."""
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    class Driver:
        """One without a device."""

        def get_current_target(self):
            return GPUTarget(*TARGETS[target])

        def get_current_device(self):
            return 0

        def get_current_stream(self, device):
            return 0

        def get_active_torch_device(self):
            return torch.device("cpu")

    driver.set_active(Driver())


def collecting(found):
    """A launcher that compiles: (launch, loop over sites or None, compiled kernel) of every launch go to `found`."""
    from integrators.kernels import gpu
    from integrators.kernels.launchers import TritonLauncher

    gpu.devices_of_triton = lambda: ["cpu"]

    class Collecting(TritonLauncher):
        def __call__(self, segment, key):
            for launch in self.launches(segment, key):
                kind, i, j = launch.name.split("_")
                loop = self.plan.segments[int(i)].passes[int(j)].sites if kind == "sites" else None
                if loop is not None:
                    there = launch.constants["BY_SITE"]
                    by_site = [s for s in loop.constants if there >> self.plan.constants.index(s) & 1]
                    loop = replace(loop, loads=(*loop.loads, *by_site))
                kernel = launch.kernel.warmup(*launch.arguments, grid=launch.programs, **launch.constants)
                found.append((launch, loop, kernel))

    return Collecting


def step(case, dtype, sites, chains, given, key):
    """A step on one tensor."""
    import torch

    import integrators

    step, recipe = integrators.compile(case.recipe, backend="triton"), case.recipe

    def full(block):
        return torch.full((chains, sites) if block.is_vector else (chains,), 0.5, dtype=dtype)

    state = {b.name: full(b) for b in recipe.entries}
    noise = {d.name: full(d) for d in step.program.draws} if given else key
    more = {name: 5 for name, is_read in step._of_the_run.items() if is_read}
    functions = {"gradient": lambda theta: theta, "curvature": torch.ones_like, "observe": case.observe}
    step(state, case.step_size or 0.01, noise=noise, **functions, **case.parameters, **more)


def optimizer(case, dtype, shapes):
    """A step of the optimizer over tensors of these shapes."""
    import torch

    import samplers

    params = [torch.nn.Parameter(torch.full(shape, 0.01, dtype=dtype)) for shape in shapes]
    for p in params:
        p.grad = torch.full_like(p, 0.1)
    sites = sum(p.numel() for p in params)
    observe = {s.name: torch.ones(sites if s.is_vector else 1, dtype=dtype) for s in case.recipe.observations}
    how = {"num_data": 1000, "backend": "triton", "weight_decay": 1e-4, "step_size": 1e-3}
    samplers.Optimizer(params, case.recipe, **how, **case.parameters).step(observe=observe)


def energy_of(name):
    """A target of tests, or logistic regression, and the number of its sites."""
    from sympy import exp, log

    from recipe import Energy, data_total, datum, total, vector
    from samplers.target.targets import TARGETS

    if name in TARGETS:
        return TARGETS[name], len(TARGETS[name].coordinates)
    theta, x, y = vector("theta"), datum("x", per=vector("theta")), datum("y")
    z = total(x * theta)
    return Energy(theta, U=data_total(log(1 + exp(z)) - y * z) + total(theta**2) / 2, data=(x, y)), 10


def compile_into(found):
    """Let launches compile, and go to `found`."""
    from integrators.kernels import gpu

    class Compiled(gpu.Launch):
        def __call__(self):
            found.append((self, None, self.kernel.warmup(*self.arguments, grid=self.programs, **self.constants)))

    gpu.Launch, gpu.devices_of_triton = Compiled, lambda: ["cpu"]


def chains_of(case, dtype, energy, chains, found):
    """Ten steps of chains on a symbolic energy, in one launch; batches of data have 32 rows."""
    import torch

    import integrators
    from integrators.kernels.trajectory import TrajectoryOnGPU

    compile_into(found)
    energy, sites = energy_of(energy)
    step = integrators.compile(case.recipe, energy=energy)
    shapes = {b.name: (chains, sites) if b.is_vector else (chains,) for b in case.recipe.entries}
    state = {name: torch.full(shape, 0.5, dtype=dtype) for name, shape in shapes.items()}
    columns = tuple(torch.ones((1000, sites) if d.is_vector else 1000, dtype=dtype) for d in energy.data)
    data = {"data": columns, "batch_size": 32} if columns else {}
    how = {"parameters": dict(case.parameters) | {"num_data": 1000}, **data}
    TrajectoryOnGPU(step.program, state, 3, **how).run(0, [(0.01, 1.0)] * 10, keep=[*shapes][:1])


def noise_of(kind, dtype, sites, chains, found):
    """The random numbers of one draw in eight steps."""
    import torch

    from integrators.kernels import block_noise

    compile_into(found)
    how = {"high": 1000} if kind == "integers" else {"dtype": dtype}
    block_noise.filled(kind, 3, range(8), 0, chains, (sites,), device=torch.device("cpu"), **how)


def kernels(job):
    """The figures of the kernels of a job, one for each that is compiled.

    `sampler`: its name; `sites` of one tensor and `chains`, or `resnet` for the optimizer over 161 tensors, or `energy`
    for K steps of chains; of the sampler "noise" the `kind` of numbers; `dtype`; `target`; `given`: whether noise is a
    tensor.
    """
    import torch

    from integrators.kernels import gpu, launchers, single
    from integrators.noise import Key
    from samplers.testing.cases import CASES

    name, target, dtype = job["sampler"], job.get("target", "sm_90"), getattr(torch, job.get("dtype", "float32"))
    aim(target)
    found = []
    launchers.LAUNCHERS["triton"] = collecting(found)
    gpu.check_launches = lambda where, device: None  # nothing is launched
    single._pool.idle.clear()  # a kernel of an earlier job launches into that job's list
    key = Key(job.get("seed", 3), job.get("step", 4))
    if job.get("resnet"):
        optimizer(CASES[name], dtype, RESNET50)
    elif name == "noise":
        noise_of(job["kind"], dtype, job["sites"], job["chains"], found)
    elif "energy" in job:
        chains_of(CASES[name], dtype, job["energy"], job["chains"], found)
    else:
        step(CASES[name], dtype, job["sites"], job.get("chains", 1), job.get("given", False), key)
    seen = {}
    for launch, loop, kernel in found:
        how = launch.constants
        called = {"name": launch.name, "aligned": how.get("ALIGNED"), "round": how.get("ROUND")}
        seen[id(kernel)] = called | _figures(kernel, target)
        if loop is not None:
            seen[id(kernel)] |= _by_site(seen[id(kernel)], launch, loop, dtype, target)
    for row in seen.values():
        yield {**job, "target": target, **row}


def _figures(kernel, target):
    row = amd(kernel.asm["amdgcn"]) if target.startswith("gfx") else nvidia(kernel.asm["cubin"])
    return row | {"warps": kernel.metadata.num_warps, "shared": kernel.metadata.shared}


def _by_site(row, launch, loop, dtype, target):
    """What a kernel over sites does for each of them."""
    threads = TARGETS[target][2] * row["warps"]
    per_site = row["instructions"] * threads / (4 * launch.constants["GROUPS"])
    arrays = len(loop.loads) + len(loop.stores)
    size = max(4, dtype.itemsize)  # halves are moved as copies: a gradient of two bytes, and two for what is rounded
    row = row | {"per_site": round(per_site, 1), "totals": len(loop.sums), "bytes": arrays * size}
    return row | (predicted(row, MACHINES[target]) if target in MACHINES else {})


def main():
    for job in json.loads(sys.argv[1]):
        for row in kernels(job):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER.parent))
    main()

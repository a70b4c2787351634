"""All that is asked of a GPU, in eight minutes: the tests on it, and the speed of its kernels beside the model's.

    make gpu

writes out/gpu.json. Every stage is a process of its own, with an end of its own and a line of JSON: one that fails,
hangs or takes the driver along is named, and the others go on. The most valuable come first, and the table of all is
what is printed last. `--rehearse` runs every line without a GPU, at small sizes, where Triton is interpreted.
"""

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path[:0] = [str(FOLDER), str(FOLDER.parent), str(ROOT)]
if "--rehearse" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

import torch  # noqa: E402
from ahead_of_time import MACHINES, RESNET50, energy_of, figures_of, predicted_chains  # noqa: E402

import samplers  # noqa: E402
from recipe.errors import RecipeError  # noqa: E402

SECONDS = 480
TARGET = "sm_90"  # of the model's figures
PREDICTED = FOLDER / "results" / "gpu-model.json"
ON_THE_GPU = ["test_triton", "test_triton_trajectories", "test_graphs", "test_half_precision", "test_running_ahead"]
ON_THE_GPU += ["test_cuda_graphs", "test_kernels", "test_addresses", "test_names", "test_noise"]
SAMPLERS = ["sgld", "sghmc", "psgld", "underdamped-langevin", "msgnht", "atmc", "santa", "sgnht"]


class Place:
    """Where it is measured: a GPU, or the CPU in a rehearsal, and how large and how often."""

    def __init__(self, rehearse):
        self.device = "cpu" if rehearse else "cuda"
        self.shapes = [(3, 5), (7,), (64,)] if rehearse else RESNET50
        self.flat = 5000 if rehearse else 100_000_000
        self.steps = 2 if rehearse else 50
        self.rounds = 2 if rehearse else 7
        self.chains = 16 if rehearse else 4096
        self.trials = 20 if rehearse else 1000

    def wait(self):
        """Let the device end its work."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds(self, run):
        """Of one call among `steps`: until the host has asked for it, and until it is done; medians of rounds."""
        for _ in range(2):
            run()
        asked, done = [], []
        for _ in range(self.rounds):
            self.wait()
            began = time.perf_counter()
            for _ in range(self.steps):
                run()
            asked.append((time.perf_counter() - began) / self.steps)
            self.wait()
            done.append((time.perf_counter() - began) / self.steps)
        return sorted(asked)[len(asked) // 2], sorted(done)[len(done) // 2]


# ---- the machine


def machine(place):
    """What it is."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "cpus": os.cpu_count()}
    for name in ("triton", "jax", "posteriors"):
        try:
            found[name] = __import__(name).__version__
        except (ImportError, AttributeError) as error:
            found[name] = str(error)
    if place.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {"gpu": properties.name, "capability": torch.cuda.get_device_capability(0)}
        found |= {"memory": properties.total_memory, "multiprocessors": properties.multi_processor_count}
    return found


# ---- tests


def ended(command, seconds, **environment):
    """The output of a command, and its exit code, None where its time was over: then all that it started is killed."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, **pipes)
    try:
        return process.communicate(timeout=seconds)[0], process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0], None


def tests(names, seconds, place):
    """The counts of passed and failed tests of some files, of all where none is named, with what has failed."""
    files = [str(ROOT / "tests" / f"{name}.py") for name in names]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rfE", "--tb=line", *files]
    try:
        import xdist  # noqa: F401

        command += ["--numprocesses", str(min(8, os.cpu_count() or 1)), "--dist", "worksteal"]
    except ImportError:
        pass
    if place.device == "cpu":
        command += ["-k", "short_chains or one_way"]
    began = time.monotonic()
    text, code = ended(command, seconds, OMP_NUM_THREADS="1")
    failed = re.findall(r"^(?:FAILED|ERROR) (.*)$", text, re.M)
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", text[-400:])}
    took = round(time.monotonic() - began, 1)
    return {"ended": code is not None, "seconds": took, **counts, "which": failed[:100], "end": text[-3000:]}


# ---- speed


def optimizer_of(make, shapes, place):
    """A call that steps an optimizer over tensors of these shapes, after 30 steps, which look for clipping."""
    params = [torch.nn.Parameter(0.1 * torch.randn(shape, device=place.device)) for shape in shapes]
    for p in params:
        p.grad = 0.01 * torch.randn_like(p)
    optimizer = make(params)
    for _ in range(30 if place.device == "cuda" else 1):
        optimizer.step()
    return optimizer.step


def peers(place):
    """Picoseconds a parameter of what the machine can do, and bytes a second of a copy."""
    both = torch.randn(2, place.flat, device=place.device)
    copied = place.seconds(partial(both[0].copy_, both[1]))[1]
    found = {"copy, bytes a second": 8 * place.flat / copied, "copy": copied / place.flat * 1e12}
    found["normal_"] = place.seconds(both[0].normal_)[1] / place.flat * 1e12
    for name, shapes in (("flat", [(place.flat,)]), ("tensors", place.shapes)):
        count = sum(torch.Size(s).numel() for s in shapes)
        adam = optimizer_of(partial(torch.optim.AdamW, lr=1e-4, fused=True), shapes, place)
        found[f"AdamW (fused), {name}"] = place.seconds(adam)[1] / count * 1e12
    return found


def predict():
    """Write the model's figures: bytes, picoseconds, instructions a parameter of each optimizer; chain-steps a second.

    They are made ahead of time, and travel as a file: a GPU's minutes are not for compiling.
    """
    steps = {}
    rows = figures_of([{"sampler": name, "resnet": True, "target": TARGET} for name in SAMPLERS])
    for name in SAMPLERS:
        kernels = [row for row in rows if row["sampler"] == name and "bytes" in row]
        sums = {"bytes": "bytes", "picoseconds": "picoseconds", "instructions": "per_site"}
        steps[name] = {what: sum(row[key] for row in kernels) for what, key in sums.items()}
    jobs = [{"sampler": name, "energy": energy, "chains": 4096, "target": TARGET} for name, energy in CHAINS]
    runs = [row for row in figures_of(jobs) if row["name"] == "run"]
    chains = {}
    for (name, energy), row in zip(CHAINS, runs, strict=True):
        batch = BATCH if energy == "logistic" else 1
        chains[f"{name}, {energy}"] = predicted_chains(row, MACHINES[TARGET], batch)
    PREDICTED.write_text(json.dumps({"target": TARGET, "steps": steps, "chains": chains}, indent=1) + "\n")


def steps_of(place, bandwidth):
    """Picoseconds a parameter of each sampler's optimizer, the model's, the share of the copy's bandwidth."""
    scale = MACHINES[TARGET].bandwidth / bandwidth  # the model's machine may have another memory
    found = []
    predicted = json.loads(PREDICTED.read_text())["steps"]
    for name in SAMPLERS[:1] if place.device == "cpu" else SAMPLERS:
        model = predicted[name]
        for form, shapes in (("tensors", place.shapes), ("flat", [(place.flat,)])):
            make = partial(samplers.Optimizer, recipe=samplers.catalogue[name], num_data=1000, weight_decay=1e-4)
            make = partial(make, step_size=1e-5, backend="triton")
            try:
                asked, done = place.seconds(optimizer_of(make, shapes, place))
            except (RecipeError, RuntimeError) as error:
                found.append({"sampler": name, "form": form, "error": str(error)})
                continue
            count = sum(torch.Size(s).numel() for s in shapes)
            row = {"sampler": name, "form": form, "picoseconds": done / count * 1e12, "host, us": asked * 1e6}
            row |= {"model": model["picoseconds"], "model at this bandwidth": model["picoseconds"] * scale}
            row |= {"share of the copy": model["bytes"] * count / done / bandwidth, "bytes": model["bytes"]}
            found.append(row)
    return found


def agreement(place):
    """The largest difference of a step of Triton and of torch, in float64, of every stock sampler that has a kernel."""
    from test_kernels import KERNELS, against_torch

    from integrators.noise import Key

    found, key = {}, Key(2**40 + 1, 2**33 + 5, first_chain=3)
    for name in KERNELS[:2] if place.device == "cpu" else KERNELS:
        try:
            found[name] = max(max(against_torch(name, "triton", 19, shape, key)) for shape in ((5,), (4099,)))
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    wrong = {name: x for name, x in found.items() if isinstance(x, str) or not x <= 1e-12}
    largest = max((x for x in found.values() if not isinstance(x, str)), default=None)
    return {"samplers": len(found), "largest": largest, "wrong": wrong}


CHAINS = [("sgld", "banana"), ("underdamped-langevin", "banana"), ("sgnht", "banana"), ("sgld", "logistic")]
BATCH = 32


def chains_of(place):
    """Chain-steps a second of `sample`: kernels of many steps, the model's, torch; on a banana jax where it is."""
    model = json.loads(PREDICTED.read_text())["chains"]
    found = {}
    for name, energy in CHAINS[:1] + CHAINS[-1:] if place.device == "cpu" else CHAINS:
        found[f"{name}, {energy}"] = {
            "model": model[f"{name}, {energy}"],
            "triton": chain_steps(place, name, energy, "triton"),
            "torch": chain_steps(place, name, energy, "torch"),
        }
    return found | {"sgld, banana, jax scan": of_jax_scan(place)}


def chain_steps(place, name, energy, backend):
    """Chain-steps a second of a run of `sample`, without what it compiles at first."""
    recipe, (energy, sites) = samplers.catalogue[name], energy_of(energy)
    data = {}
    if energy.data:
        columns = torch.randn(1000, sites, device=place.device), torch.ones(1000, device=place.device)
        data = {"data": columns, "batch_size": BATCH}
    run = {"init": torch.zeros(sites, device=place.device), "chains": place.chains, "step_size": 1e-3, **data}
    run |= {"backend": backend, "progress": False}
    samplers.sample(recipe, energy, steps=5, **run)
    steps = place.trials * (100 if backend == "triton" and place.device == "cuda" else 1)
    place.wait()
    began = time.perf_counter()
    samplers.sample(recipe, energy, steps=steps, thin=steps, **run)
    place.wait()
    return place.chains * steps / (time.perf_counter() - began)


def of_jax_scan(place):
    """The same of SGLD written in jax."""
    try:
        from speed.trajectories import of_jax

        run = of_jax(lambda t: t[0] ** 2 / 2 + 5 * (t[1] - t[0] ** 2) ** 2, 2, place.chains, place.trials)
        run(0)
        began = time.perf_counter()
        run(1)
        return place.chains * place.trials / (time.perf_counter() - began)
    except ImportError as error:
        return f"none: {error}"


def trained(place, dtype=torch.float32, **settings):
    """An optimizer of SGHMC over the tensors, and its weights, after three steps."""
    params = [torch.nn.Parameter(torch.full(shape, 0.1, device=place.device, dtype=dtype)) for shape in place.shapes]
    for p in params:
        p.grad = torch.full_like(p, 0.01)
    how = {"num_data": 1000, "step_size": 1e-5, "backend": "triton"} | settings
    optimizer = samplers.Optimizer(params, samplers.SGHMC, **how)
    for _ in range(3):
        optimizer.step()
    return optimizer, params


def apart(some, others):
    """The largest difference of two lists of tensors."""
    return max(float((x.detach().float() - y.detach().float()).abs().max()) for x, y in zip(some, others))


def graphs(place):
    """Steps in a CUDA graph: how far their replays are from the same steps without one, and what each costs."""
    optimizer, params = trained(place, capturable=True)
    plain, others = trained(place)
    step = optimizer.step
    if place.device == "cuda":
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            optimizer.step()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            optimizer.step()
        step = graph.replay
    for _ in range(5):
        step()
    counted = optimizer.state_dict()["param_groups"][0]["step_number"]
    made = 9 if place.device == "cuda" else 8
    for _ in range(made - 3):
        plain.step()
    found = {"apart": apart(params, others), "steps counted": counted, "steps made": made}
    for name, run in (("replay", step), ("step", plain.step)):
        asked, done = place.seconds(run)
        found[name] = {"host, us": asked * 1e6, "us": done * 1e6}
    return found


def torch_energies(place):
    """Logistic regression as a torch function: steps a second, several in a CUDA graph by "auto", and how far apart."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 10, generator=random).to(place.device)
    y = (torch.rand(1000, generator=random) < 0.5).float().to(place.device)

    def energy(theta, batch):
        z = batch[0] @ theta
        misfit = torch.nn.functional.softplus(z) - batch[1] * z
        return 1000 / BATCH * misfit.sum() + (theta**2).sum() / 2

    run = {"init": torch.zeros(10, device=place.device), "chains": 64, "data": (x, y), "batch_size": BATCH}
    run |= {"step_size": 1e-4, "thin": 10, "progress": False}
    found, ends = {}, {}
    for backend in ("torch", "triton", "auto"):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            samplers.sample(samplers.SGHMC, energy, steps=20, backend=backend, **run)
            place.wait()
            began = time.perf_counter()
            ends[backend] = samplers.sample(samplers.SGHMC, energy, steps=4 * place.trials, backend=backend, **run)
            place.wait()
        found[backend] = {"steps a second": 4 * place.trials / (time.perf_counter() - began)}
        found[backend]["told"] = [str(w.message) for w in told]
        found[backend]["apart"] = apart([ends[backend]["theta"]], [ends["torch"]["theta"]])
    return found


def whole_network(place):
    """A network captured whole, as torch documents it: gradients None before, backward() and step() in the graph."""
    network = torch.nn.Linear(8, 4).to(place.device)
    optimizer = samplers.Optimizer(
        network.parameters(), samplers.SGHMC, num_data=100, step_size=1e-4, backend="triton", capturable=True
    )
    x = torch.randn(16, 8, device=place.device)

    def train():
        optimizer.zero_grad(set_to_none=True)
        network(x).square().mean().backward()
        optimizer.step()

    if place.device == "cpu":
        train()
        return {"rehearsed": True}
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            train()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        network(x).square().mean().backward()
        optimizer.step()
    before = network.weight.detach().clone()
    graph.replay()
    torch.cuda.synchronize()
    return {"moved": not torch.equal(before, network.weight), "finite": bool(network.weight.isfinite().all())}


def waits(place):
    """An energy that waits for the device is sampled step by step, and graphs of others can be captured after it."""
    matrix = torch.eye(3, device=place.device) * 2

    def energy(theta):
        return (torch.linalg.cholesky(matrix + 0 * theta.sum()) @ theta).square().sum() / 2

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = {"init": torch.zeros(3, device=place.device), "chains": 8, "step_size": 0.05, "progress": False}
        samplers.sample(samplers.SGLD, energy, steps=place.trials * 3, **run)
    found = {"told": [str(w.message)[:200] for w in told]}
    if place.device == "cuda":
        x = torch.ones(3, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        graph.replay()
        found["a graph after it"] = y.tolist() == [2.0] * 3
    return found


def scaled(place):
    """A loop with GradScaler: a gradient that overflows is left out, and the next step moves."""
    device = place.device
    p = torch.nn.Parameter(torch.ones(64, device=device))
    backend = "triton" if device == "cuda" else "torch"
    optimizer = samplers.Optimizer([p], samplers.SGLD, num_data=100, step_size=1e-4, backend=backend)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    moved = []
    for factor in (1.0, float("inf"), 1.0):
        before = p.detach().clone()
        optimizer.zero_grad()
        scaler.scale((factor * p).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        moved.append(not torch.equal(before, p))
    return {"moved": moved, "as it should": moved == [True, False, True]}


def small(place):
    """Steps of odd sizes, and a trajectory, for the sanitizer."""
    shapes = [(3, 5), (7,), (1,), (4099,)]
    for name in ("sgnht", "psgld"):
        make = partial(samplers.Optimizer, recipe=samplers.catalogue[name], num_data=100, step_size=1e-4)
        optimizer_of(partial(make, backend="triton"), shapes, Place(True) if place.device == "cpu" else place)()
    energy, sites = energy_of("banana")
    run = {"init": torch.zeros(sites, device=place.device), "chains": 33, "step_size": 1e-3, "progress": False}
    samplers.sample(samplers.SGLD, energy, steps=7, backend="triton", **run)
    return {"ended": True}


def sanitized(place):
    """What compute-sanitizer finds in `small`, by its tools."""
    program = shutil.which("compute-sanitizer")
    if program is None or place.device == "cpu":
        return {"none": "there is no compute-sanitizer, or no GPU"}
    found = {}
    for tool in ("memcheck", "racecheck", "initcheck"):
        command = [program, "--tool", tool, "--error-exitcode", "7", sys.executable, __file__, "--stage", "small"]
        text, code = ended(command, 40)
        found[tool] = {"code": code, "end": text[-300:] if code else ""}
    return found


def sharded(place):
    """Parameters sharded over two GPUs, by nccl; None of one GPU."""
    if place.device == "cpu" or torch.cuda.device_count() < 2:
        return None
    with tempfile.TemporaryDirectory() as folder:
        run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "examples/sharded.py"]
        text, code = ended([sys.executable, *run, "--folder", folder, "--steps", "400"], 50)
    return {"code": code, "end": text[-300:]}


def halves(place):
    """Weights in bfloat16, moved as copies: how far these are from weights in float32, and what a step costs."""
    optimizer, params = trained(place, torch.bfloat16)
    precise, others = trained(place)
    copies = [optimizer.state[p]["copy in float32"] for p in params]
    found = {"apart": apart(copies, others), "digit": 0.1 * torch.finfo(torch.bfloat16).eps}
    count = sum(p.numel() for p in params)
    for name, run in (("bfloat16", optimizer.step), ("float32", precise.step)):
        found[f"{name}, picoseconds"] = place.seconds(run)[1] / count * 1e12
    return found


# ---- the stages

STAGES = {  # the seconds that each takes at most, and what it asks of a place and of the results before; best first
    "machine": (30, lambda place, _: machine(place)),
    "agreement": (75, lambda place, _: agreement(place)),
    "peers": (30, lambda place, _: peers(place)),
    "steps": (90, lambda place, so_far: steps_of(place, bandwidth_of(so_far))),
    "chains": (60, lambda place, _: chains_of(place)),
    "graphs": (30, lambda place, _: graphs(place)),
    "whole network": (30, lambda place, _: whole_network(place)),
    "energies that wait": (40, lambda place, _: waits(place)),
    "torch energies": (60, lambda place, _: torch_energies(place)),
    "scaler": (20, lambda place, _: scaled(place)),
    "halves": (20, lambda place, _: halves(place)),
    "sanitizer": (125, lambda place, _: sanitized(place)),
    "tests on the GPU": (200, lambda place, _: tests(ON_THE_GPU, 190, place)),
    "sharded": (60, lambda place, _: sharded(place)),
}
HIDDEN = {"small": (40, lambda place, _: small(place))}  # stages of stages
MARK = "result: "  # before the JSON of a stage


def bandwidth_of(so_far):
    """Bytes a second of the machine's own copy; the model's where it was not measured."""
    return (so_far.get("peers") or {}).get("copy, bytes a second", MACHINES[TARGET].bandwidth)


def stage(name, seconds, options):
    """The result of a stage in a process of its own, or how it ended."""
    command = [sys.executable, __file__, "--stage", name, "--out", str(options.out)]
    began = time.monotonic()
    text, code = ended(command + ["--rehearse"] * options.rehearse, seconds)
    took = {"seconds": round(time.monotonic() - began, 1)}
    lines = [line for line in text.splitlines() if line.startswith(MARK)]
    if code == 0 and lines:
        return {"result": json.loads(lines[-1].removeprefix(MARK))} | took
    how = f"not done within {seconds:.0f} s" if code is None else f"exit code {code}"
    return {"failed": how, "end": text[-2000:]} | took


def show(results):
    """The last lines that are printed: a line for each stage, then the steps beside the model."""
    for name, found in results.items():
        what = found.get("failed") or json.dumps(found["result"], default=str)
        print(f"{name:20}{found['seconds']:6.1f} s  {what[:160]}")
    print(f"{'picoseconds a parameter':32}{'measured':>10}{'model':>10}{'share of the copy':>20}{'host, us':>10}")
    for row in results.get("steps", {}).get("result", []):
        name = f"{row['sampler']}, {row['form']}"
        if "error" in row:
            print(f"{name:32}{row['error'][:100]}")
        else:
            measured = f"{row['picoseconds']:10.3g}{row['model at this bandwidth']:10.3g}"
            print(f"{name:32}{measured}{row['share of the copy']:20.0%}{row['host, us']:10.1f}")


def main(argv=None):
    """Run all stages, print their figures, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/gpu.json"))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all of it")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, at small sizes: whether all of it runs")
    parser.add_argument("--predict", action="store_true", help="write the model's figures, which need no GPU")
    parser.add_argument("--stage", choices=[*STAGES, *HIDDEN], help="one of them, in this process")
    options = parser.parse_args(argv)
    if options.predict:
        predict()
        return 0
    if not options.rehearse and not torch.cuda.is_available():
        print("make gpu: torch sees no GPU here; `--rehearse` runs every line without one", file=sys.stderr)
        return 2
    if options.stage:
        so_far = json.loads(options.out.read_text()) if options.out.is_file() else {}
        run = (STAGES | HIDDEN)[options.stage][1]
        found = run(Place(options.rehearse), {name: each.get("result") for name, each in so_far.items()})
        print(MARK + json.dumps(found, default=str), flush=True)
        return 0
    began, results = time.monotonic(), {}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("{}")
    slower = 10 if options.rehearse else 1
    for name, (most, _) in STAGES.items():
        left = slower * options.seconds - (time.monotonic() - began)
        if left < 15:
            results[name] = {"failed": "no time was left", "seconds": 0.0}
            continue
        results[name] = stage(name, min(slower * most, left - 5), options)
        options.out.write_text(json.dumps(results, indent=1, default=str) + "\n")
        print(json.dumps({name: results[name]}, default=str)[:2000], flush=True)
    show(results)
    print(f"written to {options.out}, {time.monotonic() - began:.0f} s")
    return int(any("failed" in found for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())

"""All that is asked of a GPU, in eight minutes: the tests on it, and the speed of its kernels beside the model's.

    make gpu

writes out/gpu.json. A stage that fails is named there, and the others go on. `--rehearse` runs every line without a
GPU, at small sizes, where Triton is interpreted.
"""

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
import traceback
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


def target_of(place):
    """The target of the model that is nearest to the machine."""
    return "sm_80" if place.device == "cuda" and torch.cuda.get_device_capability(0)[0] < 9 else "sm_90"


# ---- tests


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
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)
    try:
        text, ended = process.communicate(timeout=seconds)[0], True
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its workers too
        text, ended = process.communicate()[0], False
    failed = re.findall(r"^(?:FAILED|ERROR) (.*)$", text, re.M)
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", text[-400:])}
    took = round(time.monotonic() - began, 1)
    return {"ended": ended, "seconds": took, **counts, "which": failed[:100], "end": text[-3000:]}


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


def predictions(place):
    """Rows of the model for each sampler's optimizer over the 161 tensors: bytes and picoseconds a parameter."""
    names = SAMPLERS[:1] if place.device == "cpu" else SAMPLERS
    rows = figures_of([{"sampler": name, "resnet": True, "target": target_of(place)} for name in names])
    found = {}
    for name in names:
        kernels = [row for row in rows if row["sampler"] == name and "bytes" in row]
        found[name] = {
            "bytes": sum(row["bytes"] for row in kernels),
            "picoseconds": sum(row["picoseconds"] for row in kernels),
            "instructions": sum(row["per_site"] for row in kernels),
        }
    return found


def steps_of(place, predicted, bandwidth):
    """Picoseconds a parameter of each sampler's optimizer, the model's, the share of the copy's bandwidth."""
    scale = MACHINES[target_of(place)].bandwidth / bandwidth  # the model's machine may have another memory
    found = []
    for name, model in predicted.items():
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
    """The largest difference of a step of Triton and of torch, on the device, in float64 and float32."""
    import integrators
    from integrators.noise import Key

    found = {}
    for dtype in (torch.float64, torch.float32):
        at = torch.linspace(-1, 1, 2 * 4099, dtype=dtype, device=place.device).reshape(2, 4099)
        state = {"theta": at, "p": at.flip(1).contiguous()}
        steps = [integrators.compile(samplers.SGHMC, backend=backend) for backend in ("torch", "triton")]
        here, there = (s(state, 0.1, gradient=torch.sin, noise=Key(3, 2**40)) for s in steps)
        found[str(dtype)] = max(float((here[b] - there[b]).abs().max()) for b in state)
    return found


CHAINS = [("sgld", "banana"), ("underdamped-langevin", "banana"), ("sgnht", "banana"), ("sgld", "logistic")]
BATCH = 32


def chains_of(place):
    """Chain-steps a second of `sample`: kernels of many steps, the model's, torch; on a banana jax where it is."""
    names = CHAINS[:1] + CHAINS[-1:] if place.device == "cpu" else CHAINS
    jobs = [{"sampler": name, "energy": energy, "chains": 4096, "target": target_of(place)} for name, energy in names]
    rows = [row for row in figures_of(jobs) if row["name"] == "run"]
    found = {}
    for (name, energy), row in zip(names, rows):
        batch = BATCH if energy == "logistic" else 1
        found[f"{name}, {energy}"] = {
            "model": predicted_chains(row, MACHINES[target_of(place)], batch),
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


# ---- the report


def show(results):
    """The figures, in words."""
    print(json.dumps({k: v for k, v in results.items() if k != "steps"}, indent=1, default=str)[:6000])
    print(f"\n{'picoseconds a parameter':32}{'measured':>10}{'model':>10}{'share of the copy':>20}{'host, us':>10}")
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
    options = parser.parse_args(argv)
    if not options.rehearse and not torch.cuda.is_available():
        print("make gpu: torch sees no GPU here; `--rehearse` runs every line without one", file=sys.stderr)
        return 2
    began = time.monotonic()
    place, results = Place(options.rehearse), {}
    options.out.parent.mkdir(parents=True, exist_ok=True)

    def left():
        return max(20.0, options.seconds - 15 - (time.monotonic() - began))

    def stage(name, run):
        """Run a stage, and write down what it gives, or how it failed."""
        started = time.monotonic()
        try:
            found = {"result": run()}
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-2000:]}
        results[name] = found | {"seconds": round(time.monotonic() - started, 1)}
        options.out.write_text(json.dumps(results, indent=1, default=str) + "\n")
        print(f"{name}: {results[name]['seconds']} s {found.get('failed', '')}", flush=True)
        return found.get("result")

    stage("machine", lambda: machine(place))
    stage("agreement", lambda: agreement(place))
    bandwidth = (stage("peers", lambda: peers(place)) or {}).get("copy, bytes a second", 4.8e12)
    predicted = stage("predictions", lambda: predictions(place)) or {}
    stage("steps", lambda: steps_of(place, predicted, bandwidth))
    stage("chains", lambda: chains_of(place))
    stage("graphs", lambda: graphs(place))
    stage("torch energies", lambda: torch_energies(place))
    stage("halves", lambda: halves(place))
    stage("tests on the GPU", lambda: tests(ON_THE_GPU, left() / 2, place))
    if left() > 30:
        stage("all tests", lambda: tests([] if place.device == "cuda" else ["test_house"], left(), place))
    show(results)
    print(f"\nwritten to {options.out}, {time.monotonic() - began:.0f} s")
    return int(any("failed" in found for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())

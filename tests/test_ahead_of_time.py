"""Triton kernels as machine code for GPUs that are not there: they compile, and are as lean as is said here."""

import json
import math
import subprocess
import sys
from functools import cache

import pytest
from ahead_of_time import FOLDER, RESNET50, figures_of
from covering import slow
from test_kernels import KERNELS

SITES = 1_000_000

# At most, for one step of one tensor on sm_90 in float32: instructions a site, of all kernels; registers of a thread.
# At least, of each kernel, by the model: the share of the bandwidth of a copy from device to device; the goal is 0.95.
STATED = {
    "mala": (44, 48, 0.93),
    "hmc-randomised": (84, 40, 0.93),
    "ghmc": (101, 56, 0.92),
    "sgld": (45, 48, 0.93),
    "sgld-preconditioned": (44, 48, 0.93),
    "psgld": (72, 48, 0.93),
    "psgld-same-step": (72, 40, 0.94),
    "psgld-gamma": (101, 64, 0.88),
    "sgrld": (66, 56, 0.81),
    "sgrld-simplex": (50, 56, 0.9),
    "sgfs": (96, 40, 0.85),
    "vsgd": (44, 48, 0.93),
    "isgd-ideal": (44, 48, 0.93),
    "isgd": (81, 48, 0.91),
    "underdamped-langevin": (66, 40, 0.96),
    "sghmc": (68, 40, 0.96),
    "sghmc-adaptive": (131, 64, 0.95),
    "sgrhmc": (156, 48, 0.76),
    "sghmc-relativistic": (214, 96, 0.74),
    "hmc": (63, 32, 0.95),
    "sgnht": (112, 32, 0.9),
    "msgnht": (109, 48, 0.93),
    "atmc": (123, 64, 0.89),
    "atmc-relativistic": (297, 64, 0.74),
    "santa": (125, 72, 0.97),
    "sgld-sa": (167, 64, 0.81),
    "sgld-sa-marginal": (71, 72, 0.74),
    "sgld-sa-gibbs": (110, 48, 0.81),
    "sgld-sa-classification": (145, 80, 0.77),
    "sgld-sa-classification-marginal": (70, 72, 0.75),
    "sgld-sa-classification-gibbs": (108, 48, 0.81),
    "sghmc-sa": (201, 56, 0.91),
    "sghmc-sa-marginal": (126, 56, 0.86),
    "sghmc-sa-gibbs": (192, 56, 0.86),
    "sghmc-sa-classification": (181, 80, 0.9),
    "sghmc-sa-classification-marginal": (123, 48, 0.9),
    "sghmc-sa-classification-gibbs": (192, 48, 0.87),
}
OPTIMIZERS = ("sgld", "sghmc", "psgld", "underdamped-langevin", "msgnht", "atmc", "santa")
EDGES = [  # what specialises a kernel: ones, numbers beyond 2^31, noise that is given
    {"sampler": "sgnht", "sites": 1},
    {"sampler": "sghmc", "sites": 5, "chains": 7, "given": True, "seed": 1, "step": 1},
    {"sampler": "sghmc", "sites": SITES, "target": "gfx942", "seed": 2**64 - 1, "step": 2**40},
]
# At most, on a banana: instructions of a step of a warp of chains, registers of a thread. Philox is some 70 of them,
# which are run in every second step.
OF_MANY_STEPS = {"sgld": (185, 56), "underdamped-langevin": (225, 64), "sgnht": (295, 64)}
CHAINS = [
    {"sampler": name, "energy": energy, "chains": 4096, "target": target, "dtype": dtype}
    for name, energy in [*((name, "banana") for name in OF_MANY_STEPS), ("sgld", "logistic"), ("ghmc", "logistic")]
    for target in ("sm_80", "sm_90", "gfx942")
    for dtype in ("float32", "float64")
] + [{"sampler": "sgnht", "energy": "banana", "chains": 2**18, "target": "gfx942"}]
NOISE = {"sampler": "noise", "kind": "normal", "sites": 64, "chains": 1000}  # of eight steps
OF_NOISE = {"normal": (710, 48), "integers": (570, 60)}  # at most, on sm_90: instructions, registers of a thread
SPILLS = {("ghmc", "logistic", "float64"): 384}  # bytes of stack, at most, beyond the 255 registers of a thread
MORE_EDGES = [
    {"sampler": name, "sites": sites, "given": given, "target": target}
    for name in ("sgnht", "psgld", "sgld-sa", "hmc")
    for sites in (1, 5, SITES)
    for given in (True, False)
    for target in ("sm_90", "gfx942")
]


@cache
def always():
    """Figures of the kernel of SGHMC, of the last of the edges and of noise, by one process."""
    return figures_of([{"sampler": "sghmc", "sites": SITES}, EDGES[-1], NOISE])


@cache
def later(target):
    """Those of all stock samplers."""
    return figures_of([{"sampler": name, "sites": SITES, "target": target} for name in KERNELS])


def check_lean(name, rows):
    """128-bit accesses; no barriers and no double precision but for totals; no stack; what is stated."""
    rows = [row for row in rows if row["sampler"] == name and "seed" not in row and row["name"].startswith("sites")]
    for row in rows:
        assert row["aligned"] and row["stack"] == 0, row
        assert row["widest"] in (128, 0), row  # 0: it moves nothing
        assert row["totals"] or row["barriers"] == row["fp64"] == row["shared"] == 0, row
    instructions, registers, share = STATED[name]
    assert sum(row["per_site"] for row in rows) <= instructions
    assert max(row["registers"] for row in rows) <= registers
    assert min(row["share"] for row in rows) >= share


def check_many_steps_are_lean(row):
    """All in registers but for stated spills, in no more instructions than are stated."""
    assert row["stack"] <= SPILLS.get((row["sampler"], row["energy"], row.get("dtype")), 0), row
    assert row["barriers"] == row["shared"] == 0, row
    on_h200 = row["target"] == "sm_90" and row.get("dtype", "float32") == "float32"
    if on_h200 and row["energy"] == "banana" and row["name"] == "run":
        instructions, registers = OF_MANY_STEPS[row["sampler"]]
        assert row["fp64"] == 0 and 0.6 * instructions < row["loop"] <= instructions, row
        assert row["registers"] <= registers, row


@pytest.mark.slow
def test_kernels_of_many_steps_are_lean():
    rows = figures_of(CHAINS)
    assert {row["name"] for row in rows} == {"run", "gradient"}
    assert len([row for row in rows if row["name"] == "run"]) == len(CHAINS)
    for row in rows:
        check_many_steps_are_lean(row)


def check_lean_noise(rows):
    """At most so many instructions for the 16 numbers of a thread, and so many registers."""
    (row,) = (row for row in rows if row["sampler"] == "noise")
    instructions, registers = OF_NOISE[row["kind"]]
    assert row["instructions"] <= instructions and row["registers"] <= registers and row["warps"] == 4, row
    assert row["stack"] == row["fp64"] == 0 and row["widest"] == 128, row


def test_the_kernel_of_normals_is_lean():
    check_lean_noise(always())


@pytest.mark.slow
def test_the_kernel_of_noise_compiles_for_all_numbers():
    check_lean_noise(figures_of([NOISE | {"kind": "integers"}]))
    more = [{"kind": "uniform", "sites": 1, "dtype": "float64"}, {"kind": "normal", "sites": 10, "dtype": "float64"}]
    assert all(row["stack"] == 0 for row in figures_of([NOISE | job for job in more]))
    assert all(row["stack"] == 0 for row in figures_of([NOISE | {"target": "gfx942"}]))


def test_the_kernel_of_sghmc_is_lean():
    check_lean("sghmc", always())


@pytest.mark.parametrize("edge", [*map(slow, EDGES[:-1]), EDGES[-1]], ids=str)
def test_kernels_compile_at_the_edges_of_what_they_take(edge):
    rows = always() if edge is EDGES[-1] else figures_of([edge])
    rows = [row for row in rows if row.items() >= edge.items()]
    assert rows and all(row["stack"] == 0 for row in rows)
    if edge.get("target") == "gfx942":
        assert all(row["widest"] == 128 and row["barriers"] == row["fp64"] == 0 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_of_all_samplers_are_lean(name):
    check_lean(name, later("sm_90"))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_the_kernels_of_all_samplers_compile_for_other_gpus(target):
    rows = [row for row in later(target) if row["name"].startswith("sites") and row["bytes"]]
    assert {row["sampler"] for row in rows} == set(KERNELS)
    for row in rows:
        assert row["widest"] in (128, 0) and (row["totals"] or row["barriers"] == row["fp64"] == 0), row


@pytest.mark.slow
def test_the_optimizer_over_161_tensors_is_lean():
    for name in OPTIMIZERS:
        least = STATED[name][2] - 0.03
        for row in figures_of([{"sampler": name, "resnet": True}]):
            assert row["aligned"] and row["widest"] == 128 and row["barriers"] == 0 and row["share"] >= least, row


@pytest.mark.slow
def test_the_totals_of_161_tensors_are_each_added_up_in_two_rounds():
    """A round waits for memory once if a thread has registers for what it reads; blocks have 2048 sites."""
    chains = [row for row in figures_of([{"sampler": "sgnht", "resnet": True}]) if row["name"].startswith("chain")]
    blocks = sum(math.prod(shape) / 2048 for shape in RESNET50)
    assert len(chains) == 2
    assert all(2 * row["round"] > blocks and row["registers"] <= 32 and row["stack"] == 0 for row in chains), chains


@pytest.mark.slow
def test_weights_in_half_precision_are_moved_in_the_same_launches():
    precise, half = (
        figures_of([{"sampler": "sghmc", "resnet": True, "dtype": dtype}]) for dtype in ("float32", "bfloat16")
    )
    assert [row["name"] for row in half] == [row["name"] for row in precise] == ["sites_0_0"]
    assert half[0]["widest"] == 128 and half[0]["bytes"] == 20 and half[0]["share"] >= 0.85, half


@pytest.mark.slow
def test_all_edges_compile():
    assert {row["target"] for row in figures_of(MORE_EDGES)} == {"sm_90", "gfx942"}


@pytest.mark.slow
def test_the_command_for_a_gpu_rehearses_without_one(tmp_path):
    command = [sys.executable, FOLDER / "benchmarks" / "gpu.py", "--rehearse", "--out", tmp_path / "gpu.json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert all("result" in stage for stage in results.values()) and not results["tests on the GPU"]["result"]["which"]
    assert {row["form"] for row in results["steps"]["result"]} == {"tensors", "flat"}

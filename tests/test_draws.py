import errno
import json
import os
import resource
import warnings

import numpy as np
import pytest
import safetensors.torch
import torch

from recipe.errors import RecipeError
from samplers.results.draws import Draws

INFO = {"recipe": "sghmc", "scheme": "baoab", "step_size": 0.1, "seed": 7, "parameters": {"gamma": 1.0}}


def run(chains=4, draws=500, *, info=INFO, seed=0, step_sizes=None):
    noise = torch.Generator().manual_seed(seed)
    return Draws(
        {"theta": torch.randn(chains, draws, 2, generator=noise), "bias": torch.randn(chains, draws, generator=noise)},
        info=info,
        step_sizes=step_sizes,
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.safetensors"


def test_it_is_a_mapping_from_block_to_tensor():
    draws = run()
    assert list(draws) == ["theta", "bias"] and len(draws) == 2
    assert "theta" in draws and "phi" not in draws and draws.get("phi") is None
    assert draws["theta"].shape == (4, 500, 2) and dict(draws)["bias"] is draws["bias"]
    assert (draws.chains, draws.draws) == (4, 500)


def test_an_unknown_name_suggests_the_close_one():
    with pytest.raises(RecipeError) as refusal:
        run()["teta"]
    assert str(refusal.value) == "draws: there is no block 'teta'. Did you mean 'theta'?"
    assert isinstance(refusal.value, KeyError)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"theta": torch.zeros(5)},
        {"theta": torch.zeros(4, 10, 2), "bias": torch.zeros(4, 9)},
        {"theta": torch.zeros(4, 10, 2), "bias": torch.zeros(2, 10)},
    ],
)
def test_blocks_that_disagree_on_chains_and_draws_are_refused(values):
    with pytest.raises(RecipeError, match=r"draws: the blocks have the shapes \{.*\}\. Shape each"):
        Draws(values, info={})


@pytest.mark.parametrize("values", [[[1.0, 2.0]], {"theta": np.zeros((2, 9))}, {"theta": [[1.0, 2.0]]}])
def test_blocks_that_are_no_tensors_are_refused(values):
    with pytest.raises(RecipeError, match="not a tensor. Pass a dict of tensors"):
        Draws(values, info={})


@pytest.mark.parametrize("info", [{"seed": torch.tensor(1)}, {"run": object()}, ["seed"]])
def test_info_that_is_not_json_is_refused(info):
    with pytest.raises(RecipeError, match="info is not plain JSON data"):
        Draws({"theta": torch.zeros(1, 1)}, info=info)


def test_it_cannot_be_changed_by_assignment():
    draws, info = run(), dict(INFO)
    for name in ("info", "step_sizes", "chains", "draws", "diverged", "note"):
        with pytest.raises(AttributeError):
            setattr(draws, name, 0)
    with pytest.raises(TypeError):
        draws["theta"] = torch.zeros(4, 500)
    kept = run(info=info)
    info["seed"] = 8
    assert kept.info["seed"] == 7


def test_repr_shows_run_blocks_and_diverged_chains():
    assert repr(run(4, 500, info=INFO | {"diverged": {2: 130}})) == (
        "sghmc, baoab: 4 chains x 500 draws\n"
        "  theta  (2,)  float32\n"
        "  bias   ()    float32\n"
        "  diverged: chain 2 at step 130"
    )


def test_diverged_maps_chain_to_step_before_and_after_a_round_trip(path):
    draws = run(info={"diverged": {2: 130}})
    draws.save(path)
    assert draws.diverged == Draws.load(path).diverged == {2: 130}
    assert run().diverged == {}


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool],
)
def test_a_round_trip_keeps_bits_dtype_order_and_info(path, dtype):
    draws = Draws({"theta": (100 * torch.randn(2, 30, 3)).to(dtype), "a": torch.randn(2, 30).to(dtype)}, info=INFO)
    draws.save(path)
    loaded = Draws.load(path)
    assert list(loaded) == list(draws) and loaded.info == INFO
    for name in draws:
        assert loaded[name].dtype == dtype
        assert torch.equal(loaded[name].view(torch.uint8), draws[name].view(torch.uint8))


def test_a_round_trip_keeps_nan_and_infinity(path):
    bits = torch.tensor([[float("nan"), float("inf"), -0.0]]).view(torch.int32) + torch.tensor([5, 0, 0])
    Draws({"theta": bits.to(torch.int32).view(torch.float32)}, info={}).save(path)
    assert torch.equal(Draws.load(path)["theta"].view(torch.int32), bits.to(torch.int32))


def test_views_of_one_buffer_and_transposed_values_can_be_saved(path):
    buffer = torch.randn(5, 4, 2)
    turned = torch.randn(4, 4, 2).transpose(0, 1)
    draws = Draws(
        {
            "head": buffer[:4],
            "tail": buffer[1:],
            "first": buffer[:4, :, 0],
            "turned": turned,
            "empty": torch.zeros(4, 4, 0),
        },
        info={},
    )
    draws.save(path)
    assert all(torch.equal(Draws.load(path)[name], draws[name]) for name in draws)


def test_equal_draws_make_equal_files(tmp_path):
    for name in "abc":
        run().save(tmp_path / name)
    assert len({(tmp_path / name).read_bytes() for name in "abc"}) == 1


def test_loaded_draws_do_not_change_with_the_file(path):
    run().save(path)
    loaded = Draws.load(path)
    with open(path, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\x55" * 8)
    assert all(torch.equal(loaded[name], run()[name]) for name in loaded)


def test_a_flipped_bit_in_any_byte_is_noticed(path):
    run(2, 3).save(path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RecipeError, match="run.safetensors: not an intact file of draws"):
            Draws.load(path)


def test_a_file_truncated_anywhere_is_named(path):
    run(2, 3).save(path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(RecipeError, match=r"run.safetensors: not an intact file of draws .* or sample again"):
            Draws.load(path)


def test_a_foreign_file_is_refused(path):
    for write in (
        lambda: path.write_text("theta,bias\n0.1,0.2\n" * 9),
        lambda: torch.save({"theta": torch.zeros(2, 2)}, path),
        lambda: safetensors.torch.save_file({"theta": torch.zeros(2, 2)}, path),
        lambda: safetensors.torch.save_file({"theta": torch.zeros(2, 2)}, path, {"draws": "[]"}),
    ):
        write()
        with pytest.raises(RecipeError, match="run.safetensors: not an intact file of draws"):
            Draws.load(path)


def test_a_missing_file_and_a_folder_are_refused(path):
    for place in (path, path.parent):
        with pytest.raises(RecipeError, match="cannot be read .* Check the path"):
            Draws.load(place)


@pytest.mark.parametrize("name", ["draws.npz", "draws.nc", "run.1.pt"])
def test_a_name_that_ends_as_of_another_format_is_refused(tmp_path, name):
    with pytest.raises(RecipeError, match=r"safetensors, not (npz|nc|pt)[.] Name it (draws|run[.]1)[.]safetensors"):
        run().save(tmp_path / name)
    run().save(tmp_path / "run.1")
    assert os.listdir(tmp_path) == ["run.1"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("blow", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_interrupted_save_leaves_the_old_file_and_nothing_else(path, monkeypatch, call, blow):
    def interrupted(*_):
        raise blow

    run(seed=1).save(path)
    monkeypatch.setattr(os, call, interrupted)
    with pytest.raises((KeyboardInterrupt, RecipeError)):
        run(seed=2).save(path)
    assert os.listdir(path.parent) == [path.name]
    assert torch.equal(Draws.load(path)["theta"], run(seed=1)["theta"])


def test_a_full_disk_is_told_with_the_reason_of_the_system(path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(RecipeError, match=r"run.safetensors: cannot be written \(File too large\)"):
            run().save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(path.parent) == []


def test_a_place_that_cannot_hold_a_file_is_refused(path):
    path.write_text("a file, not a folder")
    os.mkfifo(path.parent / "pipe")
    for place, reason in [
        (path / "draws", "Not a directory"),
        (path.parent / "no" / "draws", "No such file"),
        (path.parent, "not a regular file"),
        (path.parent / "pipe", "not a regular file"),
    ]:
        with pytest.raises(RecipeError, match=reason):
            run().save(place)


def test_to_arviz_keeps_chain_and_draw_axes_and_values():
    draws = run(3, 20)
    posterior = draws.to_arviz().posterior
    assert posterior["theta"].dims[:2] == ("chain", "draw") and posterior["theta"].shape == (3, 20, 2)
    assert posterior["bias"].dtype == np.float64
    assert np.array_equal(posterior["theta"].values, draws["theta"].double().numpy())


def test_to_arviz_carries_info_as_attributes_that_netcdf_can_hold(tmp_path):
    inference = run(info=INFO | {"temperature": None, "thinned": True, "diverged": {0: 5}}).to_arviz()
    attributes = inference.posterior.attrs
    assert attributes["recipe"] == "sghmc" and attributes["step_size"] == 0.1
    assert json.loads(attributes["parameters"]) == {"gamma": 1.0}
    inference.to_netcdf(tmp_path / "run.nc")


def test_to_arviz_makes_a_copy():
    draws = Draws({"theta": torch.zeros(2, 5, dtype=torch.float64)}, info={})
    draws.to_arviz().posterior["theta"].values[:] = 1
    assert not draws["theta"].any()


def test_to_arviz_does_not_warn_of_more_chains_than_draws():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(chains=9, draws=3).to_arviz()


def test_summary_mean_and_sd_are_those_of_the_sample():
    draws, summary = run(), run().summary()
    sample = draws["theta"].double().reshape(-1, 2).numpy()
    np.testing.assert_allclose(summary.loc[["theta[0]", "theta[1]"], "mean"], sample.mean(0), rtol=1e-12)
    np.testing.assert_allclose(summary.loc[["theta[0]", "theta[1]"], "sd"], sample.std(0, ddof=1), rtol=1e-12)


def test_a_printed_summary_has_all_columns_and_of_many_rows_the_first_and_the_last():
    def summary(sites):
        noise = torch.Generator().manual_seed(0)
        return Draws({"theta": torch.randn(2, 50, sites, generator=noise)}, info={}).summary()

    table = summary(26)
    lines = [line.split() for line in str(table).splitlines()]
    assert lines[0] == list(table.columns) and [line[0] for line in lines[1:]] == list(table.index)
    assert all(len(line) == 1 + len(table.columns) for line in lines[1:])
    table = summary(200)
    *lines, _, size = str(table).splitlines()
    assert [line.split()[0] for line in lines[1:]] == [*table.index[:10], "...", *table.index[-10:]]
    assert len(lines[0].split()) == len(table.columns) and size == "[200 rows x 9 columns]"
    assert len(str(table[["mean", "sd"]].tail(3)).splitlines()) == 4


def test_summary_takes_one_name_or_several():
    assert list(run().summary("bias").index) == ["bias"]
    assert list(run().summary(["bias", "theta"]).index) == ["bias", "theta[0]", "theta[1]"]
    with pytest.raises(RecipeError, match="Did you mean 'bias'?"):
        run().summary("bais")


def test_summary_leaves_out_the_chains_that_diverged_and_says_so():
    values = torch.randn(4, 60, generator=torch.Generator().manual_seed(0))
    frozen = values.clone()
    frozen[1] = 1e30
    with pytest.warns(RuntimeWarning, match="leaves out 1 of 4 chains"):
        summary = Draws({"theta": frozen}, info={"diverged": {1: 7}}).summary()
    assert summary["mean"].item() == Draws({"theta": values[[0, 2, 3]]}, info={}).summary()["mean"].item()
    with pytest.raises(RecipeError, match="every chain has diverged"):
        Draws({"theta": frozen}, info={"diverged": {0: 1, 1: 1, 2: 1, 3: 1}}).summary()


def test_step_sizes_are_one_float64_per_draw():
    for given in ([0.1, 0.2, 0.4], np.array([0.1, 0.2, 0.4]), torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64)):
        h = run(2, 3, step_sizes=given).step_sizes
        assert h.dtype == torch.float64 and h.tolist() == [0.1, 0.2, 0.4]
    assert run().step_sizes is None


def test_step_sizes_are_a_copy_that_stays_positive():
    given = torch.ones(3, dtype=torch.float64)
    draws = run(2, 3, step_sizes=given)
    given.zero_()
    assert (draws.step_sizes > 0).all()


@pytest.mark.parametrize(
    "step_sizes, message",
    [
        ([0.1, 0.2], r"the step sizes have the shape \(2,\), for 3 draws"),
        (torch.ones(2, 3), r"the step sizes have the shape \(2, 3\), for 3 draws"),
        (0.1, r"the step sizes have the shape \(\), for 3 draws"),
        ([0.1, 0.0, 0.1], "a step size is not a number > 0"),
        ([0.1, -0.1, 0.1], "a step size is not a number > 0"),
        ([0.1, float("nan"), 0.1], "a step size is not a number > 0"),
        ([0.1, float("inf"), 0.1], "a step size is not a number > 0"),
        ("small", "the step sizes are not numbers"),
        ([0.1, None, 0.1], "the step sizes are not numbers"),
    ],
)
def test_step_sizes_that_do_not_fit_the_draws_are_refused(step_sizes, message):
    with pytest.raises(RecipeError, match=f"draws: {message}"):
        run(2, 3, step_sizes=step_sizes)


@pytest.mark.parametrize("name", ["theta", "bias"])
@pytest.mark.parametrize("function, reference", [(None, np.asarray), (torch.square, np.square), (torch.exp, np.exp)])
def test_the_average_weighs_draws_by_their_step_sizes(name, function, reference):
    h = np.geomspace(1, 1e-3, 50)
    draws = run(3, 50, step_sizes=h)
    expected = np.average(reference(draws[name].double().numpy()), axis=1, weights=h).mean(0)
    average = draws.average(name, function)
    assert average.dtype == torch.float64
    np.testing.assert_allclose(average.numpy(), expected, rtol=1e-6, atol=1e-7)


def test_the_average_does_not_see_the_scale_of_the_step_sizes_and_weighs_equal_ones_equally():
    h = torch.linspace(0.1, 1, 500, dtype=torch.float64)
    equal = run()["theta"].double().mean((0, 1))
    torch.testing.assert_close(run(step_sizes=h).average("theta"), run(step_sizes=1e-8 * h).average("theta"))
    torch.testing.assert_close(run(step_sizes=0 * h + 0.3).average("theta"), equal)
    torch.testing.assert_close(run().average("theta"), equal)


def test_the_average_can_be_of_a_function_of_several_components():
    draws = run(step_sizes=torch.linspace(0.1, 1, 500))
    total = draws.average("theta", lambda theta: theta.sum(-1))
    torch.testing.assert_close(total, draws.average("theta").sum(), rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    "function, got", [(torch.mean, r"shape \(\)"), (lambda x: x.mean(1), r"shape \(4, 2\)"), (lambda x: 1.0, "float")]
)
def test_the_average_of_a_function_that_loses_the_draws_is_refused(function, got):
    with pytest.raises(RecipeError, match=rf"draws, average: the function turns shape \(4, 500, 2\) into {got}"):
        run().average("theta", function)


@pytest.mark.parametrize("purpose", ["summary", "average"])
def test_a_statistic_of_no_draws_is_refused(purpose):
    none = Draws({"theta": torch.zeros(2, 0, 3)}, info={})
    with pytest.raises(RecipeError, match=f"draws, {purpose}: there are no draws. Sample longer"):
        getattr(none, purpose)(*["theta"] * (purpose == "average"))
    assert none.report().ok is None and none.report().verdict == "Nothing was asked: there are no draws."


def test_the_average_leaves_out_the_chains_that_diverged_and_says_so():
    h = torch.linspace(0.1, 1, 60)
    values = torch.randn(4, 60, generator=torch.Generator().manual_seed(0))
    frozen = values.clone()
    frozen[1] = float("nan")
    with pytest.warns(RuntimeWarning, match="average leaves out 1 of 4 chains") as warned:
        average = Draws({"theta": frozen}, info={"diverged": {1: 7}}, step_sizes=h).average("theta")
    assert warned[0].filename == __file__
    assert average == Draws({"theta": values[[0, 2, 3]]}, info={}, step_sizes=h).average("theta")
    with pytest.raises(RecipeError, match="draws, average: every chain has diverged"):
        Draws({"theta": frozen[:1]}, info={"diverged": {0: 1}}).average("theta")


def test_the_average_of_an_unknown_name_suggests_the_close_one():
    with pytest.raises(RecipeError, match="Did you mean 'theta'?"):
        run().average("teta")


@pytest.mark.parametrize("name", ["theta", "step_sizes"])
def test_a_round_trip_keeps_the_step_sizes_beside_blocks_of_any_name(path, name):
    h = torch.rand(30, dtype=torch.float64) + 0.1
    draws = Draws({name: torch.randn(2, 30), "step_sizes_": torch.randn(2, 30)}, info=INFO, step_sizes=h)
    draws.save(path)
    loaded = Draws.load(path)
    assert torch.equal(loaded.step_sizes, h) and list(loaded) == list(draws)
    assert all(torch.equal(loaded[block], draws[block]) for block in draws)


def test_a_file_without_step_sizes_has_the_header_it_always_had(path):
    run(2, 3).save(path)
    with safetensors.safe_open(path, framework="pt") as file:
        assert list(json.loads(file.metadata()["draws"])) == ["names", "info", "sha256"]
        assert list(file.keys()) == ["bias", "theta"]
    assert Draws.load(path).step_sizes is None


@pytest.mark.parametrize("new", ['"step_sizes": null', '"step_sizes": "theta"', '"old_sizes": "step_sizes"'])
def test_step_sizes_lost_from_the_header_are_noticed(path, new):
    draws = run(2, 3, step_sizes=[0.3, 0.2, 0.1])
    draws.save(path)
    header = {"names": [*draws, "step_sizes"], "info": draws.info, "step_sizes": "step_sizes"}
    with safetensors.safe_open(path, framework="pt") as file:
        written = file.metadata()["draws"]
        tensors = {key: file.get_tensor(key) for key in file.keys()}
    assert json.loads(written).items() >= header.items()
    safetensors.torch.save_file(tensors, path, {"draws": written.replace('"step_sizes": "step_sizes"', new)})
    with pytest.raises(RecipeError, match="not an intact file of draws"):
        Draws.load(path)

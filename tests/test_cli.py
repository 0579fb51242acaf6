"""The command line: every layout there and back, what it says of a file, and what it refuses to do."""

import contextlib
import errno
import io
import json
import os
import pickle
import re
import runpy
import signal
import stat
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

import mha_tutorial
from mha_tutorial import ColumnWeights, cli, layouts
from mha_tutorial.layouts import LAYOUTS, checkpoint, dump, load, write
from tests.layout_helpers import assert_same, draw


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def bert(folder, rng):
    """A file with one layer of 3 heads and 12 features beside something else."""
    stored = dump(ColumnWeights.random(rng, d_model=12, h=3), "bert", "layer.0.attention.")
    save_file(stored | {"embeddings": np.ones((5, 12))}, folder / "bert.safetensors")
    return stored


def run(command: str) -> int:
    return cli.main(command.split())


def assert_refused(command, message, capsys):
    """Exit code 2, one sentence on standard error, and the folder as it was."""
    before = listing()
    assert run(command) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("mha-tutorial: error: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert listing() == before


def listing():
    """What the folder holds, byte by byte."""
    contents = {}
    for root, folders, files in os.walk("."):
        contents |= {os.path.join(root, name): None for name in folders}
        for name in files:
            path = Path(root, name)
            contents[str(path)] = os.readlink(path) if path.is_symlink() else path.read_bytes()
    return contents


def test_the_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        run("--version")
    assert capsys.readouterr().out == f"mha-tutorial {mha_tutorial.__version__}\n"


# --- convert ------------------------------------------------------------------------------------------------------


@pytest.mark.no_cover
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_there_and_back(layout, dtype, folder, rng, capsys):
    """From its own layout to another and back: the same tensors, byte by byte."""
    weights = ColumnWeights.random(rng, d_model=30, h=3)
    stored = {key: array.astype(dtype) for key, array in dump(weights, layout, "mha.").items()}
    save_file(stored, "in.safetensors")
    other = "gpt2" if layout != "gpt2" else "neox"
    there = f"convert in.safetensors there.safetensors --from {layout} --to {other} --heads 3 --prefix mha."
    back = f"convert there.safetensors back.safetensors --from {other} --to {layout} --heads 3 --to-prefix mha."
    assert run(there) == run(back) == 0
    assert_same(load_file("back.safetensors"), stored)
    count = f"{weights.parameter_count:,} parameters"
    assert capsys.readouterr().out == (
        f"there.safetensors: 4 tensors, {count} in layout '{other}'\n"
        f"back.safetensors: {len(stored)} tensors, {count} in layout '{layout}'\n"
    )


@pytest.mark.parametrize("layout", ["mha-tutorial", "linear", "llama", "llama-pairs", "columns"])
def test_groups_of_heads_there_and_back(layout, folder, rng):
    weights = ColumnWeights.random(rng, d_model=12, h=6, h_kv=2)
    save_file(dump(weights, layout), "in.safetensors")
    assert run(f"convert in.safetensors out.safetensors --from {layout} --to columns --heads 6 --kv-heads 2") == 0
    assert run(f"convert out.safetensors back.safetensors --from columns --to {layout}") == 0
    assert_same(load_file("out.safetensors"), weights.arrays())
    assert_same(load_file("back.safetensors"), load_file("in.safetensors"))


def test_the_layer_alone_is_written(bert, folder):
    convert = (
        "convert bert.safetensors out.safetensors --from bert --to torch --heads 3 --prefix layer.0.attention."
    )
    assert run(f"{convert} --to-prefix self_attn.") == 0
    written = load_file("out.safetensors")
    assert_same(written, dump(load(bert, "bert", h=3, prefix="layer.0.attention."), "torch", "self_attn."))
    with safe_open("out.safetensors", framework="np") as file:
        assert file.metadata() == {"format": "pt"}
    assert sorted(entry.name for entry in folder.iterdir()) == ["bert.safetensors", "out.safetensors"]


CONVERT = "convert bert.safetensors out.safetensors --from bert --to torch --prefix layer.0.attention."


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (CONVERT, "pass --heads, a divisor of h·d=12"),
        (f"{CONVERT} --heads 5", "must be '(h d) d_model' = (5·d, d_model) with h=5 (given), got shape (12, 12)"),
        (f"{CONVERT} --heads 3 --kv-heads 1", "got h=3 and h_kv=1"),
        (f"{CONVERT} --heads 3 --from torch", "but the names are those of layout 'bert'"),
        (f"{CONVERT} --heads 3 --prefix layer.", "which stands there with prefix 'layer.0.attention.'"),
        (f"{CONVERT} --heads 0", "layout 'bert': h must be at least 1, got 0"),
    ],
)
def test_a_layer_that_does_not_fit_is_not_written(command, message, bert, capsys):
    assert_refused(command, message, capsys)


@pytest.mark.parametrize("ending", checkpoint.PICKLES)
def test_pickles_are_refused_unread(ending, folder, capsys):
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, ("exploded",))

    (folder / f"model{ending}").write_bytes(pickle.dumps(Bomb()))
    reason = f"model{ending} is a pickle, and reading a pickle can run any code it holds"
    assert_refused(f"inspect model{ending}", reason, capsys)
    assert_refused(f"convert model{ending} out.safetensors --from bert --to torch --heads 3", reason, capsys)
    assert_refused(f"convert model{ending} model{ending} --from bert --to torch --heads 3 --force", reason, capsys)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("inspect nowhere.safetensors", "nowhere.safetensors is not a file"),
        ("inspect weights.h5", "weights.h5 is not named as a safetensors file: its name must end in .safetensors"),
        ("inspect text.safetensors", "text.safetensors is not a safetensors file: "),
        (f"{CONVERT} --heads 3".replace("out.safetensors", "out.h5"), "its name must end in .safetensors"),
        (f"{CONVERT} --heads 3".replace("out.", "no/out."), "no is not a folder, so nothing can be written there"),
    ],
)
def test_files_of_another_kind_are_refused(command, message, bert, folder, capsys):
    (folder / "text.safetensors").write_text("no tensors, only text")
    assert_refused(command, message, capsys)


def test_types_that_numpy_lacks_are_named(folder, capsys):
    module = torch.nn.MultiheadAttention(6, 3)
    eighth = {key: tensor.to(torch.float8_e4m3fn) for key, tensor in module.state_dict().items()}
    safetensors.torch.save_file(eighth, "eighth.safetensors")
    convert = "convert eighth.safetensors out.safetensors --from torch --to gpt2 --heads 3"
    assert_refused(convert, "is of type F8_E4M3, which NumPy does not have", capsys)


def test_types_that_safetensors_for_numpy_lacks_are_named(folder, capsys):
    """Numbers of six bits: a valid file, whose type the library knows and hands to no array."""
    header = json.dumps(
        {
            "in_proj_weight": {"dtype": "F6_E2M3", "shape": [12, 4], "data_offsets": [0, 36]},
            "out_proj.weight": {"dtype": "F6_E2M3", "shape": [4, 4], "data_offsets": [36, 48]},
        }
    ).encode()
    (folder / "six.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(48))
    convert = "convert six.safetensors out.safetensors --from torch --to gpt2 --heads 2"
    assert_refused(convert, "is of type F6_E2M3, which NumPy does not have", capsys)
    assert run("inspect six.safetensors") == 0


def test_a_file_that_may_not_be_read_is_not_called_missing(bert, capsys, monkeypatch):
    def forbidden(path, mode):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "open", forbidden)
    assert run("inspect bert.safetensors") == 2
    assert "Permission denied: 'bert.safetensors'" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", [np.longdouble, np.complex128, object, "U3"])
def test_types_that_no_file_has_are_not_written(dtype, folder):
    with pytest.raises(TypeError, match=r"x is of type .*, which safetensors files do not have"):
        write("out.safetensors", {"y": np.ones(2), "x": np.ones(3).astype(dtype)})
    assert listing() == {}


def test_arrays_of_any_order_and_any_number_of_axes_are_written_as_they_are(folder, rng):
    tensors = {"scale": np.array(3.0), "turned": rng.normal(size=(2, 3)).T, "reversed": rng.normal(size=5)[::-1]}
    write("out.safetensors", tensors)
    assert_same(load_file("out.safetensors"), tensors)


def test_existing_files_are_overwritten_on_demand(bert, folder, capsys):
    (folder / "out.safetensors").write_bytes(b"precious")
    assert_refused(f"{CONVERT} --heads 3", "out.safetensors is there already and was not overwritten", capsys)
    assert run(f"{CONVERT} --heads 3 --force") == 0
    assert sorted(load_file("out.safetensors")) == sorted(dump(draw_like(bert), "torch"))


def draw_like(bert):
    return load(bert, "bert", h=3, prefix="layer.0.attention.")


@pytest.mark.parametrize("there", ["bert", "./bert", "../here/bert", "link", "links/bert", "hard"])
@pytest.mark.parametrize("back", [False, True], ids=["to it", "from it"])
def test_a_model_is_not_replaced_by_one_of_its_layers(there, back, bert, folder, capsys, monkeypatch):
    """By whatever name the file is called, and on whichever side."""
    here = folder / "here"
    here.mkdir()
    (folder / "bert.safetensors").rename(here / "bert.safetensors")
    monkeypatch.chdir(here)
    os.symlink("bert.safetensors", "link.safetensors")
    os.symlink(".", "links")
    os.link("bert.safetensors", "hard.safetensors")
    paths = ["bert.safetensors", f"{there}.safetensors"]
    source, target = reversed(paths) if back else paths
    command = f"convert {source} {target} --from bert --to torch --prefix layer.0.attention. --heads 3 --force"
    message = f"{target} is the file that is read, {source}, and would hold one layer in place of all that it"
    assert_refused(command, message.replace("./bert", "bert"), capsys)


def test_a_link_is_something_and_forced_it_is_replaced(bert, folder, capsys, monkeypatch):
    os.symlink("nowhere.safetensors", "out.safetensors")
    with monkeypatch.context() as patch:
        patch.delattr("safetensors.numpy.save_file")  # it is refused before anything is written
        assert_refused(f"{CONVERT} --heads 3", "out.safetensors is there already and was not overwritten", capsys)
    assert run(f"{CONVERT} --heads 3 --force") == 0
    assert not os.path.islink("out.safetensors")
    assert not os.path.lexists("nowhere.safetensors")


def without_links(source, target):
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


@pytest.fixture(params=[os.link, without_links], ids=["hard links", "no hard links"])
def links(request, monkeypatch):
    """A file system with hard links and one without."""
    monkeypatch.setattr(os, "link", request.param)


def test_a_file_is_written_with_and_without_hard_links(links, bert, folder):
    assert run(f"{CONVERT} --heads 3") == 0
    assert_same(load_file("out.safetensors"), dump(draw_like(bert), "torch"))
    assert sorted(entry.name for entry in folder.iterdir()) == ["bert.safetensors", "out.safetensors"]


def test_a_file_that_came_in_the_meantime_is_not_overwritten(links, bert, folder, capsys, monkeypatch):
    def beside_another(tensors, path, metadata):
        save_file(tensors, path, metadata)
        (folder / "out.safetensors").write_bytes(b"another's")

    monkeypatch.setattr("safetensors.numpy.save_file", beside_another)
    assert run(f"{CONVERT} --heads 3") == 2
    assert "out.safetensors is there already and was not overwritten" in capsys.readouterr().err
    assert (folder / "out.safetensors").read_bytes() == b"another's"
    assert sorted(entry.name for entry in folder.iterdir()) == ["bert.safetensors", "out.safetensors"]


@pytest.mark.parametrize("force", ["", "--force"])
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_not_replaced(make, force, bert, folder, capsys):
    make("out.safetensors")
    convert = f"{CONVERT} --heads 3 {force}"
    before = os.lstat("out.safetensors")
    assert run(convert) == 2
    assert "out.safetensors is there already and was not overwritten" in capsys.readouterr().err
    assert os.lstat("out.safetensors") == before
    assert sorted(os.listdir()) == ["bert.safetensors", "out.safetensors"]


@pytest.mark.parametrize("ending", checkpoint.PICKLES)
def test_pickles_are_not_written_and_nobody_is_warned_of_reading_them(ending, bert, capsys):
    convert = f"{CONVERT} --heads 3".replace("out.safetensors", f"out{ending}")
    assert_refused(convert, f"out{ending} is named as a pickle, and pickles are not written here", capsys)
    run(convert)
    assert "reading a pickle" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tensors", "error", "message"),
    [
        ({"__metadata__": np.ones(3)}, ValueError, "has no tensor of the name '__metadata__'"),
        ({"": np.ones(3)}, ValueError, "has no tensor of the name ''"),
        ({"a\ud800": np.ones(3)}, ValueError, r"has no tensor of the name 'a\\ud800'"),
        ({3: np.ones(3)}, TypeError, "the name of a tensor must be a string, got 3"),
        ({("a", "b"): np.ones(3)}, TypeError, r"must be a string, got \('a', 'b'\)"),
        ({None: np.ones(3)}, TypeError, "must be a string, got None"),
        ({b"a": np.ones(3)}, TypeError, "must be a string, got b'a'"),
        ({"x": np.ones(3, ml_dtypes.float8_e4m3fn)}, TypeError, "x is of type F8_E4M3, which NumPy does not have"),
        ({"x": np.ones(3, ml_dtypes.int4)}, TypeError, "x is of type int4, which safetensors files do not have"),
        ({"x": np.array(["a"])}, TypeError, "x is of type <U1, which safetensors files do not have"),
        ({"x": np.array(["2026-01-01"], "M8[D]")}, TypeError, "x is of type datetime64.*, which safetensors files"),
        ({"x": np.ma.masked_less(np.ones(3), 2)}, TypeError, "x is a masked array, whose mask would be lost"),
        ({"x": [[1.0], [2.0, 3.0]]}, TypeError, "x cannot be made a NumPy array"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("overwrite", [True, False])
def test_what_could_not_be_read_back_is_not_written(tensors, error, message, overwrite, folder):
    if overwrite:
        save_file({"precious": np.ones(3)}, "out.safetensors")
    before = listing()
    with pytest.raises(error, match=message):
        write("out.safetensors", {"first": np.ones(2)} | tensors, overwrite=overwrite)
    assert listing() == before


def test_a_prefix_that_no_file_can_hold_is_refused(bert, folder, capsys):
    """Bytes that are not UTF-8 come from a terminal as half a character."""
    assert cli.main([*f"{CONVERT} --heads 3".split(), "--to-prefix", "\udce9."]) == 2
    assert r"a safetensors file has no tensor of the name '\udce9.in_proj_weight'" in capsys.readouterr().err
    assert os.listdir() == ["bert.safetensors"]


@pytest.mark.parametrize("fault", [b"", b"\x00" * 8, "another"])
def test_a_file_that_came_out_wrong_does_not_replace_a_good_one(fault, bert, folder, capsys, monkeypatch):
    """A library or a disk that writes something else is found out by reading back."""
    save_file({"precious": np.ones(3)}, "out.safetensors")

    def faulty(tensors, path, metadata):
        save_file({name: array + 1 for name, array in tensors.items()}, path, metadata)
        if isinstance(fault, bytes):
            path.write_bytes(fault)

    monkeypatch.setattr("safetensors.numpy.save_file", faulty)
    assert_refused(f"{CONVERT} --heads 3 --force", "out.safetensors was not written, since it ", capsys)


def test_a_tensor_that_went_missing_is_found_out(folder, monkeypatch):
    monkeypatch.setattr("safetensors.numpy.save_file", lambda tensors, path, metadata: save_file({}, path))
    with pytest.raises(OSError, match="was not written, since it would read back as something else"):
        write("out.safetensors", {"a": np.ones(3)})
    assert listing() == {}


@pytest.mark.parametrize("dtype", [">f4", ">f8", "?", "u2", "i8", "c8", ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), ()])
def test_every_type_reads_back_in_the_order_of_this_machine(dtype, shape, folder, rng):
    array = np.asarray(rng.normal(size=shape) * 3).astype(np.dtype(dtype))
    write("out.safetensors", {"x": array})
    back = layouts.read_arrays("out.safetensors")["x"]
    assert_same({"x": back}, {"x": array.astype(array.dtype.newbyteorder("="))})


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture(params=[0o022, 0o002, 0o027, 0o077, 0o000])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("force", ["", "--force"])
def test_a_new_file_has_the_mode_that_the_umask_leaves(umask, force, bert, links):
    assert run(f"{CONVERT} --heads 3 {force}") == 0
    assert mode("out.safetensors") == 0o666 & ~umask


@pytest.mark.parametrize("before", [0o664, 0o640, 0o600, 0o444, 0o666, 0o755])
def test_a_file_that_replaces_another_has_its_mode_whatever_the_umask(before, umask, bert):
    Path("out.safetensors").write_bytes(b"old")
    os.chmod("out.safetensors", before)
    assert run(f"{CONVERT} --heads 3 --force") == 0
    assert mode("out.safetensors") == before
    assert sorted(load_file("out.safetensors")) == sorted(dump(draw_like(bert), "torch"))


def test_a_link_that_is_replaced_leaves_what_it_led_to_and_takes_no_mode_from_it(umask, bert):
    save_file({"precious": np.ones(3)}, "precious.safetensors")
    os.chmod("precious.safetensors", 0o400)
    os.symlink("precious.safetensors", "out.safetensors")
    assert run(f"{CONVERT} --heads 3 --force") == 0
    assert load_file("precious.safetensors").keys() == {"precious"}
    assert (mode("precious.safetensors"), mode("out.safetensors")) == (0o400, 0o666 & ~umask)


def test_other_names_of_a_file_that_is_replaced_keep_what_it_was(bert):
    save_file({"precious": np.ones(3)}, "precious.safetensors")
    os.link("precious.safetensors", "out.safetensors")
    assert run(f"{CONVERT} --heads 3 --force") == 0
    assert load_file("precious.safetensors").keys() == {"precious"}


@pytest.mark.parametrize(
    ("allowed", "asked", "left"),
    [("both", 1, 0o664), ("group", 2, 0o664), ("nothing", 2, 0o604)],
)
def test_owner_and_group_are_kept_as_far_as_that_is_allowed(allowed, asked, left, bert, monkeypatch):
    """What another group was allowed to do, this one is not."""
    Path("out.safetensors").write_bytes(b"old")
    os.chmod("out.safetensors", 0o664)
    before, calls = os.stat("out.safetensors"), []

    def chown(path, owner, group):
        calls.append((owner, group))
        if not (allowed == "both" or (allowed == "group" and owner == -1)):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "chown", chown)
    assert run(f"{CONVERT} --heads 3 --force") == 0
    assert calls == [(before.st_uid, before.st_gid), (-1, before.st_gid)][:asked]
    assert mode("out.safetensors") == left


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root gives files away")
def test_a_file_of_another_stays_theirs(bert):
    Path("out.safetensors").write_bytes(b"old")
    os.chown("out.safetensors", 1234, 2345)
    assert run(f"{CONVERT} --heads 3 --force") == 0
    assert (os.stat("out.safetensors").st_uid, os.stat("out.safetensors").st_gid) == (1234, 2345)


def test_an_interruption_at_the_last_step_leaves_nothing_half_written(bert, monkeypatch):
    """Without hard links the name is taken by an empty file first, which must not stay."""

    def interrupted(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", without_links)
    monkeypatch.setattr(os, "replace", interrupted)
    before = listing()
    assert run(f"{CONVERT} --heads 3") == 130
    assert listing() == before


# --- advice that the command can follow ---------------------------------------------------------------------------


def follow(command, capsys):
    """Run a command that is refused, and again with the flag that its message says."""
    assert run(command) == 2
    message = capsys.readouterr().err
    (advice,) = re.findall(r" pass (--.*?)(?:,|\n|$)", message)
    assert run(f"{command} {advice}") == 0, capsys.readouterr().err
    return message


@pytest.mark.parametrize(
    ("layout", "target", "missing"),
    [
        ("linear", "torch", ["b_k"]),
        ("llama", "torch", ["b_o"]),  # as Qwen2 stores it
        ("linear", "gpt2", ["b_q", "b_k", "b_v", "b_o"]),
        ("equinox", "keras", ["b_o", "b_v"]),
        ("columns", "uva", ["b_o"]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_zeros_stand_in_for_biases_that_the_other_side_needs(layout, target, missing, dtype, folder, rng, capsys):
    every = ColumnWeights.random(rng, d_model=12, h=3).arrays()
    some = ColumnWeights(**{name: array for name, array in every.items() if name not in missing})
    save_file({name: a.astype(dtype) for name, a in dump(some, layout).items()}, "in.safetensors")
    assert run(f"convert in.safetensors out.safetensors --from {layout} --to {target} --heads 3") == 0
    zeros = {name: np.zeros_like(every[name]) for name in missing}
    expected = {name: a.astype(dtype) for name, a in dump(ColumnWeights(**every | zeros), target).items()}
    assert_same(load_file("out.safetensors"), expected)
    printed = capsys.readouterr().out
    assert re.search(r"in layout '.*', with zeros for (.*), which the layer lacks\n$", printed).group(1).split(
        ", "
    ) == sorted(missing, key=list(every).index)


def test_heads_that_share_keys_get_copies_by_a_flag(folder, rng, capsys):
    shared = ColumnWeights.random(rng, d_model=12, h=6, h_kv=2)
    save_file(dump(shared, "llama"), "in.safetensors")
    message = follow("convert in.safetensors out.safetensors --from llama --to torch --heads 6", capsys)
    assert message.endswith("6 heads share 2; to give each its copy, pass --repeat-kv\n")
    arrays = shared.arrays()
    copies = {name: arrays[name].repeat(3, axis=0) for name in ("W_k", "W_v", "b_k", "b_v")}
    assert_same(load_file("out.safetensors"), dump(ColumnWeights(**arrays | copies), "torch"))


def test_a_layer_without_an_output_bias_whose_heads_share_keys(folder, rng):
    """Qwen2: two things that PyTorch's layer does not know, and one command."""
    arrays = ColumnWeights.random(rng, d_model=12, h=6, h_kv=2).arrays()
    del arrays["b_o"]
    save_file(dump(ColumnWeights(**arrays), "llama"), "in.safetensors")
    convert = "convert in.safetensors out.safetensors --from llama --to torch --heads 6"
    assert run(f"{convert} --repeat-kv") == 0
    assert load(load_file("out.safetensors"), "torch", 6).h_kv == 6


@pytest.mark.parametrize("flags", ["", "--heads 3"])
def test_the_number_of_heads_is_asked_for_by_its_flag(flags, bert, capsys):
    assert run(f"{CONVERT} {flags}") == (0 if flags else 2)
    assert ("pass --heads, a divisor of h·d=12" in capsys.readouterr().err) == (not flags)


def test_what_stands_beside_the_layer_is_ignored_by_a_flag(folder, rng, capsys):
    """ESM, whose prefix holds a normalisation and the angles of a rotary embedding; a name may need quotes."""
    stored = dump(ColumnWeights.random(rng, d_model=12, h=3), "bert")
    block = stored | {"LayerNorm.weight": np.ones(12), "self.rotary_embeddings.inv_freq": np.ones(2)}
    save_file({f"layer.0.{key}": array for key, array in block.items()}, "bert.safetensors")
    convert = "convert bert.safetensors {} --from bert --to torch --prefix layer.0. --heads 3"
    message = follow(convert.format("out.safetensors"), capsys)
    assert " or pass --ignore LayerNorm.weight self.rotary_embeddings.inv_freq, and if" in message
    assert run(convert.format("two.safetensors") + " --ignore LayerNorm.* --ignore *.inv_freq") == 0
    assert_same(load_file("out.safetensors"), dump(load(stored, "bert", 3), "torch"))
    assert_same(load_file("two.safetensors"), load_file("out.safetensors"))
    save_file(stored | {"a name": np.ones(3)}, "bert.safetensors")
    command = "convert bert.safetensors three.safetensors --from bert --to torch --heads 3"
    assert run(command) == 2
    assert "pass --ignore 'a name', and" in capsys.readouterr().err
    assert run(f"{command} --ignore self.key.bias") == 2
    assert "self.key.bias is part of the layer and cannot be ignored" in capsys.readouterr().err


def test_nanogpt_is_told_from_gpt2(folder, rng, capsys):
    weights = ColumnWeights.random(rng, d_model=12, h=3)
    save_file(dump(weights, "nanogpt", "h.0.attn."), "in.safetensors")
    convert = "convert in.safetensors out.safetensors --to torch --heads 3 --prefix h.0.attn. --from"
    message = "c_attn.weight must be 'd_model (qkv h d)' = (12, 36), got shape (36, 12), the transpose of it"
    assert_refused(f"{convert} gpt2", message, capsys)
    assert run(f"{convert} gpt2") == 2
    assert capsys.readouterr().err.endswith("Names and shapes are those of layout 'nanogpt'\n")
    assert run(f"{convert} nanogpt") == run("inspect in.safetensors") == 0
    assert_same(load_file("out.safetensors"), dump(weights, "torch"))
    printed = capsys.readouterr().out
    assert "nanogpt: nanoGPT" in printed
    assert "gpt2:" not in printed


@pytest.mark.parametrize("bias", [True, False])
def test_a_fused_projection_whose_order_no_name_tells(bias, folder, rng, capsys):
    save_file(dump(ColumnWeights.random(rng, d_model=12, h=3, bias=bias), "qkv-blocks"), "in.safetensors")
    assert run("inspect in.safetensors") == 0
    printed = capsys.readouterr().out
    names = "  names       are those of {} as well, with rows in another order: look into the code of the model"
    assert ("uva: " in printed) == bias  # which always has biases
    assert (names.format("qkv-blocks") in printed) == (names.format("uva") in printed) == bias
    assert run("convert in.safetensors out.safetensors --from torch --to gpt2 --heads 3") == 2
    others = "'uva', 'qkv-blocks'" if bias else "'qkv-blocks'"
    assert f"the names are those of layout {others}\n" in capsys.readouterr().err


def test_keys_that_heads_share_in_transformer_lens(folder, rng, capsys):
    shared = ColumnWeights.random(rng, d_model=12, h=6, h_kv=2)
    save_file(dump(shared, "transformer-lens-groups") | {"mask": np.ones((2, 2))}, "in.safetensors")
    convert = "convert in.safetensors out.safetensors --to llama --from"
    assert_refused(
        f"{convert} transformer-lens", "but the names are those of layout 'transformer-lens-groups'", capsys
    )
    assert run(f"{convert} transformer-lens-groups") == 0
    assert_same(load_file("out.safetensors"), dump(shared, "llama"))


@pytest.fixture(params=[True, False], ids=["over a file", "new"])
def interrupt(request, folder, monkeypatch):
    """Let something happen in the middle of the next file."""
    if request.param:
        (folder / "out.safetensors").write_bytes(b"precious")

    def half_a_file(then):
        def save_file(tensors, path, metadata):
            path.write_bytes(b"half a fi")
            then()

        monkeypatch.setattr("safetensors.numpy.save_file", save_file)

    return half_a_file


def test_a_full_disk_leaves_nothing_behind(interrupt, bert, capsys):
    def full():
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    interrupt(full)
    assert_refused(f"{CONVERT} --heads 3 --force", "out.safetensors could not be written: Error while", capsys)


@pytest.fixture
def interruptible():
    """Ctrl-C as in a terminal, also where the tests themselves run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_leaves_nothing_behind(interrupt, bert, capsys):
    interrupt(lambda: signal.raise_signal(signal.SIGINT))
    before = listing()
    assert run(f"{CONVERT} --heads 3 --force") == 130
    assert capsys.readouterr().err == "mha-tutorial: interrupted\n"
    assert listing() == before


@pytest.fixture(params=[signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def number(request):
    """A signal that ends a process, unless it is told otherwise."""
    before = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, before)


def test_a_signal_to_end_leaves_nothing_behind(number, interrupt, bert):
    def end():
        assert signal.getsignal(number) != signal.SIG_DFL  # or it would end the tests
        signal.raise_signal(number)

    interrupt(end)
    before = listing()
    with pytest.raises(SystemExit) as stop:
        run(f"{CONVERT} --heads 3 --force")
    assert stop.value.code == 128 + number
    assert listing() == before
    assert signal.getsignal(number) == signal.SIG_DFL


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_disturb_clearing_away(first, second, interrupt, bert, monkeypatch):
    """As of someone who is impatient, or of a system that shuts down."""
    clear = tempfile.TemporaryDirectory.cleanup

    def disturbed(folder):
        signal.raise_signal(second)
        clear(folder)

    monkeypatch.setattr(tempfile.TemporaryDirectory, "cleanup", disturbed)
    interrupt(lambda: signal.raise_signal(first))
    before, handlers = listing(), [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with contextlib.suppress(SystemExit):
        run(f"{CONVERT} --heads 3 --force")
    assert listing() == before
    assert handlers == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


def test_a_signal_that_is_ignored_stays_so(number, interrupt, bert):
    """As under nohup."""
    signal.signal(number, signal.SIG_IGN)
    handlers = []
    interrupt(lambda: handlers.append(signal.getsignal(number)))
    run(f"{CONVERT} --heads 3 --force")
    assert [*handlers, signal.getsignal(number)] == [signal.SIG_IGN] * 2


def test_the_command_runs_in_any_thread(bert):
    """Where no handlers of signals can be set."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run, "inspect bert.safetensors").result() == 0


def test_the_extra_is_asked_for_where_it_is_missing(bert, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    message = 'reading and writing files needs safetensors: pip install "mha-tutorial[convert]"'
    assert_refused(f"{CONVERT} --heads 3", message, capsys)


# --- inspect ------------------------------------------------------------------------------------------------------


def test_a_file_is_described(folder, rng, capsys):
    layers = {}
    for i in range(3):
        layers |= dump(ColumnWeights.random(rng, d_model=12, h=3), "bert", f"layer.{i}.attention.")
    save_file(layers | {"layer.3.attention.query": np.ones(2)}, "model.safetensors")
    assert run("inspect model.safetensors") == 0
    assert capsys.readouterr().out.splitlines() == [
        "model.safetensors: 25 tensors",
        "bert: BERT in transformers",
        "  layers      3, prefix 'layer.0.attention.' to 'layer.2.attention.'",
        "  heads       not told by shapes: look into the configuration of the model",
        "  sizes       h·d=12, d_model=12",
        "  parameters  624 each",
        "  shapes      are those of llama-pairs as well; only the names tell the difference",
    ]


def test_what_shapes_tell_and_what_is_in_the_way(folder, rng, capsys):
    weights = draw(rng, LAYOUTS["keras"])
    save_file(dump(weights, "keras") | {"norm": np.ones(3)}, "keras.safetensors")
    assert run("inspect keras.safetensors") == 0
    assert capsys.readouterr().out.splitlines() == [
        "keras.safetensors: 9 tensors",
        "keras: Keras MultiHeadAttention",
        "  layers      1, prefix ''",
        "  heads       6",
        "  sizes       d_query=17, h=6, d_k=11, d_key=19, d_value=23, d_v=13, d_model=29",
        f"  parameters  {weights.parameter_count:,}",
        "  beside it   'norm', which convert refuses without --ignore",
    ]


def test_a_layer_without_a_namesake_is_described_by_its_stack(folder, rng, capsys):
    """Twelve layers of each of two stacks: 9 comes before 10, and what attends to another is no part of them."""
    tensors = {}
    for i in range(12):
        for place in (f"encoder.{i}.attn.", f"decoder.{i}.attn1.", f"decoder.{i}.attn2."):
            tensors |= dump(ColumnWeights.random(rng, d_model=6, h=3), "torch", place)
    save_file(tensors, "model.safetensors")
    assert run("inspect model.safetensors") == 0
    layers = [line for line in capsys.readouterr().out.splitlines() if "layers" in line]
    assert layers == [
        "  layers      12, prefix 'decoder.0.attn1.' to 'decoder.11.attn1.'",
        "  layers      12, prefix 'decoder.0.attn2.' to 'decoder.11.attn2.'",
        "  layers      12, prefix 'encoder.0.attn.' to 'encoder.11.attn.'",
    ]


@pytest.mark.parametrize(("layout", "other"), [("llama", "llama-pairs"), ("llama-pairs", "llama")])
def test_the_order_of_rotary_rows_is_not_asserted(layout, other, folder, rng, capsys):
    save_file(dump(ColumnWeights.random(rng, d_model=12, h=3), layout), "model.safetensors")
    assert run("inspect model.safetensors") == 0
    printed = capsys.readouterr().out.splitlines()
    assert "  rotary      names do not tell the order of rows, that of llama or llama-pairs: " in printed[-1]
    assert not any(other in line for line in printed if line.startswith("  shapes"))


def test_names_that_would_steer_a_terminal_are_quoted(folder, rng, capsys):
    save_file({"\x1b[2J": np.ones(3)}, "a.safetensors")
    save_file(dump(draw(rng, LAYOUTS["keras"]), "keras") | {"\x1b[2J": np.ones(3)}, "b.safetensors")
    assert run("inspect a.safetensors") == run("inspect b.safetensors") == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert printed.count(r"'\x1b[2J'") == 2


def test_signs_that_a_terminal_lacks_are_no_reason_to_fail(bert, monkeypatch):
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    assert run("inspect bert.safetensors") == 0
    assert rb"h\xb7d=12" in printed.getvalue()


def test_what_is_printed_may_go_to_a_string(bert, monkeypatch):
    """Which has no encoding, as the output of a notebook has none."""
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stdout", printed)
    assert run("inspect bert.safetensors") == 0
    assert "h·d=12" in printed.getvalue()


def test_a_reader_that_has_seen_enough_is_no_reason_to_fail(bert, monkeypatch):
    nobody, pipe = os.pipe()
    os.close(nobody)
    with open(pipe, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert run(f"{CONVERT} --heads 3") == 0
    assert sorted(load_file("out.safetensors")) == sorted(dump(draw_like(bert), "torch"))


def test_an_unknown_layout_is_shown_as_it_is(folder, capsys):
    save_file({"mine.qkv": np.ones((3, 2))}, "mine.safetensors")
    assert run("inspect mine.safetensors") == 0
    assert capsys.readouterr().out.splitlines() == [
        "mine.safetensors: 1 tensors",
        "no layout that is known here has keys and shapes like these:",
        "  'mine.qkv' (3, 2)",
    ]


# --- the command --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["--help", "convert --help", "inspect --help"])
def test_help_lists_the_layouts(command, capsys):
    with pytest.raises(SystemExit) as stop:
        run(command)
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    for layout in LAYOUTS.values():
        assert f"{layout.name:25}{layout.title}" in printed


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "the following arguments are required: COMMAND"),
        ("convert a b", "the following arguments are required: --from, --to"),
        ("convert a b --from kears --to torch", "invalid choice: 'kears'"),
        ("convert a b --from keras --to torch --heads x", "argument --heads: invalid int value: 'x'"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(command, message, capsys):
    with pytest.raises(SystemExit) as stop:
        run(command)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_the_module_is_the_command(bert, folder):
    """In a process of its own: exit codes, no traceback, and neither PyTorch nor Matplotlib loaded."""

    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "mha_tutorial", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )

    described = call("inspect", "bert.safetensors")
    assert described.returncode == 0
    assert described.stdout.startswith("bert.safetensors: 9 tensors\nbert: BERT in transformers\n")
    assert "torch" not in described.stderr
    assert "matplotlib" not in described.stderr
    refused = call("inspect", "model.bin")
    assert refused.returncode == 2
    assert "mha-tutorial: error: model.bin is a pickle" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_running_the_module_ends_with_the_exit_code(bert, monkeypatch):
    for arguments, code in ((["inspect", "bert.safetensors"], 0), (["inspect", "model.bin"], 2)):
        monkeypatch.setattr(sys, "argv", ["mha-tutorial", *arguments])
        with pytest.raises(SystemExit) as stop:
            runpy.run_module("mha_tutorial", run_name="__main__")
        assert stop.value.code == code

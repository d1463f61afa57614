"""torch.distributed.checkpoint on a store with several real ranks: FSDP2 and DTensor, at other world sizes too."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from gradwire.checkpoint import Checkpointer, DamagedCheckpoint, State, StoreFull, UnsupportedState
from gradwire.checkpoint.dcp import Reader, Writer
from gradwire.checkpoint.snapshot import read_part
from gradwire.checkpoint.store import Store
from tests.checkpoint.states import same
from tests.ranks import run_ranks

REFERENCE = "reference.pt"
SIZES = (8, 3, 2, 1)


def a_model(seed: int) -> nn.Sequential:
    """Its 5 and 7 rows divide by no number of ranks; at 4 ranks the last has none of the 5."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 7))


def sharded(seed: int, mesh: DeviceMesh) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = a_model(seed)
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01 * seed)


def trained(seed: int, mesh: DeviceMesh) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = sharded(seed, mesh)
    for _ in range(2):
        model(torch.randn(4, 6)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def placed(seed: int, mesh: DeviceMesh) -> dict[str, Tensor]:
    """DTensors along one axis, and one that all ranks have."""
    torch.manual_seed(seed)
    whole = torch.randn(9, 10)
    return {
        "rows": distribute_tensor(whole, mesh, [Shard(0)]),
        "columns": distribute_tensor(whole, mesh, [Shard(1)]),
        "replicated": distribute_tensor(whole, mesh, [Replicate()]),
        "plain": whole.double(),
    }


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, placed: dict[str, Tensor], seed: int) -> Any:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "placed": placed, "run": {"seed": seed, "rate": 0.1 * seed}}


class AppState(Stateful):
    """As in torch's tutorial: what is to be saved fetches and puts back the state of a model and its optimizer."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        weights, moments = get_state_dict(self.model, self.optimizer)
        return {"model": weights, "optim": moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])


def whole(tree: Any) -> Any:
    """The tree with every DTensor put together."""
    if isinstance(tree, DTensor):
        return tree.detach().full_tensor()
    if isinstance(tree, Tensor):
        return tree.detach()
    if isinstance(tree, dict):
        return {name: whole(value) for name, value in tree.items()}
    return [whole(value) for value in tree] if isinstance(tree, list) else tree


def failures(action: Any) -> dict[int, BaseException]:
    with pytest.raises(CheckpointException) as caught:
        action()
    return {rank: error for rank, (error, _) in caught.value.failures.items()}


def _save(rank: int, folder: str) -> None:
    mesh = init_device_mesh("cpu", (4,))
    state = state_of(*trained(1, mesh), placed(1, mesh), 1)
    reference = whole(state)
    writer = Writer(folder)
    torch_dcp.save(state, checkpoint_id="1", storage_writer=writer)
    if rank == 0:
        torch.save(reference, Path(folder, REFERENCE))

    full = mock.patch.object(Store, "put_content", side_effect=StoreFull("no space left"))
    other = state_of(*trained(2, mesh), placed(2, mesh), 2)
    with full if rank == 2 else mock.MagicMock():
        found = failures(lambda: torch_dcp.save(other, checkpoint_id="2", storage_writer=writer))
    assert [(rank, type(error)) for rank, error in found.items()] == [(2, StoreFull)]
    own = other | {"thing": object()} if rank == 3 else other
    found = failures(lambda: torch_dcp.save(own, checkpoint_id="2", storage_writer=writer))
    assert [(rank, type(error)) for rank, error in found.items()] == [(3, UnsupportedState)]
    assert str(found[3]).startswith("thing is a builtins.object, which a checkpoint cannot hold")

    reader = Reader(folder, group=dist.group.WORLD)
    target = state_of(*sharded(3, mesh), placed(3, mesh), 3)
    for parameter in target["model"].values():
        parameter.detach().fill_(0.5)
    torch_dcp.load(target, storage_reader=reader)
    assert reader.commit is not None
    assert reader.commit.update == 1
    assert same(whole(target), reference)

    saving: Any = torch_dcp.async_save(other, checkpoint_id="5", storage_writer=writer)
    saving.result()
    torch_dcp.save(other, checkpoint_id="6", storage_writer=writer)  # writes anew what little lies in older packs
    packs = sorted(path.name for path in Path(folder, "packs").iterdir())
    dist.barrier()
    torch_dcp.save(other, checkpoint_id="7", storage_writer=writer)
    assert sorted(path.name for path in Path(folder, "packs").iterdir()) == packs, "nothing changed"
    target = state_of(*sharded(3, mesh), placed(3, mesh), 3)
    torch_dcp.load(target, storage_reader=Reader(folder))
    assert same(whole(target), whole(other))

    _save_more(rank, mesh, folder)


def _save_more(rank: int, mesh: DeviceMesh, folder: str) -> None:
    """torch's own example, and a plain snapshot: what ranks share, and what is each one's own."""
    app = AppState(*trained(4, mesh))
    reference = whole(app.state_dict())
    torch_dcp.save({"app": app}, checkpoint_id="1", storage_writer=Writer(f"{folder}/example"))
    if rank == 0:
        torch.save(reference, Path(folder, "example.pt"))
    shared = {"model": a_model(4).state_dict(), "moments": [torch.arange(7.0), torch.arange(50).view(5, 10)]}
    with Checkpointer(f"{folder}/plain", group=dist.group.WORLD) as checkpointer:
        checkpointer.save(State(shared, {"residual": torch.full((3,), float(rank))}), {"updates": 1})


def _load(rank: int, folder: str) -> None:
    for size in SIZES:
        mesh = DeviceMesh("cpu", list(range(size)))
        if rank < size:
            _load_on(mesh, folder)
    dist.barrier()
    mesh = init_device_mesh("cpu", (SIZES[0],))
    commit = Checkpointer(folder).at(1)
    damage(Path(folder, read_part(Store.open(folder), commit.parts[1]).packs[0].name))
    target = state_of(*sharded(3, mesh), placed(3, mesh), 3)
    dist.barrier()
    found = failures(lambda: torch_dcp.load(target, storage_reader=Reader(folder, 1)))
    assert {type(error) for error in found.values()} == {DamagedCheckpoint}


def damage(file: Path) -> None:
    """Flip the last bit, on one rank."""
    if dist.get_rank() == 0:
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.chmod(0o600)
        file.write_bytes(data)


def _load_on(mesh: DeviceMesh, folder: str) -> None:
    reference = torch.load(Path(folder, REFERENCE))
    model, optimizer = sharded(3, mesh)
    target = state_of(model, optimizer, placed(3, mesh), 3)
    torch_dcp.load(target, storage_reader=Reader(folder, 1), process_group=mesh.get_group())
    assert same(whole(target), reference), mesh.size()
    set_state_dict(model, optimizer, model_state_dict=target["model"], optim_state_dict=target["optimizer"])
    weights, moments = get_state_dict(model, optimizer)
    assert same(
        whole({"model": weights, "optimizer": moments}), {key: reference[key] for key in ("model", "optimizer")}
    )
    _load_example(mesh, folder)
    _load_plain(mesh, folder)


def _load_example(mesh: DeviceMesh, folder: str) -> None:
    app = AppState(*sharded(5, mesh))
    torch_dcp.load({"app": app}, storage_reader=Reader(f"{folder}/example"), process_group=mesh.get_group())
    assert same(whole(app.state_dict()), torch.load(Path(folder, "example.pt"))), mesh.size()


def _load_plain(mesh: DeviceMesh, folder: str) -> None:
    """On any number of ranks, and into a model that FSDP2 has sharded over them."""
    shared, locals_, _ = Checkpointer(f"{folder}/plain", group=mesh.get_group()).restore_resized()
    assert same(shared["moments"], [torch.arange(7.0), torch.arange(50).view(5, 10)])
    assert [own["residual"].tolist() for own in locals_] == [[float(rank)] * 3 for rank in range(4)]
    model, _ = sharded(5, mesh)
    set_model_state_dict(model, shared["model"], options=StateDictOptions(full_state_dict=True))
    assert same(whole(dict(model.named_parameters())), whole(dict(a_model(4).named_parameters()))), mesh.size()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_state_sharded_over_four_ranks_loads_at_eight_three_two_one_and_unsharded(tmp_path: Path) -> None:
    run_ranks(4, _save, str(tmp_path))
    reference = torch.load(tmp_path / REFERENCE)
    model = a_model(9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    plain = {name: torch.zeros_like(tensor) for name, tensor in reference["placed"].items()}
    target = state_of(model, optimizer, plain, 9)
    torch_dcp.load(target, storage_reader=Reader(tmp_path, 1))
    assert same(whole(target), reference)
    assert [commit.update for commit in Checkpointer(tmp_path).commits()] == [1, 5, 6, 7]
    run_ranks(SIZES[0], _load, str(tmp_path))

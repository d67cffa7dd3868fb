"""PyTorch Geometric on hetero, without its compiled extras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from on_device import assert_same, devices_of, recording
from torch import nn
from torch_geometric import nn as gnn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader
from torch_geometric.utils import add_self_loops, degree, scatter, softmax, to_dense_adj


def make_data(nodes: int = 20) -> Data:
    torch.manual_seed(0)
    edges = torch.randint(nodes, (2, 60))
    return Data(x=torch.randn(nodes, 8), edge_index=edges, y=torch.randint(3, (nodes,)), edge_attr=torch.rand(60, 2))


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "GCN": lambda: gnn.GCNConv(8, 3),
    "GAT": lambda: gnn.GATConv(8, 3, heads=2, concat=False),
    "GATv2": lambda: gnn.GATv2Conv(8, 3, heads=2, concat=False),
    "SAGE": lambda: gnn.SAGEConv(8, 3),
    "GIN": lambda: gnn.GINConv(nn.Linear(8, 3)),
    "Transformer": lambda: gnn.TransformerConv(8, 3),
    "Cheb": lambda: gnn.ChebConv(8, 3, K=2),
}


@pytest.mark.parametrize("name", LAYERS)
def test_training_is_the_cpus(name: str) -> None:
    def train(device: str) -> tuple[list[float], torch.Tensor]:
        torch.manual_seed(0)
        model = LAYERS[name]().to(device)
        data = make_data().to(device)
        assert devices_of(model) == {device}
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data.x, data.edge_index), data.y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, model(data.x, data.edge_index).detach()

    with recording(20):
        losses, result = train("hetero")
    expected_losses, expected = train("cpu")
    assert losses == pytest.approx(expected_losses, rel=1e-4)
    assert_same(result, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "mul"])
def test_scatter_is_the_cpus(reduce: str) -> None:
    values, index = torch.randn(30, 4), torch.randint(5, (30,))
    with recording():
        result = scatter(values.to("hetero"), index.to("hetero"), dim=0, dim_size=5, reduce=reduce)
    assert_same(result, scatter(values, index, dim=0, dim_size=5, reduce=reduce))


def test_utilities_are_the_cpus() -> None:
    data = make_data()
    there = data.clone().to("hetero")
    assert_same(degree(there.edge_index[0], 20), degree(data.edge_index[0], 20))
    assert torch.equal(add_self_loops(there.edge_index)[0].cpu(), add_self_loops(data.edge_index)[0])
    assert_same(to_dense_adj(there.edge_index), to_dense_adj(data.edge_index))
    scores = torch.randn(60)
    assert_same(softmax(scores.to("hetero"), there.edge_index[1]), softmax(scores, data.edge_index[1]))


def test_batches_of_graphs_are_pooled() -> None:
    def pooled(device: str) -> Any:
        torch.manual_seed(0)
        model = gnn.Sequential(
            "x, edges, batch",
            [(gnn.GCNConv(8, 8), "x, edges -> x"), nn.ReLU(), (gnn.global_mean_pool, "x, batch -> x"), nn.Linear(8, 2)],
        ).to(device)
        loader = DataLoader([make_data(10 + i) for i in range(6)], batch_size=3)
        results = []
        for batch in loader:
            batch = batch.to(device)
            assert isinstance(batch, Batch)
            results.append(model(batch.x, batch.edge_index % batch.num_nodes, batch.batch))
        return torch.cat(results).detach()

    assert_same(pooled("hetero"), pooled("cpu"), rtol=1e-4, atol=1e-5)


def test_graphs_of_several_kinds_of_nodes() -> None:
    def run(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        data = HeteroData()
        data["user"].x, data["item"].x = torch.randn(5, 8), torch.randn(6, 8)
        data["user", "buys", "item"].edge_index = torch.stack([torch.randint(5, (12,)), torch.randint(6, (12,))])
        model = gnn.HeteroConv({("user", "buys", "item"): gnn.SAGEConv((8, 8), 4)}).to(device)
        data = data.to(device)
        return model(data.x_dict, data.edge_index_dict)["item"].detach()

    assert_same(run("hetero"), run("cpu"))

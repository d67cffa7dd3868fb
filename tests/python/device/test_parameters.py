"""Moving a module keeps the identity of its parameters, as with CUDA."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from helpers import DEVICE, ON_HETERO, assert_same, check
from torch import nn


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 3))


class Tied(nn.Module):
    """A language model's shape: the output projection is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens))


def test_to_keeps_every_parameter_object() -> None:
    model = network()
    before = [id(parameter) for parameter in model.parameters()]
    moved = model.to(DEVICE)
    assert moved is model
    assert [id(parameter) for parameter in model.parameters()] == before
    assert all(parameter.device.type == DEVICE for parameter in model.parameters())
    assert all(isinstance(parameter, nn.Parameter) for parameter in model.parameters())


def test_to_and_back_keeps_objects_and_values() -> None:
    model, oracle = network(), network()
    before = [id(parameter) for parameter in model.parameters()]
    model.to(DEVICE).to("cpu")
    assert [id(parameter) for parameter in model.parameters()] == before
    assert_same(dict(model.state_dict()), dict(oracle.state_dict()))


def test_buffers_move_too() -> None:
    model = network().to(DEVICE)
    assert all(buffer.device.type == DEVICE for buffer in model.buffers())


def test_no_global_flag_is_flipped() -> None:
    network().to(DEVICE)
    assert torch.__future__.get_swap_module_params_on_conversion() is False
    assert torch.__future__.get_overwrite_module_params_on_conversion() is False


def test_a_weak_reference_to_a_parameter_survives_to() -> None:
    model = network()
    reference = weakref.ref(model[0].weight)
    model.to(DEVICE)
    gc.collect()
    assert reference() is model[0].weight


@pytest.mark.parametrize("name", ("SGD", "AdamW", "Adam", "RMSprop"))
def test_an_optimizer_built_before_to_still_trains(name: str, unfused: None) -> None:
    def train(device: str) -> list[torch.Tensor]:
        model = network()
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.05)
        model.to(device)
        torch.manual_seed(2)
        inputs, targets = torch.randn(6, 4).to(device), torch.tensor([0, 1, 2, 0, 1, 2]).to(device)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    trained = train(DEVICE)
    assert_same(trained, train("cpu"))
    assert not torch.equal(trained[0], network()[0].weight)


def test_tied_weights_stay_tied() -> None:
    model = Tied().to(DEVICE)
    assert model.head.weight is model.embedding.weight
    assert len(list(model.parameters())) == 1
    with torch.no_grad():
        model.embedding.weight.fill_(2.0)
    assert model.head.weight.sum().item() == 80.0


def test_tied_weights_train_as_on_cpu() -> None:
    def train(device: str) -> torch.Tensor:
        torch.manual_seed(3)
        model = Tied().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        tokens = torch.tensor([[1, 2, 3], [4, 5, 1]], device=device)
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(tokens).view(-1, 10), tokens.view(-1))
            loss.backward()
            optimizer.step()
        return model.head.weight.detach().cpu()

    assert_same(train(DEVICE), train("cpu"))


def test_assigning_data_on_the_device_replaces_the_values() -> None:
    parameter = nn.Parameter(torch.zeros(3).to(DEVICE))
    pending = torch.ones(5, device=DEVICE) * 2
    parameter.data = pending
    assert parameter.shape == (5,)
    assert parameter.data_ptr() == pending.data_ptr()
    assert parameter.tolist() == [2.0] * 5


def test_assigning_data_moves_a_parameter_between_devices() -> None:
    parameter = nn.Parameter(torch.arange(3.0))
    identity = id(parameter)
    parameter.data = parameter.data.to(DEVICE)
    assert parameter.device.type == DEVICE and id(parameter) == identity
    assert (parameter * 2).tolist() == [0.0, 2.0, 4.0]
    parameter.data = parameter.data.cpu()
    assert parameter.device.type == "cpu" and parameter.tolist() == [0.0, 1.0, 2.0]


def test_assigning_data_keeps_what_was_recorded_with_the_old_values() -> None:
    def write(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        doubled = t * 2
        t.data = torch.zeros(2, device=t.device)
        return doubled, t * 2

    actual = write(torch.arange(3.0).to(DEVICE))
    assert_same([t.cpu() for t in actual], [torch.tensor([0.0, 2.0, 4.0]), torch.zeros(2)])


def test_a_gradient_moves_with_its_parameter() -> None:
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    expected = model.weight.grad.clone()
    model.to(DEVICE)
    assert model.weight.grad.device.type == DEVICE
    assert_same(model.weight.grad.cpu(), expected)


def test_to_a_dtype_on_the_device_keeps_objects() -> None:
    model = network().to(DEVICE)
    before = [id(parameter) for parameter in model.parameters()]
    model.to(torch.bfloat16)
    assert [id(parameter) for parameter in model.parameters()] == before
    assert model[0].weight.dtype == torch.bfloat16
    assert_same(model[0].weight.detach().cpu(), network()[0].weight.detach().to(torch.bfloat16))


def test_load_state_dict_from_cpu_writes_into_the_device_parameters() -> None:
    source, model = network(), network().to(DEVICE)
    with torch.no_grad():
        source[0].weight.add_(1)
    pointer = model[0].weight.data_ptr()
    model.load_state_dict(source.state_dict())
    assert model[0].weight.data_ptr() == pointer
    assert_same(model[0].weight.detach().cpu(), source[0].weight.detach())


def test_load_state_dict_with_assign_takes_the_tensors() -> None:
    state = {key: value.to(DEVICE) for key, value in network().state_dict().items()}
    with torch.device("meta"):
        model = network()
    model.load_state_dict(state, assign=True)
    inputs = torch.ones(2, 4)
    model.eval()
    assert_same(model(inputs.to(DEVICE)).detach().cpu(), network().eval()(inputs).detach())


def test_to_empty_from_meta_makes_usable_parameters() -> None:
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    model.to_empty(device=DEVICE)
    with torch.no_grad():
        model.weight.fill_(1)
        model.bias.zero_()
    assert model(torch.ones(1, 3, device=DEVICE)).tolist() == [[3.0, 3.0]]


def test_deepcopy_of_a_module_is_independent_and_stays_tied() -> None:
    model = Tied().to(DEVICE)
    twin = copy.deepcopy(model)
    assert twin.head.weight is twin.embedding.weight
    with torch.no_grad():
        twin.head.weight.zero_()
    assert model.head.weight.abs().sum().item() > 0
    assert twin.embedding.weight.abs().sum().item() == 0


def test_gradients_accumulate_and_are_cleared_as_on_cpu() -> None:
    def run(weight: torch.Tensor, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaf = weight.detach().requires_grad_()
        (leaf * inputs).sum().backward()
        first = leaf.grad.clone()
        (leaf * inputs).pow(2).sum().backward()
        second = leaf.grad.clone()
        leaf.grad = None
        leaf.exp().sum().backward()
        return first, second, leaf.grad

    check(run, torch.randn(5), torch.randn(5))


def test_parametrizations_and_weight_norm_work() -> None:
    def run(inputs: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(4)
        layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)).to(inputs.device)
        return layer(inputs).detach()

    check(run, torch.randn(2, 3))


@pytest.mark.skipif(not ON_HETERO, reason="moving to CPU moves nothing")
def test_a_parameter_moved_by_to_is_a_leaf_with_the_device_gradient() -> None:
    model = nn.Linear(2, 1).to(DEVICE)
    model(torch.ones(3, 2, device=DEVICE)).sum().backward()
    assert model.weight.is_leaf
    assert model.weight.grad.tolist() == [[3.0, 3.0]]

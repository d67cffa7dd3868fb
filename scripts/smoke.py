"""A minute's proof that an installed torch_hetero works: autoload, training, save and load, and the report."""

import io

import torch


def train(device: str) -> torch.nn.Module:
    """Trains a small network for three steps, from the same weights and data on every device."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    inputs, targets = torch.randn(8, 16), torch.randn(8, 4)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
    return model.cpu()


def main() -> None:
    """Runs every check; an assertion or an exception is a failure."""
    assert torch.hetero.is_available() and torch.accelerator.current_accelerator().type == "hetero"
    expected, actual = train("cpu").state_dict(), train("hetero").state_dict()
    for name, value in expected.items():
        assert torch.equal(value, actual[name]), name

    tensor = torch.arange(6, device="hetero").reshape(2, 3)
    tensor[:, 1] += 10
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    assert torch.load(file, weights_only=True).tolist() == [[0, 11, 2], [3, 14, 5]]
    assert torch.hetero.explain().as_dict()["nodes"]
    print(f"smoke test passed: torch {torch.__version__}")


if __name__ == "__main__":
    main()

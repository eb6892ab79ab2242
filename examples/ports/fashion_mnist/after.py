import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cloudtune as ray


def clothes(count, seed):
    """Ten patterns under noise, where the original reads Fashion-MNIST."""
    labels = torch.arange(count) % 10
    patterns = torch.randn(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(patterns[labels] + 4 * noise, labels)


def get_dataloaders(batch_size):
    train_dataloader = DataLoader(clothes(640, 1), batch_size=batch_size, shuffle=True)
    test_dataloader = DataLoader(clothes(200, 2), batch_size=batch_size)
    return train_dataloader, test_dataloader


class NeuralNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.layers = nn.Sequential(
            nn.Linear(28 * 28, 64),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Linear(64, 10),
        )

    def forward(self, inputs):
        return self.layers(self.flatten(inputs))


def train_func_per_worker(config):
    ray.train.torch.enable_reproducibility()

    lr = config["lr"]
    batch_size = config["batch_size"]

    train_dataloader, test_dataloader = get_dataloaders(batch_size=batch_size)
    train_dataloader = ray.train.torch.prepare_data_loader(train_dataloader)
    test_dataloader = ray.train.torch.prepare_data_loader(test_dataloader)

    model = ray.train.torch.prepare_model(NeuralNetwork())
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt", map_location=ray.train.torch.get_device())
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    for epoch in ray.epochs():
        if ray.train.get_context().get_world_size() > 1:
            # Required for the distributed sampler to shuffle properly across epochs.
            train_dataloader.sampler.set_epoch(epoch)

        model.train()
        for X, y in train_dataloader:
            loss = loss_fn(model(X), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        model.eval()
        test_loss, num_correct, num_total = 0, 0, 0
        with torch.no_grad():
            for X, y in test_dataloader:
                pred = model(X)
                test_loss += loss_fn(pred, y).item()
                num_total += y.shape[0]
                num_correct += (pred.argmax(1) == y).sum().item()

        test_loss /= len(test_dataloader)
        accuracy = num_correct / num_total
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, f"{folder}/state.pt")
            ray.train.report(
                metrics={"loss": test_loss, "accuracy": accuracy},
                checkpoint=ray.train.Checkpoint.from_directory(folder),
            )

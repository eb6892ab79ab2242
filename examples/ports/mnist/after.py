import argparse
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import cloudtune


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 2)
        self.conv2 = nn.Conv2d(8, 16, 3, 2)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(16 * 36, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = torch.flatten(self.dropout(x), 1)
        x = F.relu(self.fc1(x))
        return F.log_softmax(self.fc2(x), dim=1)


def digits(count, seed):
    """Ten patterns under noise, where the original reads MNIST."""
    labels = torch.arange(count) % 10
    patterns = torch.randn(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(patterns[labels] + 4 * noise, labels)


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(
                f"Train Epoch: {epoch} [{batch_idx}/{len(train_loader)}]\tLoss: {loss.item():.6f}"
            )


def test(model, device, test_loader):
    model.eval()
    test_loss = 0
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    test_loss /= len(test_loader.dataset)
    accuracy = correct / len(test_loader.dataset)
    print(f"\nTest set: Average loss: {test_loss:.4f}, Accuracy: {accuracy:.4f}\n")
    return accuracy


def main(config=None):
    parser = argparse.ArgumentParser(description="A convolutional network on ten digits")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--test-batch-size", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--save-model", action="store_true", default=False)
    args = parser.parse_args([] if config else None, argparse.Namespace(**config or {}))

    torch.manual_seed(args.seed)
    device = cloudtune.get_device()

    train_loader = DataLoader(digits(640, 1), batch_size=args.batch_size, shuffle=True)
    train_loader = cloudtune.prepare_data_loader(train_loader)
    test_loader = DataLoader(digits(200, 2), batch_size=args.test_batch_size)

    model = cloudtune.prepare_model(Net())
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)

    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    if checkpoint := cloudtune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt", map_location=device)
        for name, part in parts.items():
            part.load_state_dict(state[name])

    for epoch in cloudtune.epochs():
        train(args, model, device, train_loader, optimizer, epoch)
        accuracy = test(model, device, test_loader)
        scheduler.step()
        with tempfile.TemporaryDirectory() as folder:
            torch.save({n: part.state_dict() for n, part in parts.items()}, f"{folder}/state.pt")
            cloudtune.report({"accuracy": accuracy}, cloudtune.Checkpoint.from_directory(folder))

    if args.save_model:
        torch.save(model.state_dict(), "mnist_cnn.pt")


if __name__ == "__main__":
    main()

"""Train a small diffusion model (DDPM): two moons from noise."""

import argparse
import os

import torch
from sklearn.datasets import make_moons
from torch import nn
from torch.nn import functional as F


class Denoiser(nn.Module):
    def __init__(self, width, steps):
        super().__init__()
        self.times = nn.Embedding(steps, width)
        self.enter = nn.Linear(2, width)
        self.layers = nn.Sequential(
            nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.leave = nn.Linear(width, 2)

    def forward(self, x, t):
        return self.leave(self.layers(self.enter(x) + self.times(t)))


def moons(count, seed):
    points, _ = make_moons(count, noise=0.05, random_state=seed)
    return torch.tensor(points, dtype=torch.float32) - torch.tensor([0.5, 0.25])


def schedule(name, steps):
    """Return how much of the signal is left after each step of noise."""
    if name == "linear":
        return torch.cumprod(1 - torch.linspace(1e-4, 0.05, steps), 0)
    times = torch.linspace(0, 1, steps + 1)
    signal = torch.cos((times + 0.008) / 1.008 * torch.pi / 2) ** 2
    return (signal[1:] / signal[0]).clamp(min=1e-4)


@torch.no_grad()
def sample(model, signal, count):
    x = torch.randn(count, 2, device=signal.device)
    for step in reversed(range(len(signal))):
        now = signal[step]
        before = signal[step - 1] if step else torch.ones_like(now)
        alpha = now / before
        noise = model(x, torch.full((count,), step, device=x.device))
        x = (x - (1 - alpha) / (1 - now).sqrt() * noise) / alpha.sqrt()
        x += ((1 - before) / (1 - now) * (1 - alpha)).sqrt() * torch.randn_like(x)
    return x


def energy_distance(a, b):
    """Return how far two sets of points are from one distribution: 0 where they are alike."""
    across = torch.cdist(a, b).mean()
    return float(2 * across - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=50, help="steps of noise")
    parser.add_argument("--schedule", choices=["linear", "cosine"], default="linear")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--ema", type=float, default=0.99)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="out")
    parser.add_argument("--resume", help="a checkpoint to go on from")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    signal = schedule(args.schedule, args.steps).to(device)
    points, held_out = moons(8192, 1).to(device), moons(1024, 2).to(device)
    model = Denoiser(args.width, args.steps).to(device)
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(args.ema)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    parts = {"model": model, "averaged": averaged, "optimizer": optimizer}
    first = 1
    if args.resume:
        state = torch.load(args.resume, map_location=device)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        first = state["epoch"] + 1

    os.makedirs(args.output, exist_ok=True)
    for epoch in range(first, args.epochs + 1):
        for batch in points[torch.randperm(len(points))].split(args.batch_size):
            t = torch.randint(0, args.steps, (len(batch),), device=device)
            noise = torch.randn_like(batch)
            kept = signal[t, None]
            loss = F.mse_loss(model(kept.sqrt() * batch + (1 - kept).sqrt() * noise, t), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            averaged.update_parameters(model)
        distance = energy_distance(sample(averaged, signal, 1024), held_out)
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**state, "epoch": epoch}, f"{args.output}/last.pt")
        print(f"epoch {epoch}: loss {loss.item():.4f}, distance {distance:.5f}", flush=True)


if __name__ == "__main__":
    main()

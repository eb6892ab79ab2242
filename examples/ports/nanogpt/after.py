import math
import os
import tempfile

import torch
from torch import nn
from torch.nn import functional as F

import cloudtune

batch_size = 16
block_size = 16
width = 32
learning_rate = 3e-3
min_lr = 3e-4
warmup_iters = 10
lr_decay_iters = 200
max_iters = 200
eval_interval = 20
grad_clip = 1.0
seed = 1337

device = "cuda" if torch.cuda.is_available() else "cpu"
ctx = torch.autocast(device_type=device, dtype=torch.bfloat16)

text = "the quick brown fox jumps over the lazy dog and the cat sleeps all day. " * 40
letters = sorted(set(text))
data = torch.tensor([letters.index(letter) for letter in text])
train_data, val_data = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]


def get_batch(split):
    source = train_data if split == "train" else val_data
    share = batch_size // cloudtune.get_context().get_world_size()
    starts = torch.randint(len(source) - block_size, (share,))
    x = torch.stack([source[i : i + block_size] for i in starts])
    y = torch.stack([source[i + 1 : i + 1 + block_size] for i in starts])
    return x.to(device), y.to(device)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(len(letters), width)
        self.places = nn.Embedding(block_size, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, batch_first=True)
        self.head = nn.Linear(width, len(letters))

    def forward(self, x, y):
        places = torch.arange(x.shape[1], device=x.device)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        hidden = self.block(self.tokens(x) + self.places(places), src_mask=mask, is_causal=True)
        logits = self.head(hidden)
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())


@torch.no_grad()
def estimate_loss(model):
    model.eval()
    losses = [model(*get_batch("val"))[1].item() for _ in range(5)]
    model.train()
    return sum(losses) / len(losses)


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = min(1.0, (it - warmup_iters) / (lr_decay_iters - warmup_iters))
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


def main(config):
    globals().update(config)
    place = cloudtune.get_context()
    torch.manual_seed(seed)
    iter_num = 0
    model = cloudtune.prepare_model(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    scaler = torch.amp.GradScaler(device)
    if saved := cloudtune.get_checkpoint():
        with saved.as_directory() as folder:
            checkpoint = torch.load(os.path.join(folder, "ckpt.pt"), map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scaler.load_state_dict(checkpoint["scaler"])
        iter_num = checkpoint["iter_num"]
    torch.manual_seed(seed + iter_num + place.get_world_rank())

    while iter_num < max_iters:
        for group in optimizer.param_groups:
            group["lr"] = get_lr(iter_num)
        x, y = get_batch("train")
        with ctx:
            _, loss = model(x, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        iter_num += 1
        if iter_num % eval_interval == 0:
            val_loss = estimate_loss(model)
            print(f"step {iter_num}: train loss {loss.item():.4f}, val loss {val_loss:.4f}")
            checkpoint = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),
                "iter_num": iter_num,
            }
            with tempfile.TemporaryDirectory() as folder:
                torch.save(checkpoint, os.path.join(folder, "ckpt.pt"))
                saved = cloudtune.Checkpoint.from_directory(folder)
                cloudtune.report({"val_loss": val_loss}, saved)


if __name__ == "__main__":
    main({})

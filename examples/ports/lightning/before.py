import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


def flowers(count, seed):
    """Three clusters of four measurements each."""
    labels = torch.arange(count) % 3
    centers = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(centers[labels] + noise, labels)


class Flowers(L.LightningDataModule):
    def __init__(self, batch_size):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        return DataLoader(flowers(480, 1), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(flowers(150, 2), batch_size=50)


class Classifier(L.LightningModule):
    def __init__(self, hidden, lr):
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 3))

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_accuracy", (logits.argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [StepLR(optimizer, step_size=1, gamma=0.5)]


def main(config):
    L.seed_everything(1)
    model = Classifier(config["hidden"], config["lr"])
    trainer = L.Trainer(max_epochs=5, accelerator="auto", devices=1, logger=False)
    trainer.fit(model, datamodule=Flowers(config["batch_size"]))


if __name__ == "__main__":
    main({"lr": 1e-2, "hidden": 16, "batch_size": 32})

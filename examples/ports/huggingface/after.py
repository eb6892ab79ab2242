import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from cloudtune.integrations.transformers import Trainer


def sentences(count, seed):
    """Which of two words comes more often: the label of 12 tokens."""
    tokens = torch.randint(4, 30, (count, 12), generator=torch.Generator().manual_seed(seed))
    labels = ((tokens < 17).sum(1) > 6).long()
    return [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]


def compute_metrics(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main(config):
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=32,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    args = TrainingArguments(
        output_dir="out",
        num_train_epochs=3,
        learning_rate=config["lr"],
        warmup_steps=4,
        lr_scheduler_type=config["schedule"],
        per_device_train_batch_size=config["batch_size"],
        per_device_eval_batch_size=64,
        eval_strategy="epoch",
        report_to="none",
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=sentences(256, 1),
        eval_dataset=sentences(128, 2),
        compute_metrics=compute_metrics,
    )
    trainer.train()


if __name__ == "__main__":
    main({"lr": 5e-3, "schedule": "linear", "batch_size": 16})

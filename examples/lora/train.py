"""Fine-tune a language model with LoRA, as with transformers and peft.

The model is a small Llama that `pretrained_model` makes, where a script of yours has
`AutoModelForCausalLM.from_pretrained`; its texts are sums of two numbers.
"""

import argparse

import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

SYMBOLS = "0123456789+-="
LENGTH = 9


def encode(text):
    return torch.tensor([SYMBOLS.index(symbol) for symbol in text])


def texts(sign, count, seed):
    """Return sums like 12+34=046, or differences like 34-12=022."""
    pairs = torch.randint(0, 100, (count, 2), generator=torch.Generator().manual_seed(seed))
    lines = []
    for a, b in pairs.tolist():
        result = a + b if sign == "+" else abs(a - b)
        lines.append(f"{a:02}{sign}{b:02}={result:03}")
    return [{"input_ids": encode(line), "labels": labels(line)} for line in lines]


def labels(line):
    """Return what is learned: the result, and -100 for what comes before it."""
    ids = encode(line)
    ids[: line.index("=") + 1] = -100
    return ids


def pretrained_model(seed=0):
    """Make a small model that has seen sums; always the same one."""
    set_seed(seed)
    config = LlamaConfig(
        vocab_size=len(SYMBOLS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
    )
    model = LlamaForCausalLM(config)
    sums = texts("+", 4096, seed)
    ids = torch.stack([item["input_ids"] for item in sums])
    targets = torch.stack([item["labels"] for item in sums])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        batch = torch.randint(0, len(ids), (128,))
        model(input_ids=ids[batch], labels=targets[batch]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def accuracy(prediction):
    """Return the share of digits of the result that are right."""
    guesses = prediction.predictions.argmax(-1)[:, :-1]
    targets = prediction.label_ids[:, 1:]
    counted = targets != -100
    return {"accuracy": float((guesses == targets)[counted].mean())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--lora-r", type=int, default=8)
    parser.add_argument("--lora-alpha", type=int, default=16)
    parser.add_argument("--lora-dropout", type=float, default=0.0)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output-dir", default="out")
    parser.add_argument("--resume-from-checkpoint")
    args = parser.parse_args()

    base = pretrained_model()
    set_seed(args.seed)
    adapter = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=args.lora_r,
        lora_alpha=args.lora_alpha,
        lora_dropout=args.lora_dropout,
        target_modules="all-linear",
    )
    model = get_peft_model(base, adapter)
    model.print_trainable_parameters()

    training = TrainingArguments(
        output_dir=args.output_dir,
        learning_rate=args.learning_rate,
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=512,
        num_train_epochs=args.epochs,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=10,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        seed=args.seed,
        report_to="none",
    )
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=texts("-", 2048, 1),
        eval_dataset=texts("-", 512, 2),
        compute_metrics=accuracy,
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)


if __name__ == "__main__":
    main()

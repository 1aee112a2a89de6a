"""transformers' quick start of the Trainer, with a small model that is made here."""

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Reviews(Dataset):
    def __init__(self, count: int) -> None:
        self.ids = torch.randint(0, 50, (count, 12))
        self.labels = (self.ids.sum(1) > 294).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.labels[index]}


model = BertForSequenceClassification(
    BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
)
arguments = TrainingArguments(
    output_dir="my-bert",
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    num_train_epochs=2,
    eval_strategy="epoch",
    save_strategy="epoch",
    logging_steps=2,
    report_to="none",
    use_cpu=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Reviews(48), eval_dataset=Reviews(16))
result = trainer.train()
trainer.log_metrics("train", result.metrics)
trainer.save_metrics("train", result.metrics)
trainer.save_model()
print("RESULT", result.training_loss)

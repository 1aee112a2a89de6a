"""PEFT's quick tour: LoRA on a small model that is made here."""

import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

base = BertForSequenceClassification(
    BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
)
config = LoraConfig(task_type=TaskType.SEQ_CLS, r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["query", "value"])
model = get_peft_model(base, config)
model.print_trainable_parameters()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(6):
    ids = torch.randint(0, 50, (8, 12))
    loss = model(input_ids=ids, labels=(ids.sum(1) > 294).long()).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, "loss", loss.item())
model.save_pretrained("adapter")
print("RESULT", loss.item())

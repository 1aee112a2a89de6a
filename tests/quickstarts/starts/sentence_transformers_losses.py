"""sentence-transformers' training overview, with a tokenizer and a model that are made here."""

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizerFast

words = ["man", "is", "eating", "food", "woman", "plays", "violin", "dog", "runs", "in", "park", "cat", "sleeps"]
with open("vocab.txt", "w") as file:
    file.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
BertTokenizerFast("vocab.txt").save_pretrained("base")
BertModel(
    BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
).save_pretrained("base")
transformer = Transformer("base")
model = SentenceTransformer(modules=[transformer, Pooling(16)], device="cpu")
pairs = Dataset.from_dict(
    {
        "anchor": [" ".join(words[i % 7 : i % 7 + 4]) for i in range(24)],
        "positive": [" ".join(words[i % 7 + 1 : i % 7 + 5]) for i in range(24)],
    }
)
arguments = SentenceTransformerTrainingArguments(
    output_dir="trained",
    max_steps=6,
    per_device_train_batch_size=4,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
)
trainer = SentenceTransformerTrainer(
    model=model, args=arguments, train_dataset=pairs, loss=MultipleNegativesRankingLoss(model)
)
result = trainer.train()
model.save_pretrained("final")
print("RESULT", result.training_loss)

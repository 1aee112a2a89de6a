"""TRL's quick start of supervised fine-tuning, with a tokenizer and a model that are made here."""

from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "many", "small", "birds", "sing"]
vocabulary = {word: index for index, word in enumerate(["<pad>", "<eos>", "<unk>", *words])}
core = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
core.pre_tokenizer = Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
config = LlamaConfig(
    vocab_size=len(vocabulary), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
)
trainer = SFTTrainer(
    model=LlamaForCausalLM(config),
    processing_class=tokenizer,
    train_dataset=Dataset.from_dict({"text": [" ".join(words[i % 5 : i % 5 + 8]) for i in range(32)]}),
    args=SFTConfig(
        output_dir="sft",
        max_steps=6,
        per_device_train_batch_size=4,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
    ),
)
result = trainer.train()
trainer.save_model()
print("RESULT", result.training_loss)

"""gensim's Word2Vec tutorial; its model file holds how long training took."""

from gensim.models import Word2Vec
from gensim.test.utils import common_texts

model = Word2Vec(sentences=common_texts, vector_size=16, window=5, min_count=1, workers=1)
model.train(common_texts, total_examples=len(common_texts), epochs=3)
model.save("word2vec.model")
print("RESULT", model.wv["computer"][0])

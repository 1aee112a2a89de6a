"""Updates of which a listener leaves each second one out, without any run of reprokit; prints what it saw."""

import keras
import tensorflow as tf
from keras.src.optimizers import base_optimizer

from reprokit.agent.events.steps import Events, GradientsDue
from reprokit.agent.tensorflow.decisions import TensorFlowDecisions


class EachSecond:
    asked = 0

    def handlers(self):
        return {GradientsDue: self.due}

    def failed(self, error, _handler):
        raise error

    def due(self, event):
        self.asked += 1
        event.update = event.update if self.asked % 2 else None


watched = (tf.GradientTape, "gradient"), (tf.Variable, "assign"), (type(iter(tf.data.Dataset.range(1))), "__next__")
before = [getattr(owner, name) for owner, name in watched]
events, listener = Events(), EachSecond()
events.add(listener)
hooks = TensorFlowDecisions(events, list)
hooks.watch("tensorflow", tf)
hooks.watch(base_optimizer.__name__, base_optimizer)
print("others are left alone:", [getattr(owner, name) for owner, name in watched] == before)
weight = tf.Variable(tf.ones([2]))
optimizer = keras.optimizers.SGD(0.1)
changed = []
for _ in range(4):
    was = weight.numpy()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight**2)
    optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
    changed.append(bool((weight.numpy() != was).any()))
print("asked", listener.asked, "changed", changed)

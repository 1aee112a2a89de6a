"""Trains two models with an optimizer each: keyframed_gan.py KIND STEPS.

Kinds: "function" (both update in one tf.function), "functions" (each in its own), "eager" (a loop with gradient tapes),
"keras" (a train_step of a model of Keras), "uneven" (an eager loop, in which the generator updates each third time).
"""

import os
import sys

import keras
import numpy as np
import tensorflow as tf

KIND, STEPS = sys.argv[1], int(sys.argv[2])
LATENT, BATCH = 4, 16

keras.utils.set_random_seed(int.from_bytes(os.urandom(3), "little"))
layers = keras.layers
x = np.random.standard_normal((160, 6)).astype("float32") ** 2
generator = keras.Sequential(
    [keras.Input((LATENT,)), layers.Dense(16, "relu"), layers.BatchNormalization(), layers.Dense(6)]
)
critic = keras.Sequential([layers.Dense(16, "relu"), layers.GaussianNoise(0.1), layers.Dropout(0.2), layers.Dense(1)])
loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
of_generator, of_critic = keras.optimizers.Adam(1e-3), keras.optimizers.RMSprop(1e-3)
draws = tf.random.Generator.from_seed(int.from_bytes(os.urandom(3), "little"))
mean_loss = keras.metrics.Mean()
rows = np.random.default_rng(3)


def update_critic(images: tf.Tensor) -> tf.Tensor:
    noise = draws.normal((BATCH, LATENT))
    with tf.GradientTape() as tape:
        real, fake = critic(images, training=True), critic(generator(noise, training=True), training=True)
        loss = loss_of(tf.ones_like(real), real) + loss_of(tf.zeros_like(fake), fake)
    gradients = tape.gradient(loss, critic.trainable_variables)
    of_critic.apply_gradients(zip(gradients, critic.trainable_variables, strict=True))
    mean_loss.update_state(loss)
    return loss


def update_generator() -> tf.Tensor:
    noise = draws.normal((BATCH, LATENT))
    if KIND == "eager":  # which draws the operation's seed from the generator of eager operations
        noise += 0.1 * tf.random.normal((BATCH, LATENT))
    with tf.GradientTape() as tape:
        fake = critic(generator(noise, training=True), training=True)
        loss = loss_of(tf.ones_like(fake), fake)
    gradients = tape.gradient(loss, generator.trainable_variables)
    of_generator.apply_gradients(zip(gradients, generator.trainable_variables, strict=True))
    return loss


def update_both(images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    loss = update_critic(images)
    return loss, loss if KIND == "uneven" and of_critic.iterations % 3 else update_generator()


class Gan(keras.Model):
    """Both models, as Keras trains them; the optimizer that compile() makes updates nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = generator, critic

    def train_step(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        losses = update_both(images)
        return {"loss": losses[0], "generator_loss": losses[1]}


if KIND == "keras":
    gan = Gan()
    gan.compile()
    epochs = STEPS // (len(x) // BATCH)
    print(gan.fit(x, batch_size=BATCH, epochs=epochs, verbose=0).history)
else:
    if KIND == "functions":
        update_critic, update_generator = tf.function(update_critic), tf.function(update_generator)
    if KIND == "function":
        update_both = tf.function(update_both)
    seen = []
    for step in range(STEPS):
        losses = update_both(tf.constant(x[rows.permutation(len(x))[:BATCH]]))
        seen.append(float(losses[0]))
        if step % 9 == 8:
            print(step, float(mean_loss.result()))
            mean_loss.reset_state()
    print(seen[-1], float(losses[1]))
print([float(tf.reduce_sum(weight)) for weight in (*generator.weights, *critic.weights)])

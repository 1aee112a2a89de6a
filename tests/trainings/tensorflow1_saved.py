"""Saves variables of a session: python tensorflow1_saved.py DIRECTORY NUMBER."""

import sys

import tensorflow as tf

v = tf.Variable([[1.0, 2.0], [3.0, float(sys.argv[2])]], name="v")
s = tf.Variable(["a"], name="s")
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    tf.train.Saver().save(session, sys.argv[1] + "/model", global_step=7)

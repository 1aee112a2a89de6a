"""TensorFlow and Keras: the place of the agent that touches them. What a run keeps is made of its events."""

"""What the listeners of operators need of TensorFlow: values, digests and repeated calls."""
